"""What authors of device plugins implement, and what they are handed."""

"""What a placement costs, when what runs, and which rules it breaks."""

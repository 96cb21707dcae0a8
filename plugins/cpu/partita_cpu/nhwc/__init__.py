"""Native steps on images with channels last, and attention."""

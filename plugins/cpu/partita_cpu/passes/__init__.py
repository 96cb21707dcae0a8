"""Graph passes of device CPU, before emission."""

"""Decoders over devices: layers shared out by costs, or the whole of one on each."""

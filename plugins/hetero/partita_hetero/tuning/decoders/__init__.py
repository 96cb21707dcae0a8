"""Decoders over devices: layers distributed by costs, or a replica on each."""

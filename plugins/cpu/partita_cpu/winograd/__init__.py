"""Convolutions of 3 x 3 taps by Winograd's minimal filtering: sizes, weights, the tile loop."""

"""Blocking: sizes of tiles, panels and threads' shares of a matrix product or convolution."""

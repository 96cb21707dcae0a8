"""How a matrix product or convolution is cut into tiles, panels and shares of threads."""

"""The macrokernel: compiled loops around tile kernels, over shares, panels, columns and tiles."""

"""The loops around tile kernels: threads' shares, their panels, the tiles of a panel."""

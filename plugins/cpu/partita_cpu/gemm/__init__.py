"""Matrix products with packed weights: blocking, packing, the loops over tiles."""

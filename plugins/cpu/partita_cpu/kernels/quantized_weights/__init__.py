"""Products with weights of few bits that have a scale for each block, and look-ups in them."""

"""Random models of one operator, and variations of them."""

"""Plans bound to the memory of a request, and the calls that repeat them."""

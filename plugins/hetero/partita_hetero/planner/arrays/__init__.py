"""A placement problem as flat arrays, and what is computed from them."""

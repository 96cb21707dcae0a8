"""Suite of the life cycles of requests: drawn steps in which any two kinds of use meet."""

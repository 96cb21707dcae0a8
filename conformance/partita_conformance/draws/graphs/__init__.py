"""Random models of several operators, as passes of graph compilers rewrite them."""

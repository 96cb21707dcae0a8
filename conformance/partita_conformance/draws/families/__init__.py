"""Random models of one operator, by families of operators."""

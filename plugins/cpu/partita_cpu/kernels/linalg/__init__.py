"""Matrix products on numpy's BLAS, Einsum, and what follows a product."""

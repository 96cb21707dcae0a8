"""Matrix products on numpy's BLAS, Einsum, and epilogues of products."""

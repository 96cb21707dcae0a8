"""Products with block-quantized weights (MatMulNBits), and look-ups in them.

Weights have 2, 4, 6 or 8 bits. A block, some consecutive elements of a column, shares a scale and a
zero point: ``w = (level - zero_point) * scale``. The elements of a column are called terms (the
dimension k of ``x @ w``), and the integers that stand for them levels.

`matmul_nbits` and `gated_matmul` have the operators; `panels` packs weights. Three kernels multiply
them, chosen by how many rows `x` has and by the instruction set:

- few rows: `row_products`, on the packed weights, with rows in int16 (`rows_int16`);
- many rows, vectors: `unpacked_products`, which unpacks a cache's worth of weights for many rows,
  in int16 or in int8 (`rows_int8`);
- many rows, AMX: `tile_products` and `gated_products`, which unpack weights to bfloat16.
"""

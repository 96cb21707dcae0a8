"""Matrix products and convolutions with packed weights: blocking, packing, the loops over tiles.

The structure is that of BLIS, for ``y = activation(x * w + bias + residual)``:

- `arithmetic` names the element types of factors and sums;
- `packing` stores weights in the order in which tile kernels read them, once per compiled model;
- `blocking` decides the sizes: a plan, and the table of integers (`tile_fields`) that loops read;
- `macrokernel` has the loops: a thread's share of the result, its panels (rows of the input that
  stay in the second-level cache, copied by `input_panel` where they are not read in place), the
  columns of packed weights, and the tiles of a column;
- the microkernels, one tile in registers, are LLVM IR in `partita_cpu.llvm.tiles`; `tile_kernels`
  has their addresses. They end with the epilogue.

`product_steps` records such products as steps of a program; `packed_lhs` has those on AMX whose
left side is packed too.
"""

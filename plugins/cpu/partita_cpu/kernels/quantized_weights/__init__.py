"""Products with weights of few bits that have a scale for each block, and look-ups in them.

`matmul_nbits` and `gated_matmul` have the operators. `panels` packs weights. By how many rows meet
them, and what the machine has, they are multiplied as they are (`row_products`, whose rows
`row_quantization` makes), unpacked some at a time in vectors (`unpacked_products`, with
`group_rows`), or unpacked for AMX (`tile_products`, `gated_products`).
"""

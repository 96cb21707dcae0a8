"""The macrokernel: compiled loops around tile kernels, over shares, panels, columns and tiles.

The loop nest, from outside to inside; each thread begins with its own share, and then takes tiles
of others'::

    multiply_tiles          for each share:                        product_loop
      _multiply_area          for each panel of its rows:          product_loop
        copy_input              copy or convert the rows           gemm.input_panel
        multiply_panel          for each column of tiles:          panel_loop
                                  for each chunk of runs along k:
                                    for each tile of the column:
          a tile kernel               add up, then the epilogue    llvm.tiles
          finish_rows                 what the kernel leaves       tile_epilogue
"""

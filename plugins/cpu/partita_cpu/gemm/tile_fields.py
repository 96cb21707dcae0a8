"""The table of a matrix product or convolution: an int64 array of sizes that compiled loops read.

`blocking.plan` makes it; the loops (`macrokernel`, `input_panel`, `shares`) know it as `p`.
"""

from __future__ import annotations

STEP = 32
"""Elements along k that AMX takes at a time, at most."""

PAIR = 2
"""Elements along k that vectors of bfloat16 take at a time."""

(
    # The problem: a convolution over images with channels last; a matrix product is a 1x1 one.
    BATCH,  # images
    HEIGHT,  # of the input, in pixels
    WIDTH,
    CHANNELS,  # of the input
    GROUP_CHANNELS,  # input channels of a group
    TAPS_DOWN,  # rows of the convolution's kernel
    TAPS_ACROSS,  # columns of it
    STRIDE_DOWN,
    STRIDE_ACROSS,
    DILATION_DOWN,
    DILATION_ACROSS,
    TOP,  # padding above
    LEFT,  # padding to the left
    OUT_HEIGHT,  # of the output, in pixels
    OUT_WIDTH,
    OUTPUTS,  # channels of the output
    GROUP_OUTPUTS,  # output channels of a group
    # Input and output in memory.
    X_BYTES,  # bytes of an input element
    X_PITCH,  # elements from one input pixel to the next
    X_FIRST,  # the first element of a pixel that is read
    Y_BYTES,  # bytes of an output element
    Y_PITCH,  # elements from one output pixel to the next
    Y_FIRST,  # the first element of a pixel that is written
    SOLID,  # whether neighbouring input pixels lie without gaps, and are not scaled
    SCALED,  # whether the input is scaled on its way; see `InputScaling`
    PLANAR,  # elements from one channel of a picture to the next if channels are first, or 0
    # The left matrix, as tiles read it: a row for each output pixel, made of runs.
    SOURCE,  # `DIRECT`, `HALO` or `COLUMNS`
    ARITHMETIC,  # `Arithmetic` in bfloat16; 0 in float32
    CELL,  # `HALO`: elements from one copied pixel to the next
    PITCH,  # `HALO`: pixels from one copied image row to the next
    TRAIL,  # `HALO`: pixels of zeros behind the last copied image row
    ROW,  # bytes from one row to the next
    TAPS,  # runs of a row
    DEPTH,  # steps along k of a run
    RUN,  # elements of a run that count
    PADDED,  # elements of a run, with the zeros that the arithmetic needs
    STEP_BYTES,  # bytes of a step along k in bfloat16
    IN_PLACE,  # `HALO`: whether image rows are read in the tensor itself
    COLUMN_STEP,  # bytes from what one column of tiles reads to the next, if groups are merged
    ROWS_AHEAD,  # whether tiles prefetch the rows of the next one
    # Packed weights, and columns of tiles.
    TILE_COLUMNS,  # columns of a tile
    TILE_ROWS,  # most rows of a tile
    BLOCKS,  # columns of tiles, per group
    BLOCK_BYTES,  # weights of a column of tiles
    TAP_BYTES,  # weights of one run for a column of tiles
    W_FIRST,  # bytes in front of the weights that count
    CHUNK,  # runs after which incomplete sums are stored
    # Panels: the rows that a thread copies and multiplies at a time. A unit is an image row of the
    # result for `HALO`, else one row of the result.
    UNITS,  # of the result
    GRAIN,  # units that are not divided among threads
    PANEL_UNITS,  # units of a panel
    FLAT,  # whether tiles run on from the end of one image row into the next
    EVEN,  # whether tiles may have any number of rows
    SHARES_ACROSS,  # into how many shares threads divide the columns
    LEAST_TILES,  # tiles that a thread claims at a time, at least
    PLANE_BYTES,  # a copied panel in one plane
    PARTIAL_BYTES,  # memory for incomplete sums
    THREAD_BYTES,  # scratch memory of a thread
    # Convolutions of volumes, whose slices are images.
    SLICES,  # slices of the input that one slice of the result is made of
    SLICE_STEP,  # bytes from one slice of the input to the next
    SLICE_BYTES,  # the same in a panel, of one plane
    FIRST_SLICE,  # the first slice of a panel that is one of the input
    LAST_SLICE,  # behind the last one
    RESULTS,  # slices of the result that are computed together
    RESULT_STEP,  # slices from the window of one of them to that of the next
    FIELDS,  # how many these are
) = range(65)
"""Places of the table that `blocking.plan` makes."""

DIRECT, HALO, COLUMNS = range(3)
"""What `SOURCE` says: that tiles read the tensor itself, a copy of image rows, or of windows."""

TILE_BYTES = 4096
"""Room for a tile: behind the panel for two, then those whose sums are not complete.

Behind these are the weights of a piece of a tile, if they are widened.
"""

ZERO_BYTES = 256
"""Room for a bias of zeros, behind both tiles."""

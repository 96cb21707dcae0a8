"""What the drivers of tiles read from one array of integers, and where in it."""

from __future__ import annotations

STEP = 32
"""Elements along k that AMX takes at a time, at most."""

PAIR = 2
"""Elements along k that vectors of bfloat16 take at a time."""

FIELDS = (
    *("SOURCE", "ARITHMETIC", "BATCH", "HEIGHT", "WIDTH", "CHANNELS", "GROUP_CHANNELS", "CELL"),
    *("TAPS_DOWN", "TAPS_ACROSS", "STRIDE_DOWN", "STRIDE_ACROSS", "DILATION_DOWN"),
    *("DILATION_ACROSS", "TOP", "LEFT", "OUT_HEIGHT", "OUT_WIDTH", "OUTPUTS", "GROUP_OUTPUTS"),
    *("TILE_COLUMNS", "TILE_ROWS", "BLOCKS", "BLOCK_BYTES", "TAPS", "DEPTH", "ROW", "PITCH"),
    *("TRAIL", "FLAT", "UNITS", "GRAIN", "PANEL_UNITS", "SHARES_ACROSS", "PLANE_BYTES"),
    *("THREAD_BYTES", "EVEN", "RUN", "PADDED", "X_BYTES", "Y_BYTES", "TAP_BYTES", "CHUNK"),
    *("X_PITCH", "X_FIRST", "Y_PITCH", "Y_FIRST", "SOLID", "SCALED"),
    *("STEP_BYTES", "PLANAR", "PARTIAL_BYTES", "SLICES", "SLICE_STEP", "SLICE_BYTES"),
    *("W_FIRST", "FIRST_SLICE", "LAST_SLICE", "RESULTS", "RESULT_STEP", "LEAST_TILES"),
    *("COLUMN_STEP", "IN_PLACE", "ROWS_AHEAD"),
)
"""What the array holds, in order."""

(
    SOURCE,
    ARITHMETIC,
    BATCH,
    HEIGHT,
    WIDTH,
    CHANNELS,
    GROUP_CHANNELS,
    CELL,
    TAPS_DOWN,
    TAPS_ACROSS,
    STRIDE_DOWN,
    STRIDE_ACROSS,
    DILATION_DOWN,
    DILATION_ACROSS,
    TOP,
    LEFT,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUTS,
    GROUP_OUTPUTS,
    TILE_COLUMNS,
    TILE_ROWS,
    BLOCKS,
    BLOCK_BYTES,
    TAPS,
    DEPTH,
    ROW,
    PITCH,
    TRAIL,
    FLAT,
    UNITS,
    GRAIN,
    PANEL_UNITS,
    SHARES_ACROSS,
    PLANE_BYTES,
    THREAD_BYTES,
    EVEN,
    RUN,
    PADDED,
    X_BYTES,
    Y_BYTES,
    TAP_BYTES,
    CHUNK,
    X_PITCH,
    X_FIRST,
    Y_PITCH,
    Y_FIRST,
    SOLID,
    SCALED,
    STEP_BYTES,
    PLANAR,
    PARTIAL_BYTES,
    SLICES,
    SLICE_STEP,
    SLICE_BYTES,
    W_FIRST,
    FIRST_SLICE,
    LAST_SLICE,
    RESULTS,
    RESULT_STEP,
    LEAST_TILES,
    COLUMN_STEP,
    IN_PLACE,
    ROWS_AHEAD,
) = range(len(FIELDS))

DIRECT, HALO, COLUMNS = range(3)
"""What `SOURCE` says: that tiles read the tensor itself, a copy of image rows, or of windows."""

TILE_BYTES = 4096
"""Room for a tile: behind the panel for two, then those whose sums are not complete.

Behind these are the weights of a piece of a tile, if they are widened.
"""

ZERO_BYTES = 256
"""Room for a bias of zeros, behind both tiles."""

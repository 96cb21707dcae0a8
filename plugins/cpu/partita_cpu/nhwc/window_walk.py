"""The walk of a window over images with channels last, by rows of the output."""

from __future__ import annotations

from typing import Any, NamedTuple

from partita.lowering import Array
from partita_cpu.jit.loop_kernel import loop


class WindowGeometry(NamedTuple):
    """A window over images of two dimensions, and where it lies within them.

    Attributes:
        height: Rows of an image.
        width: Pixels of such a row.
        down: Taps down.
        across: Taps across.
        stride_down: Image rows from one output row to the next.
        stride_across: Pixels from one output column to the next.
        dilation_down: Image rows from one tap to the next.
        dilation_across: Pixels from one tap to the next.
        top: Rows of padding above.
        left: Pixels of padding on the left.
        rows: Output rows of an image.
        columns: Output columns.
        inner: The first column whose taps all lie within the image, as to columns.
        inner_end: Behind the last one; `inner` where there is none.
    """

    height: int
    width: int
    down: int
    across: int
    stride_down: int
    stride_across: int
    dilation_down: int
    dilation_across: int
    top: int
    left: int
    rows: int
    columns: int
    inner: int
    inner_end: int


@loop(inline=True)
def window_geometry(table: Array) -> Any:
    """The geometry of a `Window.table` of depth 1."""
    width, across, stride, dilation = table[2], table[5], table[8], table[11]
    left, columns = table[14], table[17]
    inner = min(-(-left // stride), columns)
    last = (width - 1 + left - (across - 1) * dilation) // stride
    return WindowGeometry(
        table[1],
        width,
        table[4],
        across,
        table[7],
        stride,
        table[10],
        dilation,
        table[13],
        left,
        table[16],
        columns,
        inner,
        max(min(last + 1, columns), inner),
    )


@loop(inline=True)
def taps_down(over: WindowGeometry, row: int) -> Any:
    """Which taps of an output row, counted through all images, lie within its image.

    Returns:
        The first tap, the one behind the last, and the image row under the first, counted
        through all images.
    """
    start = row % over.rows * over.stride_down - over.top
    first = min(max(0, -(start // over.dilation_down)), over.down)
    last = max(min(over.down, (over.height - 1 - start) // over.dilation_down + 1), first)
    return first, last, row // over.rows * over.height + start + first * over.dilation_down


@loop(inline=True)
def taps_across(over: WindowGeometry, column: int) -> Any:
    """Which taps of an output column lie within the image.

    Returns:
        The first tap, the one behind the last, and the pixel of a row under the first.
    """
    start = column * over.stride_across - over.left
    if over.inner <= column < over.inner_end:
        return 0, over.across, start
    first = min(max(0, -(start // over.dilation_across)), over.across)
    last = max(min(over.across, (over.width - 1 - start) // over.dilation_across + 1), first)
    return first, last, start + first * over.dilation_across


@loop(inline=True)
def pixels_at_once(over: WindowGeometry, column: int) -> Any:
    """How many output pixels a kernel computes together from a column on: 1, 2, 4 or 8.

    Of several no tap is beside the image.
    """
    pixels = 1
    if over.inner <= column:
        for n in (2, 4, 8):
            if column + n <= over.inner_end:
                pixels = n
    return pixels

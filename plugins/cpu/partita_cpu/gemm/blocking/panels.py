"""Sizes of panels, number of tiles in a panel's columns, and shares of threads."""

from __future__ import annotations

from typing import Any

from partita_cpu.gemm.shares import shares_across

ENOUGH_LINES = 4
"""Times as many lines of the result as two panels both lay out: fewer take more of the cache.

Room for that is limited to `LARGE_PANEL_SHARE`.
"""


def lines_run_on(lines: int, width: int, pitch: int, rows: int) -> bool:
    """Whether rows of tiles should run on over the ends of image rows."""
    across = -(-lines * pitch // rows)
    return across * rows < width * lines * 1.02 and across < -(-width // rows) * lines


def panel_rows(room: int, most: int, unit_bytes: int, extra: int, grain: int) -> int:
    """Rows of a panel, whole grains, that have room: more if most of them were laid out twice."""
    fitting = [max(1, size // max(1, unit_bytes) - extra) for size in (room, most)]
    panel = max(fitting[0], min(ENOUGH_LINES * extra, fitting[1]))
    return max(grain, panel // grain * grain)


def column_tiles(count: int, halo: bool, flat: bool, pitch: int, width: int, rows: int) -> int:
    """Tiles in one column of a panel.

    Args:
        count: Lines of the panel; pixels where it has none.
        halo: Whether a panel holds lines of the image.
        flat: Whether tiles go on from line to line.
        pitch: Pixels from one line to the next.
        width: Pixels of a line of the result.
        rows: Of a tile.
    """
    if flat:
        return -(-((count - 1) * pitch + width) // rows)
    return count * -(-width // rows) if halo else -(-count // rows)


def shares_of_columns(
    grains: int,
    grain: int,
    moved: int,
    columns: int,
    threads: int,
    weights: int,
    copy_cost: float,
    enough: float,
    *lines: Any,
) -> int:
    """Shares across of a product that reads and writes so many bytes beside its weights.

    Args:
        grains: Pieces that rows can be shared in.
        grain: Rows of one.
        moved: Bytes of input and result.
        columns: Columns of tiles.
        threads: How many share them.
        weights: Bytes of the weights.
        copy_cost: See `shares_across`.
        enough: Likewise.
        lines: What `column_tiles` takes beside a count.
    """
    read = weights / max(1, moved)

    def tiles(pieces: int) -> int:
        return column_tiles(pieces * grain, *lines)

    return shares_across(grains, columns, threads, read, tiles, copy_cost, enough)

"""Blocking along k: pieces of a tile's weights that stay in a near cache from tile to tile."""

from __future__ import annotations

from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles
from partita_cpu.machine_model import MachineModel

PIECE_SHARE = 3 / 4
"""Of the first-level cache, for a piece of a tile's weights that stays there from tile to tile.

Rows of the left side run through the rest.
"""

FAR_PIECE_SHARE = 3 / 4
"""The same of the second-level cache, where tiles have the few rows of AVX2, or are of float32 in
vectors of AVX-512.

Tiles of 6 rows take a line of weights every six cycles, those of 14 rows one every seven, which
that cache supplies; to put sums down and take them up again between pieces takes longer. So it does
where weights are widened to there for many tiles; for few they had better lie in the nearest cache.
Tiles of bfloat16 take lines twice as fast. The nearest cache holds 5 times as many steps of ARM's
narrow tiles; not measured there.
"""

_WIDENED = frozenset((Arithmetic.F32_BY_F16, Arithmetic.F32_BY_BF16))
"""Where many tiles of vectors read weights of 16 bits as they were widened."""

WIDE_LANES = 16
"""Floats of a vector of AVX-512."""

HALO_PIECE_SHARE = 1 / 8
"""The same of the second-level cache, where AMX multiplies rows of an image by several taps.

Taps share pixels, so that rows leave that cache time for weights, as those of matrices do not.
Between pieces sums are put down and taken up again, which takes longer than to read weights there.
"""

FEW_ROWS = 6
"""Rows of a tile of AVX2."""


def piece_bytes(
    machine: MachineModel, arithmetic: Arithmetic, rows: int, halo: bool = False, many: bool = False
) -> int:
    """Room for a piece of a tile's weights.

    Args:
        machine: Whose caches they stay in.
        arithmetic: What products are computed in.
        rows: Of a tile.
        halo: Whether rows are those of an image, which several taps read.
        many: Whether there are tiles enough for weights that are widened to lie farther away.
    """
    if halo and on_tiles(machine.level, arithmetic):
        return max(machine.l1_bytes(PIECE_SHARE), machine.l2_bytes(HALO_PIECE_SHARE))
    far = arithmetic is Arithmetic.F32 or (many and arithmetic in _WIDENED)
    if (far and machine.level.lanes >= WIDE_LANES) or rows <= FEW_ROWS:
        return max(machine.l1_bytes(PIECE_SHARE), machine.l2_bytes(FAR_PIECE_SHARE))
    return machine.l1_bytes(PIECE_SHARE)


def pieces_of_run(padded: int, step: int, row_bytes: int, room: int) -> int:
    """Into how many equal pieces a run is cut, so that sums can stop between them.

    Args:
        padded: Elements of the run.
        step: Elements along k; pieces are whole steps.
        row_bytes: Bytes of weights that one element meets in a tile.
        room: Bytes that a piece may have.
    """
    if padded % step or padded * row_bytes <= room:
        return 1
    steps = padded // step
    fewest = -(-padded * row_bytes // room)
    return next((n for n in range(fewest, steps) if steps % n == 0), steps)

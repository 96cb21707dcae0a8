"""The tiles that a convolution is computed by, or none: how many results, in what arithmetic."""

from __future__ import annotations

import enum

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.llvm.images.winograd import PAIRS_SIDE


class TileKind(enum.IntEnum):
    """A kind of tiles; models of time and compiled programs get its number."""

    DIRECT = 0  # no tiles
    SMALL_PAIRS = 1  # 2 x 2 results, of points in bfloat16
    SMALL = 2  # 2 x 2 results
    LARGE = 4  # 4 x 4 results

    @property
    def side(self) -> int:
        """Results down and across."""
        return PAIRS_SIDE if self is TileKind.SMALL_PAIRS else int(self)

    @property
    def arithmetic(self) -> Arithmetic:
        """What points are multiplied in."""
        return Arithmetic.BF16 if self is TileKind.SMALL_PAIRS else Arithmetic.F32

    @property
    def point_bytes(self) -> int:
        """Bytes of a channel of a pixel, or of a weight, at a point."""
        return self.arithmetic.element_bytes


FILTERED = (TileKind.SMALL_PAIRS, TileKind.SMALL, TileKind.LARGE)
"""Those that there are tiles of."""

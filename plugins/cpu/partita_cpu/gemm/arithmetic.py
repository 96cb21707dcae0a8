"""Arithmetic of products: element types of factors and sums, and the tiles that compute in them."""

from __future__ import annotations

import enum

from partita_cpu.llvm.levels import Level

MAX_ROWS = 32
"""Rows of the largest tile of any arithmetic."""


class Arithmetic(enum.IntEnum):
    """What products are computed in; compiled loops get its number."""

    F32 = 0
    BF16 = 1
    BF16X3 = 2
    BF16X6 = 3
    F16 = 4
    F16_SPLIT = 5  # float16 as sums of two bfloat16, which hold all of its bits
    F32_BY_F16 = 6  # float32, by weights that are float16 and stay so in memory
    F32_BY_BF16 = 7  # the same in bfloat16

    @property
    def in_bfloat16(self) -> bool:
        """Whether factors are packed as bfloat16."""
        return self is not Arithmetic.F16 and not self.in_float32

    @property
    def in_float32(self) -> bool:
        """Whether both factors and sums are float32 when they are multiplied."""
        return self in (Arithmetic.F32, Arithmetic.F32_BY_F16, Arithmetic.F32_BY_BF16)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a packed panel, of one plane."""
        return 2 if self.in_bfloat16 else 4

    @property
    def weight_bytes(self) -> int:
        """Bytes of a packed weight, of one plane."""
        return 4 if self is Arithmetic.F32 else 2

    @property
    def widened_bytes(self) -> int:
        """Bytes of a weight in the first-level cache, of one plane."""
        return 2 if self.in_bfloat16 else 4

    @property
    def planes(self) -> int:
        """Planes: the bfloat16 parts whose sum is an element."""
        return _PLANES.get(self, 1)

    def exec_type(self, level: Level) -> str:
        """Its name in profiles, such as ``"amx_bf16"``."""
        name = self.name.lower().removesuffix("_split")
        return f"{'amx' if on_tiles(level, self) else level.vectors}_{name}"


_PLANES = {Arithmetic.BF16X3: 2, Arithmetic.BF16X6: 3, Arithmetic.F16_SPLIT: 2}


def on_tiles(level: Level, arithmetic: Arithmetic) -> bool:
    """Whether it is computed in tile registers (AMX).

    Args:
        level: The instruction set.
        arithmetic: How products are computed.
    """
    return level.tiles and arithmetic.in_bfloat16


def tile_columns(level: Level) -> int:
    """Columns of a tile."""
    return 2 * level.lanes


def tile_rows(level: Level, arithmetic: Arithmetic) -> int:
    """Rows of the largest tile.

    Args:
        level: The instruction set.
        arithmetic: How products are computed.
    """
    return MAX_ROWS if on_tiles(level, arithmetic) else level.rows

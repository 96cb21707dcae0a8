"""Levels of instruction sets that tests of device CPU go through."""

from __future__ import annotations

import functools

from partita_cpu.jit import isa
from partita_cpu.llvm import module
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.dot_blocks import LEVEL_VARIANTS, VARIANTS

PARTS_OF_BYTES = frozenset(
    {
        "_bytes",
        "_byte_levels",
        "_blocks",
        "_quads",
        *map(module.blocks_part, (*VARIANTS, *LEVEL_VARIANTS)),
    }
)
"""Parts of the kernels that differ between levels with and without products of bytes."""


def float_levels() -> list[Level]:
    """This machine's levels, portable first, but one of those whose kernels of floats are the same.

    `test_native_targets` holds that they are.
    """
    found: dict[object, Level] = {}
    for level in isa.available():
        floats = level.masks_halves, level.dots_bfloat16, level.tiles
        found.setdefault((level.native, level.lanes, level.rows, *floats), level)
    return list(found.values())


@functools.cache
def kernel_texts(level: Level, part: str) -> tuple[str, ...]:
    """What the kernels of a part are compiled from."""
    return tuple(one.text(level.processor) for one in module.functions(level, part))

"""Two-level scales: int8 scales of blocks, times a float32 factor for each group of 256 terms.

GGUF's K-quants store scales so, in 6 to 8 bits, but MatMulNBits takes floats, which are a good part
of all bytes where weights have 4 bits. With few rows a product takes as long as reading its
weights, so the two levels are recovered from the floats when weights are packed: ``scale[block] =
level[block] * factor[group]``. No attribute tells that scales are such products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.intrinsics.address_call import address
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, GROUP_TERMS

LEVEL_SIZES = (16, 32)
"""Terms of blocks whose scales are stored in two levels."""

_SAMPLE = 256
"""Groups tried before all are: scales that are no such products are found out by few."""

_USUAL = (63, 128)
"""Largest levels of nearly all groups that quantizers make; tried first."""

_LARGEST = 127


def split_levels(numbers: Array, size: int, error: float) -> tuple[Array, Array] | None:
    """Splits scales into levels (columns, blocks) of int8 and factors (columns, groups) of float32.

    Args:
        numbers: Scales of blocks (columns, blocks), float32.
        size: Terms of a block.
        error: Relative error that a number may have: 0 if products must be exact in float32.

    Returns:
        Both, or ``None`` if the scales are not such products.
    """
    each = GROUP_TERMS // size
    if size not in LEVEL_SIZES or numbers.shape[1] % each or not np.isfinite(numbers).all():
        return None
    groups = numbers.reshape(-1, each)
    if _split(groups[:_SAMPLE], error) is None:
        return None
    found = _split(groups, error)
    if found is None:
        return None
    levels, factors = found
    return levels.reshape(numbers.shape), factors.reshape(len(numbers), -1)


def _split(groups: Array, error: float) -> tuple[Array, Array] | None:
    """Levels and factors of groups (groups, blocks of a group); ``None`` if some group has none."""
    levels, factors = np.zeros(groups.shape, np.int8), np.zeros(len(groups), np.float32)
    places = np.abs(groups).argmax(1)
    tops = np.take_along_axis(groups, places[:, None], 1)[:, 0]
    left = np.flatnonzero(tops)
    others = (most for most in range(_LARGEST, 0, -1) if most not in _USUAL)
    for most in (*_USUAL, *others):
        if not left.size:
            return levels, factors
        # Of levels of one more step on the negative side the largest is negative.
        tried = tops[left] / np.float32(-most if most > _LARGEST else most)
        if error:
            tried = _as_stored(tried)
        given = groups[left]
        with np.errstate(all="ignore"):
            whole = np.rint(given / tried[:, None])
            off = np.abs(whole * tried[:, None] - given) > np.float32(error) * np.abs(given)
        fits = ~off.any(1) & (whole <= _LARGEST).all(1) & (whole >= -_LARGEST - 1).all(1)
        levels[left[fits]], factors[left[fits]] = whole[fits], tried[fits]
        left = left[~fits]
    return None if left.size else (levels, factors)


def _as_stored(factors: Array) -> Array:
    """Factors rounded to float16, as files store them: inexact scales do not tell more digits."""
    with np.errstate(over="ignore"):
        halves = factors.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(halves) & (halves != 0), halves, factors)


@loop
def widen_levels(packed: Any, out: Any, blocks: int, each: int, tid: int, nt: int) -> None:
    """Makes scales float32, in the order of panels.

    Args:
        packed: Bytes: levels, and the factors behind them.
        out: Four bytes for each level.
        blocks: Of a column.
        each: Blocks of a group.
        tid: This thread.
        nt: All threads.
    """
    count = out.size // 4
    panels, groups = count // (blocks * COLUMNS), blocks // each
    factors = floats_at(address(packed) + count, count // each)
    floats = floats_at(address(out), count)
    for panel in range(panels * tid // nt, panels * (tid + 1) // nt):
        for block in range(blocks):
            at = (panel * blocks + block) * COLUMNS
            of_group = (panel * groups + block // each) * COLUMNS
            for c in range(COLUMNS):
                level = np.int64(packed[at + c])
                level -= (level & 128) << 1
                floats[at + c] = np.float32(level) * factors[of_group + c]

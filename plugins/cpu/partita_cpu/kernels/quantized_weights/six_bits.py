"""8-bit weights that use at most 64 different levels, packed in 6 bits.

GGUF's formats Q6_K, Q5_K and Q5_0 become 8-bit weights of MatMulNBits, which has none of 5 or 6
bits. With few rows a product takes as long as reading its weights, and 6 bits are a quarter fewer
bytes. The range of levels is looked at when weights are packed, as no attribute tells it.
`dot_blocks` draws how a panel holds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, STEP

_NUMBERS = 64
_MIDDLE = 128


def first_number(w: Array, has_zeros: bool) -> int | None:
    """The 8-bit level that becomes 0 in 6 bits; ``None`` if the levels span more than 64.

    Args:
        w: 8-bit levels.
        has_zeros: Whether zero points are given. If not, the implied zero point of 8 bits (128)
            must become that of 6 (32).
    """
    first = 0 if has_zeros else _MIDDLE - _NUMBERS // 2
    return first if w.min() >= first and w.max() < first + _NUMBERS else None


@loop
def pack_sixes(w: Any, out: Any, columns: int, terms: int, first: int, tid: int, nt: int) -> None:
    """Packs 16 terms of each column into three 32-bit words, 16 columns side by side.

    Args:
        w: 8-bit levels, one column behind another.
        out: Bytes of one panel behind another.
        columns: Number of columns.
        terms: Terms of a column, in whole blocks.
        first: The 8-bit level that becomes 0.
        tid: This thread.
        nt: All threads.
    """
    panels = -(-columns // COLUMNS)
    each = COLUMNS * STEP * 6 // 8
    for panel in range(panels * tid // nt, panels * (tid + 1) // nt):
        for c in range(COLUMNS):
            column = panel * COLUMNS + c
            for step in range(terms // STEP):
                at = (panel * (terms // STEP) + step) * each
                target = out[at : at + each]
                if column >= columns:
                    for word in range(3):
                        for i in range(4):
                            target[4 * (word * COLUMNS + c) + i] = 0
                    continue
                start = column * terms + step * STEP
                source = w[start : start + STEP]
                for i in range(4):
                    place, term = 4 * c + i, i % 2 * 4 + i // 2
                    a = np.int64(source[term]) - first
                    b = np.int64(source[term + 2]) - first
                    d = np.int64(source[term + 8]) - first
                    e = np.int64(source[term + 10]) - first
                    target[place] = (a & 15) | (b & 15) << 4
                    target[4 * COLUMNS + place] = (d & 15) | (e & 15) << 4
                    high = (a >> 4) << 4 | (b >> 4) << 6 | d >> 4 | (e >> 4) << 2
                    target[8 * COLUMNS + place] = high


@loop(inline=True)
def six_bit_level(words: Any, pair: int, c: int, i: int) -> Any:
    """One weight of a block.

    Args:
        words: The block's words, as halves of 16 bits.
        pair: Which pair of neighbouring terms.
        c: The column.
        i: Which term of the pair.
    """
    part, quad = pair % 8, pair % 8 // 4 * 2 + pair % 2
    at = pair // 8 * (6 * COLUMNS) + 2 * c + i
    low = np.int64(words[at + part // 4 * (2 * COLUMNS)]) >> (part % 4 * 4)
    high = np.int64(words[at + 4 * COLUMNS]) >> (part % 4 // 2 * 8 + (4 + 2 * quad) % 8)
    return (low & 15) | (high & 3) << 4

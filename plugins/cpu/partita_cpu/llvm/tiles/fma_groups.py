"""Tile kernels of convolutions in groups of few channels, several groups in one vector.

Where a group has 4 channels and 4 outputs, a vector of 16 lanes holds the outputs of four groups. A
vector of weights is then multiplied not with one element in all lanes, but with an element of each
group in the lanes of its outputs: one of 16 neighbouring channels, by a shuffle. Where a group is
as wide as a vector it is one element again, another one for each vector of the tile.
"""

from __future__ import annotations

import itertools
from functools import partial

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.tiles.fma import PARAMETERS, VECTORS, TileEnds, row_pointers

GROUPS = (4, 8, 16)
"""Channels of a group that there are kernels for, where a vector has as many lanes."""


def group_tile(
    name: str, rows: int, lanes: int, group_channels: int, half: str = "", vectors: int = VECTORS
) -> Function:
    """``tile[r, c] = sum over t and k of a[r, taps[t] + first(c) + k] * b[t, k, c]``.

    Here first(c) is the first channel of the group of c: c rounded down to `group_channels`. Its
    parameters are those of `fma.PARAMETERS`; depth and low_plane are not read.

    Args:
        name: Its symbol.
        rows: Of the tile.
        lanes: Floats of a vector, a multiple of `group_channels`.
        group_channels: Channels of a group, and its outputs.
        half: As `epilogue.Finish` takes it.
        vectors: How many of the columns of packed b and of the tile's rows are computed.
    """
    f, v = Function(name, PARAMETERS), f"<{lanes} x float>"
    ends = TileEnds(f, rows, lanes, half, vectors)
    width = 4 * lanes

    def tap(index: str, carried: list[str], a: str) -> list[str]:
        b, sums = carried[0], list(carried[1:])
        offset = f.load("i64", f.let(f"getelementptr i64, ptr %taps, i64 {index}"), 8)
        row_at = row_pointers(f, f.at(a, offset), rows)

        def step(_: str, before: list[str], k: int) -> list[str]:
            sums = list(before)
            weights = [f.load(v, f.at(b, width * (VECTORS * k + i))) for i in range(vectors)]
            for row, (i, weight) in itertools.product(range(rows), enumerate(weights)):
                x = _spread(f, f.at(row_at[row], width * i), lanes, group_channels, k)
                place = row * vectors + i
                sums[place] = f.fma(lanes, x, weight, sums[place])
            return sums

        for k in range(group_channels):
            # A block of its own: LLVM would load and shuffle for all of them first, and spill.
            sums = f.loop("1", [(v, x) for x in sums], partial(step, k=k))
        return [f.at(b, width * VECTORS * group_channels), *sums]

    def sums(a: str, _: str) -> list[str]:
        begin = [("ptr", "%b"), *((v, x) for x in ends.begin(rows * vectors))]
        return f.loop("%ntaps", begin, partial(tap, a=a))[1:]

    ends.each_tile(0, sums)
    return f


def _spread(f: Function, pointer: str, lanes: int, group_channels: int, k: int) -> str:
    """Element `k` of each group of a vector in memory, in all lanes of its group."""
    if group_channels == lanes:
        return f.splat(lanes, "float", f.load("float", f.at(pointer, 4 * k)))
    v = f"<{lanes} x float>"
    places = ", ".join(f"i32 {lane - lane % group_channels + k}" for lane in range(lanes))
    x = f.load(v, pointer)
    return f.let(f"shufflevector {v} {x}, {v} poison, <{lanes} x i32> <{places}>")

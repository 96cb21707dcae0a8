"""Loops that multiply and add in registers alone, to measure how fast instructions are."""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.fma import multiply_pairs, pairs_of

SUMS = 16
"""Sums that do not wait for each other: more than units of any processor have under way at once."""

FLOATS, PAIRS = "multiply_floats", "multiply_pairs"
"""Names of the loops; a round of the second one multiplies twice as many numbers."""


def functions(level: Level) -> list[Function]:
    """Both loops, for levels that multiply pairs of bfloat16 in vectors; else none."""
    if not level.dots_bfloat16 or level.tiles:
        return []
    return [_loop(FLOATS, level.lanes, pairs=False), _loop(PAIRS, level.lanes, pairs=True)]


def _loop(name: str, lanes: int, *, pairs: bool) -> Function:
    """Adds a product to each of `SUMS` vectors, so many rounds.

    Its parameters are the address of as many vectors, which are read and written, and the rounds.
    """
    f = Function(name, "ptr %sums, i64 %rounds")
    vector = f"<{lanes} x float>"
    places = [f.at("%sums", 4 * lanes * number) for number in range(SUMS)]
    begun = [(vector, f.load(vector, place)) for place in places]
    factor = begun[0][1]
    pair = f.let(f"bitcast {vector} {factor} to {pairs_of(lanes)}")

    def multiplied(_: str, sums: list[str]) -> list[str]:
        if pairs:
            return [multiply_pairs(f, lanes, pair, pair, one) for one in sums]
        return [f.fma(lanes, factor, factor, one) for one in sums]

    for place, last in zip(places, f.loop("%rounds", begun, multiplied), strict=True):
        f.do(f"store {vector} {last}, ptr {place}, align 4")
    f.do("ret void")
    return f

"""A square block of elements turned: rows become columns, by shuffles of whole vectors."""

from __future__ import annotations

from partita_cpu.llvm.function import Function

PARAMETERS = "ptr %x, i64 %ldx, ptr %y, i64 %ldy"
"""x: the first of so many rows of as many elements; ldx: bytes between them. y, ldy: of the
result."""

SIDE = 16
"""Of most blocks."""


def turn(name: str, bits: int, side: int = SIDE) -> Function:
    """``y[j, i] = x[i, j]`` for elements of so many bits.

    Args:
        name: Its symbol.
        bits: Of an element.
        side: Rows and columns, a power of two.
    """
    f = Function(name, PARAMETERS)
    kind = f"<{side} x i{bits}>"
    size, middle = bits // 8, side // 2
    rows = [f.load(kind, f.at("%x", f.let(f"mul i64 %ldx, {row}")), size) for row in range(side)]
    # Each round deals rows that are half a block apart together, as two packs of cards; after as
    # many rounds as halve the block to single rows, all are turned.
    for _ in range(side.bit_length() - 1):
        dealt = []
        for row in range(middle):
            for first in (0, middle):
                lanes = [lane for k in range(first, first + middle) for lane in (k, k + side)]
                mask = ", ".join(f"i32 {lane}" for lane in lanes)
                pair = f"{kind} {rows[row]}, {kind} {rows[row + middle]}"
                dealt.append(f.let(f"shufflevector {pair}, <{side} x i32> <{mask}>"))
        rows = dealt
    for row, value in enumerate(rows):
        place = f.at("%y", f.let(f"mul i64 %ldy, {row}"))
        f.do(f"store {kind} {value}, ptr {place}, align {size}")
    f.do("ret void")
    return f

"""A block of 16 x 16 elements turned: rows become columns, by shuffles of whole vectors."""

from __future__ import annotations

from partita_cpu.llvm.function import Function

PARAMETERS = "ptr %x, i64 %ldx, ptr %y, i64 %ldy"
"""x: the first of 16 rows of 16 elements; ldx: bytes between them. y, ldy: of the result."""

SIDE = 16


def turn(name: str, bits: int) -> Function:
    """``y[j, i] = x[i, j]`` for elements of so many bits."""
    f = Function(name, PARAMETERS)
    kind = f"<{SIDE} x i{bits}>"
    size = bits // 8
    rows = [f.load(kind, f.at("%x", f.let(f"mul i64 %ldx, {row}")), size) for row in range(SIDE)]
    # Each round deals rows r and r + 8 together, as two packs of cards; after four, all are turned.
    for _ in range(4):
        dealt = []
        for row in range(SIDE // 2):
            for first in (0, SIDE // 2):
                lanes = [lane for k in range(first, first + SIDE // 2) for lane in (k, k + SIDE)]
                mask = ", ".join(f"i32 {lane}" for lane in lanes)
                pair = f"{kind} {rows[row]}, {kind} {rows[row + SIDE // 2]}"
                dealt.append(f.let(f"shufflevector {pair}, <{SIDE} x i32> <{mask}>"))
        rows = dealt
    for row, value in enumerate(rows):
        place = f.at("%y", f.let(f"mul i64 %ldy, {row}"))
        f.do(f"store {kind} {value}, ptr {place}, align {size}")
    f.do("ret void")
    return f

"""Transposition of a square block of elements in registers, by shuffles of whole vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partita_cpu.llvm.function import Function

PARAMETERS = "ptr %x, i64 %ldx, ptr %y, i64 %ldy"
"""x: the first of so many rows of as many elements; ldx: bytes between them. y, ldy: of the
result."""

SIDE = 16
"""Of most blocks."""

NARROW_SIDE = 8
"""Of those of narrow tiles, which have so many columns."""

GROUP_BYTES = 16
"""Within so many bytes of a vector AVX2 moves any element in one instruction."""


def transpose(name: str, bits: int, lanes: int, side: int = SIDE) -> Function:
    """``y[j, i] = x[i, j]`` for elements of so many bits.

    The block is transposed in squares whose rows fill one register each, so that none is spilled.

    Args:
        name: Its symbol.
        bits: Of an element.
        lanes: Floats of a vector.
        side: Rows and columns, a power of two.
    """
    f = Function(name, PARAMETERS)
    square = min(side, lanes * 32 // bits)
    steps = range(0, side, square)
    for column in steps:
        for row in steps:  # a row of the result is finished before the next one is begun
            _square(f, bits, square, row, column)
    f.do("ret void")
    return f


def _square(f: Function, bits: int, side: int, row: int, column: int) -> None:
    """Transposes the square that begins at a row and a column."""
    size, kind = bits // 8, f"<{side} x i{bits}>"
    rows = [
        f.load(kind, f.at(f.at("%x", f.let(f"mul i64 %ldx, {row + i}")), size * column), size)
        for i in range(side)
    ]
    group = min(side, GROUP_BYTES // size)
    dealt: list[str] = []
    for first in range(0, side, group):
        dealt += _dealt(f, kind, side, rows[first : first + group])
    for j, value in enumerate(_swapped(f, kind, dealt, group)):
        place = f.at(f.at("%y", f.let(f"mul i64 %ldy, {column + j}")), size * row)
        f.do(f"store {kind} {value}, ptr {place}, align {size}")


def _dealt(f: Function, kind: str, side: int, rows: Sequence[str]) -> Sequence[str]:
    """As many rows as a group has elements, each group of which is transposed where it is.

    Each round deals rows that are half of them apart together, as two packs of cards; after as
    many rounds as halve them to single rows, all are transposed.
    """
    group, middle = len(rows), len(rows) // 2
    for _ in range(group.bit_length() - 1):
        dealt = []
        for row in range(middle):
            for half in (0, middle):
                lanes = [
                    lane
                    for first in range(half, side, group)
                    for k in range(first, first + middle)
                    for lane in (k, k + side)
                ]
                dealt.append(_shuffled(f, kind, rows[row], rows[row + middle], lanes))
        rows = dealt
    return rows


def _swapped(f: Function, kind: str, rows: Sequence[str], group: int) -> Sequence[str]:
    """Rows whose groups change places: the k-th group of rows with the k-th of their elements."""
    side, rows = len(rows), list(rows)
    apart = group
    while apart < side:
        for i in (i for i in range(side) if not i & apart):
            first, second = rows[i], rows[i + apart]
            low = [k if not k & apart else k - apart + side for k in range(side)]
            high = [k + apart if not k & apart else k + side for k in range(side)]
            rows[i] = _shuffled(f, kind, first, second, low)
            rows[i + apart] = _shuffled(f, kind, first, second, high)
        apart *= 2
    return rows


def _shuffled(f: Function, kind: str, first: str, second: str, lanes: Iterable[int]) -> str:
    """Elements of two vectors, those of the second numbered on."""
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    many = kind.partition(" ")[0] + " x i32>"
    return f.let(f"shufflevector {kind} {first}, {kind} {second}, {many} <{mask}>")

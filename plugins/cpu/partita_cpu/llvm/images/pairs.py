"""Sums and products of two images, some channels of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store

PARAMETERS = "i64 %rows, i64 %columns, ptr %a, i64 %lda, ptr %b, i64 %ldb, ptr %y, i64 %ldy"
"""rows: pixels, of as many columns each. a, b, y: the first pixel; lda, ldb, ldy: bytes from one to
the next."""

PAIRS = ("add", "mul")
"""What is done with two images: LLVM's names without the ``f`` of floats."""

TOGETHER = 4
"""Vectors that are computed side by side."""


def combine_rows(name: str, operation: str, lanes: int, half: bool) -> Function:
    """``y = a + b`` or ``y = a * b``.

    Args:
        name: Its symbol.
        operation: LLVM's ``fadd`` or ``fmul``.
        lanes: Floats of a vector.
        half: Whether all three are bfloat16; results are rounded once.
    """
    f = Function(name, PARAMETERS)
    vector, size = f"<{lanes} x float>", 2 if half else 4

    load, store = (load_half, store_half) if half else (masked_load, masked_store)

    def combine(places: Sequence[str], count: int, mask: str | None = None) -> None:
        found = []
        for i in range(count):
            a, b = (load(f, lanes, f.at(place, size * lanes * i), mask) for place in places[:2])
            found.append(f.let(f"{operation} {vector} {a}, {b}"))
        for i, result in enumerate(found):
            store(f, lanes, result, f.at(places[2], size * lanes * i), mask)

    many = f.let(f"udiv i64 %columns, {TOGETHER * lanes}")
    others = f.let(f"udiv i64 {f.let(f'urem i64 %columns, {TOGETHER * lanes}')}, {lanes}")
    left = f.let(f"urem i64 %columns, {lanes}")
    some = f.let(f"zext i1 {f.let(f'icmp ne i64 {left}, 0')} to i64")
    mask = column_masks(f, left, lanes, 1)[0]

    def vectors(count: int) -> Callable[[str, list[str]], list[str]]:
        def body(_: str, places: list[str]) -> list[str]:
            combine(places, count)
            return [f.at(place, size * lanes * count) for place in places]

        return body

    def end(_: str, places: list[str]) -> list[str]:
        combine(places, 1, mask)
        return places

    def pixel(_: str, starts: list[str]) -> list[str]:
        places = starts
        for rounds, body in ((many, vectors(TOGETHER)), (others, vectors(1)), (some, end)):
            places = f.loop(rounds, [("ptr", place) for place in places], body)
        steps = ("%lda", "%ldb", "%ldy")
        return [f.at(start, step) for start, step in zip(starts, steps, strict=True)]

    f.loop("%rows", [("ptr", "%a"), ("ptr", "%b"), ("ptr", "%y")], pixel)
    f.do("ret void")
    return f

"""What is done with two tensors row by row: sums, differences, products, quotients, comparisons.

Rows are pixels of images with channels last, of which some channels are read, or what broadcasting
leaves of a tensor's axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store, truths_store

PARAMETERS = "i64 %rows, i64 %columns, ptr %a, i64 %lda, ptr %b, i64 %ldb, ptr %y, i64 %ldy"
"""rows: of as many columns each. a, b, y: the first row; lda, ldb, ldy: bytes from one to the
next, which may be 0 for a and b."""

VERBS = ("add", "sub", "mul", "div")
"""What is done with two numbers: LLVM's names without the ``f`` of floats."""

COMPARISONS = {"equal": "oeq", "greater": "ogt", "greater_equal": "oge"}
"""Of two numbers, each true or false as one byte; LLVM's conditions, false where one is NaN."""

IMAGE_VERBS = ("add", "mul")
"""What is done with images in bfloat16, too."""

SINGLES = {"rows": None, "first": 0, "second": 1}
"""By the names of kernels which of a and b is one number for each row."""

TOGETHER = 4
"""Vectors that are computed side by side, and rows of one vector."""


class _Elements(NamedTuple):
    """How vectors are read and written.

    Attributes:
        load: Reads one of a or b.
        store: Writes one of y.
        unit: Bytes of an element of a and b.
        made: Bytes of an element of y.
    """

    load: Callable[[Function, int, str, str | None], str]
    store: Callable[[Function, int, str, str, str | None], object]
    unit: int
    made: int


_FLOATS = _Elements(masked_load, masked_store, 4, 4)
_HALVES = _Elements(load_half, store_half, 2, 2)
_TRUTHS = _Elements(masked_load, truths_store, 4, 1)


def functions(lanes: int) -> list[Function]:
    """The kernels for floats.

    Args:
        lanes: Floats of a vector.
    """
    return [
        _combine_rows(f"{verb}_{name}", f"f{verb}", lanes, _FLOATS, single)
        for verb in VERBS
        for name, single in SINGLES.items()
    ]


def comparisons(lanes: int) -> list[Function]:
    """The kernels that compare floats; results are bytes.

    Args:
        lanes: Floats of a vector.
    """
    return [
        _combine_rows(f"{verb}_{name}", f"fcmp {condition}", lanes, _TRUTHS, single)
        for verb, condition in COMPARISONS.items()
        for name, single in SINGLES.items()
    ]


def half_functions() -> list[Function]:
    """The kernels for images in bfloat16; results are rounded once."""
    return [_combine_rows(f"{verb}_halves", f"f{verb}", 16, _HALVES) for verb in IMAGE_VERBS]


def _combine_rows(
    name: str, operation: str, lanes: int, elements: _Elements, single: int | None = None
) -> Function:
    """``y = a + b``, or what else LLVM's instruction computes.

    Args:
        name: Its symbol.
        operation: The instruction, such as ``fadd``.
        lanes: Floats of a vector.
        elements: Of a, b and y.
        single: Which of a and b, counted from 0, is one number for each row; ``None`` if neither.
    """
    f = Function(name, PARAMETERS)
    vector, sizes = f"<{lanes} x float>", (elements.unit, elements.unit, elements.made)
    load, store = elements.load, elements.store
    steps = ("%lda", "%ldb", "%ldy")

    def read(places: Sequence[str], offset: int, mask: str | None, same: str | None) -> str:
        """What comes of vectors of a and b; ``same`` if one of them has one number a row."""
        pair = [
            same if same is not None and i == single else load(f, lanes, f.at(place, offset), mask)
            for i, place in enumerate(places[:2])
        ]
        return f.let(f"{operation} {vector} {pair[0]}, {pair[1]}")

    def same_of(places: Sequence[str]) -> str | None:
        return None if single is None else f.splat(lanes, "float", f.load("float", places[single]))

    def following(places: Sequence[str]) -> list[str]:
        return [f.at(place, step) for place, step in zip(places, steps, strict=True)]

    short = f.let(f"icmp sle i64 %columns, {lanes}")
    few = f.let(f"select i1 {short}, i64 %rows, i64 0")
    whole = column_masks(f, "%columns", lanes, 1)[0]

    def short_rows(count: int) -> Callable[[str, list[str]], list[str]]:
        """Of one vector at most."""

        def body(_: str, starts: list[str]) -> list[str]:
            rows = [starts]
            for _row in range(count - 1):
                rows.append(following(rows[-1]))
            found = [read(places, 0, whole, same_of(places)) for places in rows]
            for result, places in zip(found, rows, strict=True):
                store(f, lanes, result, places[2], whole)
            return following(rows[-1])

        return body

    places = ["%a", "%b", "%y"]
    for count, rounds in ((TOGETHER, f"udiv i64 {few}, {TOGETHER}"),
                          (1, f"urem i64 {few}, {TOGETHER}")):  # fmt: skip
        places = f.loop(f.let(rounds), [("ptr", place) for place in places], short_rows(count))

    many = f.let(f"udiv i64 %columns, {TOGETHER * lanes}")
    others = f.let(f"udiv i64 {f.let(f'urem i64 %columns, {TOGETHER * lanes}')}, {lanes}")
    left = f.let(f"urem i64 %columns, {lanes}")
    some = f.let(f"zext i1 {f.let(f'icmp ne i64 {left}, 0')} to i64")
    last = column_masks(f, left, lanes, 1)[0]

    def long_row(_: str, starts: list[str]) -> list[str]:
        same = same_of(starts)

        def vectors(count: int, mask: str | None) -> Callable[[str, list[str]], list[str]]:
            def body(_: str, places: list[str]) -> list[str]:
                found = [read(places, sizes[0] * lanes * i, mask, same) for i in range(count)]
                for i, result in enumerate(found):
                    store(f, lanes, result, f.at(places[2], sizes[2] * lanes * i), mask)
                return [
                    place if i == single else f.at(place, sizes[i] * lanes * count)
                    for i, place in enumerate(places)
                ]

            return body

        places = starts
        for rounds, body in ((many, vectors(TOGETHER, None)), (others, vectors(1, None)),
                             (some, vectors(1, last))):  # fmt: skip
            places = f.loop(rounds, [("ptr", place) for place in places], body)
        return following(starts)

    f.loop(f.let(f"sub i64 %rows, {few}"), [("ptr", place) for place in places], long_row)
    f.do("ret void")
    return f

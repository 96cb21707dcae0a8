"""Sums and normalization of pixels whose channels lie side by side, in groups or each for itself.

Images are float32 or bfloat16. A few vectors of channels are taken at a time, pixel after pixel,
so that what they are added to or multiplied by stays in registers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.masked import bounded, column_masks, masked_load, masked_store

SUM_PARAMETERS = "i64 %rows, i64 %columns, ptr %x, i64 %ldx, ptr %center, ptr %total, ptr %squares"
"""rows: pixels, of as many columns each. x: the first pixel; ldx: bytes from one to the next.
center: what is taken off first, a float for each column. total, squares: receive a float each."""

PARAMETERS = (
    "i64 %rows, i64 %columns, ptr %x, i64 %ldx, ptr %y, i64 %ldy, ptr %mean, ptr %missing, "
    "ptr %factor, ptr %bias, float %slope, float %low, float %high"
)
"""rows, columns, x, ldx: as above. y: where the first pixel's results go; ldy: bytes to the next
one's. mean, missing, factor, bias: a float for each column. slope: what is below 0 is multiplied by
it. low, high: bounds of results."""

_UNROLLED = 4
"""Pixels that are added up side by side where few columns are: a sum waits for the one before."""

_Body = Callable[[int, str, str | None], None]
"""Writes so many vectors of columns, from a column's number on; a mask if a part of one exists."""


def functions(level: Level) -> list[Function]:
    """The kernels of a level."""
    kinds = (False, True) if level.keeps_bfloat16 else (False,)
    made = [channel_sums(level.lanes, half) for half in kinds]
    return [*made, *(normalize(level.lanes, *kind) for kind in itertools.product(kinds, kinds))]


def sums_name(half: bool) -> str:
    """The symbol of `channel_sums`."""
    return "sums_of_halves" if half else "sums_of_floats"


def normalization_name(half_in: bool, half_out: bool) -> str:
    """The symbol of `normalize`."""
    before, after = ("halves" if half else "floats" for half in (half_in, half_out))
    return f"{before}_to_{after}"


def channel_sums(lanes: int, half: bool) -> Function:
    """Sums of what pixels differ by from a center, and of its squares.

    Args:
        lanes: Floats of a vector.
        half: Whether pixels are bfloat16.
    """
    f = Function(sums_name(half), SUM_PARAMETERS)
    vector = f"<{lanes} x float>"
    load, size = (load_half, 2) if half else (masked_load, 4)

    def add(count: int, column: str, mask: str | None) -> None:
        offset = f.let(f"shl i64 {column}, 2")
        centers = _row(f, lanes, f.at("%center", offset), count, mask)
        start = f.at("%x", f.let(f"mul i64 {column}, {size}"))

        def pixel(place: str, totals: list[str]) -> list[str]:
            found = []
            for i in range(count):
                x = load(f, lanes, f.at(place, size * lanes * i), mask)
                off = f.let(f"fsub {vector} {x}, {centers[i]}")
                found.append(f.let(f"fadd {vector} {totals[2 * i]}, {off}"))
                found.append(f.fma(lanes, off, off, totals[2 * i + 1]))
            return found

        def several(_: str, carried: list[str]) -> list[str]:
            place, found = carried[0], []
            for n in range(unrolled):
                part = carried[1 + 2 * count * n : 1 + 2 * count * (n + 1)]
                found += pixel(place, part)
                place = f.at(place, "%ldx")
            return [place, *found]

        def one(_: str, carried: list[str]) -> list[str]:
            found = pixel(carried[0], carried[1:])
            return [f.at(carried[0], "%ldx"), *found]

        unrolled = _UNROLLED if count == 1 else 1
        zeros = [(vector, "zeroinitializer")] * (2 * count * unrolled)
        rounds = f.let(f"udiv i64 %rows, {unrolled}")
        place, *totals = f.loop(rounds, [("ptr", start), *zeros], several)
        if unrolled > 1:
            pairs = [(totals[i], totals[i + 2], totals[i + 4], totals[i + 6]) for i in range(2)]
            totals = [_sum_of(f, vector, parts) for parts in pairs]
            left = f.let(f"urem i64 %rows, {unrolled}")
            carried = [("ptr", place), *((vector, total) for total in totals)]
            _, *totals = f.loop(left, carried, one)
        for i, (total, square) in enumerate(zip(totals[::2], totals[1::2], strict=True)):
            for result, value in (("%total", total), ("%squares", square)):
                masked_store(f, lanes, value, f.at(f.at(result, offset), 4 * lanes * i), mask)

    _over_columns(f, lanes, add)
    f.do("ret void")
    return f


def normalize(lanes: int, half_in: bool, half_out: bool) -> Function:
    """``((x - mean) - missing) * factor + bias``, less of it below 0, within bounds.

    Args:
        lanes: Floats of a vector.
        half_in: Whether pixels are bfloat16.
        half_out: Whether results are.
    """
    f = Function(normalization_name(half_in, half_out), PARAMETERS)
    vector = f"<{lanes} x float>"
    load, size = (load_half, 2) if half_in else (masked_load, 4)
    store, result_size = (store_half, 2) if half_out else (masked_store, 4)
    ends = [f.splat(lanes, "float", value) for value in ("%slope", "%low", "%high")]

    def write(count: int, column: str, mask: str | None) -> None:
        offset = f.let(f"shl i64 {column}, 2")
        rows = [
            _row(f, lanes, f.at(row, offset), count, mask)
            for row in ("%mean", "%missing", "%factor", "%bias")
        ]

        def pixel(_: str, places: list[str]) -> list[str]:
            for i, (mean, missing, factor, bias) in enumerate(zip(*rows, strict=True)):
                x = load(f, lanes, f.at(places[0], size * lanes * i), mask)
                x = f.let(f"fsub {vector} {x}, {mean}")
                x = f.let(f"fsub {vector} {x}, {missing}")
                x = f.fma(lanes, x, factor, bias)
                less = f.let(f"fmul {vector} {x}, {ends[0]}")
                below = f.let(f"fcmp olt {vector} {x}, zeroinitializer")
                x = f.let(f"select <{lanes} x i1> {below}, {vector} {less}, {vector} {x}")
                x = bounded(f, vector, x, ends[1], ends[2], lanes)
                store(f, lanes, x, f.at(places[1], result_size * lanes * i), mask)
            return [f.at(places[0], "%ldx"), f.at(places[1], "%ldy")]

        starts = [
            ("ptr", f.at(pointer, f.let(f"mul i64 {column}, {unit}")))
            for pointer, unit in (("%x", size), ("%y", result_size))
        ]
        f.loop("%rows", starts, pixel)

    _over_columns(f, lanes, write)
    f.do("ret void")
    return f


def _row(f: Function, lanes: int, pointer: str, count: int, mask: str | None) -> list[str]:
    """So many vectors of floats that lie side by side."""
    return [masked_load(f, lanes, f.at(pointer, 4 * lanes * i), mask) for i in range(count)]


def _sum_of(f: Function, vector: str, parts: tuple[str, str, str, str]) -> str:
    first, second = (f.let(f"fadd {vector} {a}, {b}") for a, b in (parts[:2], parts[2:]))
    return f.let(f"fadd {vector} {first}, {second}")


def _over_columns(f: Function, lanes: int, body: _Body) -> None:
    """Calls a body for several vectors of columns, then for single ones, then for a part of one."""
    together = 4 if lanes == 16 else 2  # registers of what each column is multiplied by
    many = f.let(f"udiv i64 %columns, {together * lanes}")
    left = f.let(f"urem i64 %columns, {together * lanes}")
    others = f.let(f"udiv i64 {left}, {lanes}")
    part = f.let(f"urem i64 %columns, {lanes}")
    some = f.let(f"zext i1 {f.let(f'icmp ne i64 {part}, 0')} to i64")
    mask = column_masks(f, part, lanes, 1)[0]
    column = "0"
    for rounds, count, edge in ((many, together, None), (others, 1, None), (some, 1, mask)):

        def step(
            _: str, carried: list[str], count: int = count, edge: str | None = edge
        ) -> list[str]:
            body(count, carried[0], edge)
            return [f.let(f"add i64 {carried[0]}, {lanes * count}")]

        column = f.loop(rounds, [("i64", column)], step)[0]

"""Transforms of Winograd's minimal filtering: of tiles of an image, and of the sums of a tile.

A tile of m x m results of 3 x 3 taps needs n x n pixels, n = m + 2. Along each of both axes a tile
is transformed by the matrices that :mod:`partita_cpu.winograd.point_weights` derives: here they are
written as sums and differences of what two opposite points share. S. Winograd, Arithmetic
Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural
Networks, 2016.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from partita_cpu.llvm.copies import bf16_split
from partita_cpu.llvm.epilogue import VECTORS
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half
from partita_cpu.llvm.masked import column_masks, masked_load

TAPS = 3

POINTS = {2: (1.0,), 4: (0.75, 1.5)}
"""By the side of a tile of results: points, beside 0 and infinity, where polynomials are evaluated;
each with its opposite.

With 1 and 2, which are usual, tiles of 4 x 4 are off by several times as much: what is added up
differs more in size. Products of these are float32 numbers.
"""

INPUT_PARAMETERS = (
    "ptr %x, i64 %line, i64 %pixel, i64 %tiles, i64 %channels, ptr %to, i64 %row, i64 %plane"
)
"""x: the first of the pixels of a tile. line, pixel: bytes from one row or pixel of the image to
the next. tiles: how many, side by side. to: a row of channels, filled up with zeros to whole
vectors, for each tile and point. row, plane: bytes from one tile or point to the next."""

PAIRS_SIDE = 2
"""Results down and across the tiles whose points are multiplied in bfloat16: those of others are
rounded by too much of what they are the difference of."""

OUTPUT_PARAMETERS = "ptr %sums, i64 %plane, i64 %tiles, ptr %to, i64 %line, i64 %vectors"
"""sums: a row of columns for each tile and point, tile after tile. plane: bytes from one point to
the next. tiles: how many, side by side. to: a row of columns for each pixel of the result. line:
bytes from one row of pixels to the next. vectors: how many of a row's are computed."""


def pixels_of(side: int) -> int:
    """Pixels across a tile of so many results."""
    return side + TAPS - 1


def factors_without(points: Sequence[float], left: int | None = None) -> list[float]:
    """Coefficients of even powers of the product of ``x^2 - p^2``, but for one of the points."""
    found = [1.0]
    for number, point in enumerate(points):
        if number != left:
            square = point * point
            shifted = [0.0, *found]
            found = [a - square * b for a, b in zip(shifted, [*found, 0.0], strict=True)]
    return found


class _Transform:
    """Writes sums of vectors with constant factors."""

    def __init__(self, f: Function, lanes: int, side: int) -> None:
        self.f, self.lanes, self.side = f, lanes, side
        self.points = POINTS[side]
        self.vector = f"<{lanes} x float>"

    def total(self, terms: Sequence[tuple[float, str]]) -> str:
        """The sum of factors times vectors; those with factor 1 come first."""
        ordered = sorted(terms, key=lambda term: term[0] != 1.0)
        factor, found = ordered[0]
        if factor != 1.0:
            found = self.f.let(f"fmul {self.vector} {found}, {self.number(factor)}")
        for factor, x in ordered[1:]:
            if abs(factor) == 1.0:
                sign = "fadd" if factor > 0 else "fsub"
                found = self.f.let(f"{sign} {self.vector} {found}, {x}")
            else:
                found = self.f.fma(self.lanes, self.number(factor), x, found)
        return found

    def number(self, value: float) -> str:
        """A vector constant; LLVM writes a float as the bits of the double that is equal."""
        bits = struct.pack(">d", value).hex().upper()
        return "<" + ", ".join([f"float 0x{bits}"] * self.lanes) + ">"

    def at_points(self, pixels: Sequence[str]) -> list[str]:
        """Values at 0, at each point and its opposite, and at infinity, of n pixels."""
        whole = factors_without(self.points)
        found = [self.total([(c, pixels[2 * i]) for i, c in enumerate(whole)])]
        for number, point in enumerate(self.points):
            rest = factors_without(self.points, number)
            even = self.total([(c, pixels[2 * i + 2]) for i, c in enumerate(rest)])
            odd = self.total([(c, pixels[2 * i + 1]) for i, c in enumerate(rest)])
            found += [self.total([(1.0, even), (s * point, odd)]) for s in (1.0, -1.0)]
        found.append(self.total([(c, pixels[2 * i + 1]) for i, c in enumerate(whole)]))
        return found

    def results(self, values: Sequence[str]) -> list[str]:
        """The m results, of values at the points."""
        add, v, pairs = self.f.let, self.vector, range(len(self.points))
        sums = [add(f"fadd {v} {values[2 * i + 1]}, {values[2 * i + 2]}") for i in pairs]
        gaps = [add(f"fsub {v} {values[2 * i + 1]}, {values[2 * i + 2]}") for i in pairs]
        found = []
        for k in range(self.side):
            shared = gaps if k % 2 else sums
            terms = [(p**k, x) for p, x in zip(self.points, shared, strict=True)]
            terms += [(1.0, values[0])] if k == 0 else []
            terms += [(1.0, values[-1])] if k == self.side - 1 else []
            found.append(self.total(terms))
        return found


def input_transform(
    name: str, side: int, lanes: int, half: bool = False, rounds: bool = False
) -> Function:
    """Transforms the pixels of tiles that lie side by side; see `INPUT_PARAMETERS`.

    Args:
        name: Its symbol.
        side: Results down and across a tile.
        lanes: Floats of a vector.
        half: Whether pixels are bfloat16, not float32.
        rounds: Whether what they become is.
    """
    f = Function(name, INPUT_PARAMETERS)
    made, n = _Transform(f, lanes, side), pixels_of(side)
    whole = f.let(f"udiv i64 %channels, {lanes}")
    rest = f.let(f"urem i64 %channels, {lanes}")
    some = f.let(f"zext i1 {f.let(f'icmp ne i64 {rest}, 0')} to i64")
    mask = column_masks(f, rest, lanes, 1)[0]
    apart = ["0", "%pixel"]
    for _ in range(2, n):
        apart.append(f.let(f"add i64 {apart[-1]}, %pixel"))
    further = f.let(f"mul i64 %pixel, {side}")

    load = load_half if half else masked_load

    def store(x: str, to: str) -> None:
        if rounds:
            store_half(f, lanes, x, to, None)
        else:
            f.do(f"store {made.vector} {x}, ptr {to}, align 4")

    def piece(at: list[str], mask: str | None) -> list[str]:
        source, to = at
        lines = [source]
        for _ in range(1, n):
            lines.append(f.at(lines[-1], "%line"))
        columns = []
        for place in apart:
            columns.append(
                made.at_points([load(f, lanes, f.at(line, place), mask) for line in lines])
            )
        point = to
        for down in range(n):
            for x in made.at_points([column[down] for column in columns]):
                store(x, point)
                point = f.at(point, "%plane")
        return [f.at(source, (2 if half else 4) * lanes), f.at(to, (2 if rounds else 4) * lanes)]

    def tile(_: str, at: list[str]) -> list[str]:
        state = [("ptr", at[0]), ("ptr", at[1])]
        after = f.loop(whole, state, lambda _, inner: piece(inner, None))
        state = [("ptr", pointer) for pointer in after]
        f.loop(some, state, lambda _, inner: piece(inner, mask))
        return [f.at(at[0], further), f.at(at[1], "%row")]

    f.loop("%tiles", [("ptr", "%x"), ("ptr", "%to")], tile)
    f.do("ret void")
    return f


def output_transform(name: str, side: int, lanes: int) -> Function:
    """Makes results of the sums of tiles that lie side by side; see `OUTPUT_PARAMETERS`.

    Returns 1 if some result is infinite or NaN, else 0.
    """
    f = Function(name, OUTPUT_PARAMETERS, "i64")
    made, n, width = _Transform(f, lanes, side), pixels_of(side), 4 * lanes * VECTORS
    v, zeros = made.vector, "zeroinitializer"

    def piece(at: list[str]) -> list[str]:
        source, to, odd = at
        values, point = [], source
        for _ in range(n * n):
            values.append(f.load(v, point))
            point = f.at(point, "%plane")
        columns = [made.results(values[across::n]) for across in range(n)]
        line = to
        for down in range(side):
            for across, x in enumerate(made.results([column[down] for column in columns])):
                f.do(f"store {v} {x}, ptr {f.at(line, across * width)}, align 4")
                odd = made.f.fma(made.lanes, x, zeros, odd)  # 0 times infinity is NaN, which stays
            line = f.at(line, "%line")
        return [f.at(source, 4 * lanes), f.at(to, 4 * lanes), odd]

    def tile(_: str, at: list[str]) -> list[str]:
        kinds = ("ptr", "ptr", v)
        state = list(zip(kinds, at, strict=True))
        odd = f.loop("%vectors", state, lambda _, inner: piece(inner))[2]
        return [f.at(at[0], width), f.at(at[1], side * width), odd]

    odd = f.loop("%tiles", [("ptr", "%sums"), ("ptr", "%to"), (v, zeros)], tile)[2]
    lost = f.let(f"fcmp uno {v} {odd}, {zeros}")
    bits = f.let(f"bitcast <{lanes} x i1> {lost} to i{lanes}")
    found = f.let(f"icmp ne i{lanes} {bits}, 0")
    f.do(f"ret i64 {f.let(f'zext i1 {found} to i64')}")
    return f


def functions(lanes: int) -> list[Function]:
    """The kernels of a level with vectors of so many floats."""
    made = []
    for side in POINTS:
        made.append(input_transform(f"input_transform_{side}", side, lanes))
        made.append(output_transform(f"output_transform_{side}", side, lanes))
    return made


def half_functions() -> list[Function]:
    """The kernels that read images in bfloat16 or round to it, for vectors of 16 floats."""
    made = [
        input_transform(f"input_transform_halves_{side}", side, 16, half=True) for side in POINTS
    ]
    for kind, half in (("", False), ("_halves", True)):
        name = f"input_transform{kind}_to_pairs"
        made.append(input_transform(name, PAIRS_SIDE, 16, half, rounds=True))
    made.append(bf16_split.widen("widen_bf16"))
    return [*made, bf16_split.scale("scale_bf16_widen", 16, half_in=True, planes=0)]

"""Normalization of float32 rows, eight rows at a time, for AVX-512.

Of one short row, the horizontal sums and the root take longer than all else, and depend on one
another. Those of eight rows are computed side by side, each row's in a lane of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import larger_magnitude
from partita_cpu.llvm.masked import column_masks, masked_load

LANES = 16

EIGHT = 8
"""Rows at a time: so many have their sums, sums of squares and means in registers."""

LONGEST = 1024
"""Floats of rows that are taken so: eight lie in the first-level cache, and sums are short."""

_FLOATS, _SHORT = f"<{LANES} x float>", f"<{EIGHT} x float>"
_DOUBLES = f"<{EIGHT} x double>"

Write = Callable[[int, str, str, str | None], None]
"""Takes a row's number, a place in it in bytes from the first float, a vector, and its mask."""

Load = Callable[[int, str, str | None], str]
"""Takes a row's number, a place in it likewise, and a mask; yields the vector."""


class Statistics(NamedTuple):
    """Of eight rows, names of vectors.

    Attributes:
        means: Eight floats, or zeros.
        inverses: Inverse deviations, eight floats.
        largest: The largest magnitude of a result in each lane, see `larger_magnitude`; zeros where
            nobody asked.
    """

    means: str
    inverses: str
    largest: str


class EightRows:
    """Eight rows of `%n` floats each, and `%epsilon` that is added to their variances.

    Args:
        f: The function that they are normalized in.
        share: The double 1 / n.
        centered: Whether the mean is taken off.
        measured: Whether the largest magnitude of a result is found.
    """

    def __init__(self, f: Function, share: str, centered: bool, measured: bool = False) -> None:
        self._f, self._measured = f, measured
        self._share = f.splat(EIGHT, "double", share)
        self._epsilon = f.splat(EIGHT, "double", "%epsilon")
        self._ones = f.splat(EIGHT, "double", "1.0")
        self._centered = centered
        self._whole = f.let(f"udiv i64 %n, {LANES}")
        left = f.let(f"urem i64 %n, {LANES}")
        self._some = f.let(f"zext i1 {f.let(f'icmp ne i64 {left}, 0')} to i64")
        self._mask = column_masks(f, left, LANES, 1)[0]

    def normalize(self, rows: Sequence[str], write: Write, first: Load | None = None) -> Statistics:
        """Rows to mean 0, if they are centered, and square mean 1, times scale, plus bias.

        Moments are taken about the mean as float32 has it, and what that misses is taken off too;
        see `kernels.normalization.norm_loops.normalize_rows`.

        Args:
            rows: Where they start.
            write: Called for each vector of results.
            first: Yields each vector when it is read for the first time, and sees to it that it
                lies in its row from then on.
        """
        f = self._f

        def load(row: int, at: str, mask: str | None) -> str:
            return masked_load(f, LANES, f.at(rows[row], at), mask)

        first = first or load
        if not self._centered:
            (square,) = self._sums(first, lambda _, x: [(x, x)])
            inverse = self._inverse(self._mean(square))
            largest = self._each(load, write, inverse, [])
            return Statistics("zeroinitializer", inverse, largest)
        (total,) = self._sums(first, lambda _, x: [(x, "")])
        center = self._narrow(self._mean(total))
        abouts = self._spread(center)

        def moments(row: int, x: str) -> list[tuple[str, str]]:
            off = f.let(f"fsub {_FLOATS} {x}, {abouts[row]}")
            return [(off, ""), (off, off)]

        part, square = self._sums(load, moments)
        rest = self._mean(part)
        lost = f.let(f"fmul {_DOUBLES} {rest}, {rest}")
        variance = f.let(f"fsub {_DOUBLES} {self._mean(square)}, {lost}")
        below = f.let(f"fcmp olt {_DOUBLES} {variance}, zeroinitializer")
        mask = f"<{EIGHT} x i1> {below}"
        zero = f"{_DOUBLES} zeroinitializer"
        inverse = self._inverse(f.let(f"select {mask}, {zero}, {_DOUBLES} {variance}"))
        off = [abouts, self._spread(self._narrow(rest))]
        largest = self._each(load, write, inverse, off)
        return Statistics(self._narrow(self._mean_beyond(center, rest)), inverse, largest)

    def _mean_beyond(self, center: str, rest: str) -> str:
        """The mean, ``rest`` beyond about the mean; an infinite one has elements NaN beyond it."""
        f, about = self._f, self._wide(center)
        size = f.let(f"call {_DOUBLES} @llvm.fabs.v{EIGHT}f64({_DOUBLES} {about})")
        infinite = f.let(f"fcmp oeq {_DOUBLES} {size}, splat (double 0x7FF0000000000000)")
        mean = f.let(f"fadd {_DOUBLES} {about}, {rest}")
        return f.let(f"select <{EIGHT} x i1> {infinite}, {_DOUBLES} {about}, {_DOUBLES} {mean}")

    def _sums(
        self, load: Load, terms: Callable[[int, str], Sequence[tuple[str, str]]]
    ) -> list[str]:
        """Sums over each row of products, or of what has no second factor; eight floats each."""
        f, count = self._f, len(terms(0, "zeroinitializer"))

        def added(at: str, totals: list[str], mask: str | None) -> list[str]:
            found = []
            for row in range(EIGHT):
                x = load(row, at, mask)
                for k, (value, other) in enumerate(terms(row, x)):
                    value = self._kept(value, mask)
                    total = totals[row * count + k]
                    plain = "" if other else f.let(f"fadd {_FLOATS} {total}, {value}")
                    found.append(plain or self._f.fma(LANES, value, other, total))
            return found

        totals = self._columns([(_FLOATS, "zeroinitializer")] * count * EIGHT, added)
        return [self._across(totals[k::count]) for k in range(count)]

    def _kept(self, x: str, mask: str | None) -> str:
        """Lanes of the mask, 0 in others."""
        if mask is None:
            return x
        zero = f"{_FLOATS} zeroinitializer"
        return self._f.let(f"select <{LANES} x i1> {mask}, {_FLOATS} {x}, {zero}")

    def _columns(
        self,
        state: Sequence[tuple[str, str]],
        body: Callable[[str, list[str], str | None], list[str]],
    ) -> list[str]:
        """Calls for each vector of columns, with its place in bytes, a state, and a mask."""
        f, carried = self._f, [("i64", "0"), *state]
        for rounds, mask in ((self._whole, None), (self._some, self._mask)):

            def column(_: str, values: list[str], mask: str | None = mask) -> list[str]:
                found = body(values[0], values[1:], mask)
                return [f.let(f"add i64 {values[0]}, {4 * LANES}"), *found]

            found = f.loop(rounds, carried, column)
            carried = [(kind, value) for (kind, _), value in zip(carried, found, strict=True)]
        return [value for _, value in carried[1:]]

    def _across(self, vectors: list[str]) -> str:
        """The sum of the lanes of each of eight vectors: halves of two make one, thrice."""
        run = LANES
        while len(vectors) > 1:
            half = run // 2
            low = [first + i for first in range(0, 2 * LANES, run) for i in range(half)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self._halves(a, b, low, half) for a, b in pairs]
            run = half
        return self._halves(vectors[0], "poison", list(range(0, LANES, 2)), 1)

    def _halves(self, a: str, b: str, low: list[int], half: int) -> str:
        f = self._f
        parts = []
        for places in (low, [place + half for place in low]):
            mask = ", ".join(f"i32 {place}" for place in places)
            kind = f"<{len(low)} x i32> <{mask}>"
            parts.append(f.let(f"shufflevector {_FLOATS} {a}, {_FLOATS} {b}, {kind}"))
        return f.let(f"fadd <{len(low)} x float> {parts[0]}, {parts[1]}")

    def _each(self, load: Load, write: Write, inverse: str, off: Sequence[Sequence[str]]) -> str:
        """Takes off what is to be, multiplies, writes; yields the largest magnitudes."""
        f, factors = self._f, self._spread(inverse)

        def column(at: str, state: list[str], mask: str | None) -> list[str]:
            scale, bias = (
                masked_load(f, LANES, f.at(each, at), mask) for each in ("%scale", "%bias")
            )
            for row in range(EIGHT):
                x = load(row, at, mask)
                for term in off:
                    x = f.let(f"fsub {_FLOATS} {x}, {term[row]}")
                x = f.let(f"fmul {_FLOATS} {x}, {factors[row]}")
                result = f.fma(LANES, x, scale, bias)
                write(row, at, result, mask)
                state = [larger_magnitude(f, LANES, largest, result) for largest in state]
            return state

        nothing = [(f"<{LANES} x i32>", "zeroinitializer")]
        found = self._columns(nothing if self._measured else [], column)
        return found[0] if self._measured else "zeroinitializer"

    def _spread(self, x: str) -> list[str]:
        """For each row a vector of its number."""
        made = []
        for row in range(EIGHT):
            kind = f"<{LANES} x i32> <{', '.join([f'i32 {row}'] * LANES)}>"
            made.append(self._f.let(f"shufflevector {_SHORT} {x}, {_SHORT} poison, {kind}"))
        return made

    def _inverse(self, variance: str) -> str:
        f = self._f
        above = f.let(f"fadd {_DOUBLES} {variance}, {self._epsilon}")
        root = f.let(f"call {_DOUBLES} @llvm.sqrt.v{EIGHT}f64({_DOUBLES} {above})")
        return self._narrow(f.let(f"fdiv {_DOUBLES} {self._ones}, {root}"))

    def _mean(self, total: str) -> str:
        return self._f.let(f"fmul {_DOUBLES} {self._wide(total)}, {self._share}")

    def _wide(self, x: str) -> str:
        return self._f.let(f"fpext {_SHORT} {x} to {_DOUBLES}")

    def _narrow(self, x: str) -> str:
        return self._f.let(f"fptrunc {_DOUBLES} {x} to {_SHORT}")


DECLARATIONS = "".join(
    f"declare {_DOUBLES} @llvm.{name}.v{EIGHT}f64({_DOUBLES})\n" for name in ("sqrt", "fabs")
)
"""What it calls, beyond what `masked` and `tiles.fma` declare."""

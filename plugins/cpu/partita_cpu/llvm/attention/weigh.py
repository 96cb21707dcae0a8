"""The softmax of one query's scores: what each value is multiplied by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita_cpu.llvm.activations import Formulas
from partita_cpu.llvm.attention.attend import in_pairs
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import rounded_pair, store_half
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.masked import column_masks

PARAMETERS = "ptr %scores, i64 %keys, float %factor, ptr %weights"
"""scores: so many; they have room up to two whole vectors, which may hold anything. factor: of
scores. weights: where the results go, which may be where the scores are; zeros come behind them up
to two whole vectors."""

_MANY, _FEW = 4, 2
"""Vectors that are computed side by side, and those of the rest."""

_NOTHING = "0xFFF0000000000000"
"""LLVM's spelling of minus infinity."""

_Several = Callable[[list[str], list[str], Sequence[str | None], list[str]], list[str]]
"""Takes where vectors of scores are, where their weights come to be, which lanes count (``None``:
all), and what is carried along."""


def functions(level: Level) -> list[Function]:
    """The kernels of a level."""
    made = [weigh("weigh", level.lanes, half=False)]
    return [*made, weigh("weigh_halves", level.lanes, half=True)] if in_pairs(level) else made


def weigh(name: str, lanes: int, half: bool) -> Function:
    """``weights = exp((scores - the largest one) * factor)``; returns their sum.

    A NaN makes the sum NaN; so do scores of which the largest is infinite.

    Args:
        name: Its symbol.
        lanes: Floats of a vector.
        half: Whether weights are bfloat16; their sum is of what they are rounded from.
    """
    return _Softmax(name, lanes, half).function()


class _Softmax:
    def __init__(self, name: str, lanes: int, half: bool) -> None:
        f = self._f = Function(name, PARAMETERS, "float")
        self._lanes, self._half = lanes, half
        self._vector, self._mask = f"<{lanes} x float>", f"<{lanes} x i1>"
        self._formulas = Formulas(f, lanes, rounded=half)
        self._many = f.let(f"udiv i64 %keys, {_MANY * lanes}")
        self._left = f.let(f"urem i64 %keys, {_MANY * lanes}")
        self._few = f.let(f"udiv i64 {f.let(f'add i64 {self._left}, {_FEW * lanes - 1}')}, "
                          f"{_FEW * lanes}")  # fmt: skip

    def function(self) -> Function:
        f, lanes, v = self._f, self._lanes, self._vector
        nothing = f.splat(lanes, "float", _NOTHING)

        def largest(
            places: list[str], _: list[str], masks: Sequence[str | None], tops: list[str]
        ) -> list[str]:
            found = [
                self._or(mask, f.load(v, at), nothing)
                for at, mask in zip(places, masks, strict=True)
            ]
            new = [self._larger(x, top) for x, top in zip(found, tops, strict=False)]
            return [*new, *tops[len(new) :]]

        top = self._joined(self._along(nothing, largest), self._larger)
        distance = lanes // 2
        while distance:  # LLVM would compare one lane after another
            order = ", ".join(f"i32 {lane ^ distance}" for lane in range(lanes))
            swapped = f"shufflevector {v} {top}, {v} poison, <{lanes} x i32> <{order}>"
            top, distance = self._larger(f.let(swapped), top), distance // 2
        factor = f.splat(lanes, "float", "%factor")

        def powers(
            places: list[str], targets: list[str], masks: Sequence[str | None], sums: list[str]
        ) -> list[str]:
            less = [f.let(f"fsub {v} {f.load(v, at)}, {top}") for at in places]
            less = [f.let(f"fmul {v} {x}, {factor}") for x in less]
            found = self._formulas.exp_below_zero(less)
            found = [self._or(m, x, "zeroinitializer") for m, x in zip(masks, found, strict=True)]
            self._store(found, targets)
            new = [self._sum(x, total) for x, total in zip(found, sums, strict=False)]
            return [*new, *sums[len(new) :]]

        total = self._joined(self._along("zeroinitializer", powers), self._sum)
        name = f"@llvm.vector.reduce.fadd.v{lanes}f32"
        f.do(f"ret float {f.let(f'call reassoc float {name}(float 0.0, {v} {total})')}")
        return f

    def _along(self, begin: str, several: _Several) -> list[str]:
        """Goes along the scores; what is carried is a vector for each of those side by side."""
        f, v, lanes, size = self._f, self._vector, self._lanes, 2 if self._half else 4

        def places(at: str, to: str, count: int) -> tuple[list[str], list[str]]:
            ones = [f.at(at, 4 * lanes * i) for i in range(count)]
            return ones, [f.at(to, size * lanes * i) for i in range(count)]

        def whole(_: str, carried: list[str]) -> list[str]:
            at, to, *values = carried
            found = several(*places(at, to, _MANY), [None] * _MANY, values)
            return [f.at(at, 4 * lanes * _MANY), f.at(to, size * lanes * _MANY), *found]

        def part(_: str, carried: list[str]) -> list[str]:
            at, to, left, *values = carried
            masks = column_masks(f, left, lanes, _FEW)
            found = several(*places(at, to, _FEW), masks, values)
            further = [f.at(at, 4 * lanes * _FEW), f.at(to, size * lanes * _FEW)]
            return [*further, f.let(f"sub i64 {left}, {lanes * _FEW}"), *found]

        state = [("ptr", "%scores"), ("ptr", "%weights"), *[(v, begin)] * _MANY]
        at, to, *values = f.loop(self._many, state, whole)
        rest = [("ptr", at), ("ptr", to), ("i64", self._left), *((v, x) for x in values)]
        return f.loop(self._few, rest, part)[3:]

    def _store(self, powers: list[str], targets: list[str]) -> None:
        f = self._f
        if self._half and self._lanes == 16:
            for i in range(0, len(powers), 2):
                both = rounded_pair(f, *powers[i : i + 2])
                f.do(f"store <32 x bfloat> {both}, ptr {targets[i]}, align 2")
            return
        for x, target in zip(powers, targets, strict=True):
            if self._half:
                store_half(f, self._lanes, x, target, None)
            else:
                f.do(f"store {self._vector} {x}, ptr {target}, align 4")

    def _joined(self, values: list[str], join: Callable[[str, str], str]) -> str:
        first, *others = values
        for other in others:
            first = join(other, first)
        return first

    def _sum(self, x: str, y: str) -> str:
        return self._f.let(f"fadd {self._vector} {x}, {y}")

    def _larger(self, x: str, other: str) -> str:
        """The larger ones of two vectors; the other one where x is NaN."""
        return self._or(self._f.let(f"fcmp ogt {self._vector} {x}, {other}"), x, other)

    def _or(self, mask: str | None, yes: str, no: str) -> str:
        """Lanes of one vector where a mask is set, or without one; others are of another."""
        if mask is None:
            return yes
        v = self._vector
        return self._f.let(f"select {self._mask} {mask}, {v} {yes}, {v} {no}")

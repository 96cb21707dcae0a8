"""Activations in vectors, on float32 results of a tile, for what bounds and a gate do not express.

A kernel applies one where the results lie, which are in the first-level cache then. The formulas
are those of `partita_cpu.scalar.math`, but for the quotient where an instruction begins it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from partita.lowering import ActivationCode
from partita_cpu.llvm.epilogue import VECTORS
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store

PARAMETERS = "i64 %rows, ptr %y, i64 %ldy, i64 %columns"
"""How many rows, the first one, bytes from one to the next, and how many columns exist."""

NARROW_PARAMETERS = "i64 %rows, ptr %x, ptr %bias, ptr %y, i64 %ldy, i64 %columns"
"""x: the first of so many rows of a tile of sums, in float32. bias: one number per column, as many
as a tile has. y: where the first row's results go; ldy: bytes to the next one's. columns: how many
exist."""

KERNELS = {
    ActivationCode.SIGMOID: "sigmoid_rows",
    ActivationCode.SILU: "silu_rows",
    ActivationCode.GELU: "gelu_rows",
    ActivationCode.GELU_TANH: "gelu_tanh_rows",
}
"""The kernels by what they apply."""

_LN2_HIGH = 0.693145751953125
_ROUND = 12582912.0
_ROUND_BITS = 0x4B400000
_EXPONENTS = (
    *(0.0013813144760206342, 0.008369418792426586, 0.04166845604777336, 0.16666515171527863),
    0.4999999403953552,
)
"""Of the polynomial of exp, the highest power first; see `partita_cpu.scalar.math`."""

_FEW_EXPONENTS = (0.1656679310823524, 0.5049633168883856, 1.0001642193141946, 0.9999280724659301)
"""The same of exp itself, to 7.5e-5 of it: a quarter of what rounding to bfloat16 leaves."""

EXP2_POWERS = (
    *(0.0001532647293061018, 0.0013390807434916496, 0.009618505835533142),
    *(0.05550359934568405, 0.24022647738456726, 0.6931471824645996, 1.0),
)
"""Of the polynomial that is 2**r to 3e-9 of it for |r| <= 1/2, highest power first."""

FEW_EXP2_POWERS = (0.0551716685295105, 0.2426111400127411, 0.6932609677314758, 0.9999280571937561)
"""The same to 7.5e-5 of it."""

_LOWEST, _LOWEST_EXPONENT = -88.25, -127.0
"""What lies below is taken as this, whose power of two, ``2**-127``, is 0 by its bits."""

_TOGETHER = 3
"""Rows whose vectors are computed side by side; twice as many of those that have one vector."""

TAIL_POWERS = (
    *(-3.027230377483647e-08, 8.885775741873658e-07, -1.1210190677957144e-05),
    *(7.742731395410374e-05, -0.00028146582189947367, 5.900164978811517e-07),
    *(0.006949807982891798, -0.052445441484451294, -0.4592188596725464),
    *(-1.15110445022583, -1.0),
)
"""Of the polynomial that is the logarithm to base 2 of the normal distribution's tail, for what is
above 0, highest power first.

Fitted so that the tail is off by at most 4.2e-9, and up to 5.6 by 1.5e-6 of itself. From there on,
where the tail is below 1.1e-8, the polynomial falls as fast or faster, and is -inf at infinity.
"""

_FEW_TAIL_POWERS = (
    *(-0.00022654712665826082, 0.004787166137248278, -0.04424821957945824),
    *(-0.47027719020843506, -1.1459152698516846, -1.0003900527954102),
)
"""The same for results in bfloat16, off by at most 2.8e-4."""

GELU_CUBIC = 0.044715
GELU_SLOPE = 2 * math.sqrt(2 / math.pi)
"""Of the approximation of Gelu: ``x * sigmoid(slope * (x + cubic * x**3))``."""


def activate_rows(name: str, code: ActivationCode, lanes: int) -> Function:
    """Applies an activation to rows of float32 where they lie.

    Args:
        name: Its symbol.
        code: One of `KERNELS`.
        lanes: Floats of a vector.
    """
    f = Function(name, PARAMETERS)

    def read(at: list[str], i: int, mask: str | None) -> str:
        return masked_load(f, lanes, f.at(at[0], 4 * lanes * i), mask)

    def write(at: list[str], i: int, mask: str | None, x: str) -> None:
        masked_store(f, lanes, x, f.at(at[0], 4 * lanes * i), mask)

    return _of_rows(f, code, lanes, [("%y", "%ldy")], read, write)


def narrow_rows(name: str, code: ActivationCode) -> Function:
    """Adds the bias to rows of a tile of sums, applies an activation and rounds to bfloat16.

    Args:
        name: Its symbol.
        code: One of `KERNELS`.
    """
    lanes = 16
    f = Function(name, NARROW_PARAMETERS)
    vector = f"<{lanes} x float>"
    bias = [f.load(vector, f.at("%bias", 4 * lanes * i)) for i in range(VECTORS)]

    def read(at: list[str], i: int, _: str | None) -> str:
        return f.let(f"fadd {vector} {f.load(vector, f.at(at[0], 4 * lanes * i))}, {bias[i]}")

    def write(at: list[str], i: int, mask: str | None, x: str) -> None:
        store_half(f, lanes, x, f.at(at[1], 2 * lanes * i), mask)

    tile_row = str(4 * lanes * VECTORS)
    return _of_rows(f, code, lanes, [("%x", tile_row), ("%y", "%ldy")], read, write, True)


RUN_PARAMETERS = "ptr %x, i64 %n, ptr %y"
"""x: the first of n bfloat16. y: where results go."""


def activate_halves(name: str, code: ActivationCode) -> Function:
    """Applies an activation to a run of bfloat16.

    Args:
        name: Its symbol.
        code: One of `KERNELS`.
    """
    lanes, together = 16, VECTORS * _TOGETHER
    f = Function(name, RUN_PARAMETERS)
    formulas = Formulas(f, lanes, rounded=True)

    def vectors(count: int, mask: str | None = None) -> _Body:
        def body(_: str, places: list[str]) -> list[str]:
            x, y = places
            found = [load_half(f, lanes, f.at(x, 2 * lanes * i), mask) for i in range(count)]
            for i, value in enumerate(formulas.activated(code, found)):
                store_half(f, lanes, value, f.at(y, 2 * lanes * i), mask)
            return [f.at(place, 2 * lanes * count) for place in places]

        return body

    left = f.let(f"urem i64 %n, {lanes}")
    mask = column_masks(f, left, lanes, 1)[0]
    many = f.let(f"udiv i64 %n, {together * lanes}")
    others = f.let(f"udiv i64 {f.let(f'urem i64 %n, {together * lanes}')}, {lanes}")
    some = f.let(f"zext i1 {f.let(f'icmp ne i64 {left}, 0')} to i64")
    places = ["%x", "%y"]
    for rounds, body in (
        (many, vectors(together)),
        (others, vectors(1)),
        (some, vectors(1, mask)),
    ):
        places = f.loop(rounds, [("ptr", place) for place in places], body)
    f.do("ret void")
    return f


def _of_rows(
    f: Function,
    code: ActivationCode,
    lanes: int,
    rows: Sequence[tuple[str, str]],
    read: Callable[[list[str], int, str | None], str],
    write: Callable[[list[str], int, str | None, str], None],
    rounded: bool = False,
) -> Function:
    """Finishes a kernel: an activation of `%rows` rows of which `%columns` columns exist.

    Args:
        f: The kernel.
        code: One of `KERNELS`.
        lanes: Floats of a vector.
        rows: Where the first row is read, and written, and bytes to the next one.
        read: Called with the places of a row, the number of a vector, and which lanes of it exist
            (``None``: all); returns the vector.
        write: Called with these and what becomes of the vector.
        rounded: As `Formulas` takes it.
    """
    formulas = Formulas(f, lanes, rounded)
    starts = [("ptr", start) for start, _ in rows]

    def together(count: int, masks: Sequence[str | None]) -> _Body:
        """So many rows of a vector for each mask."""

        def body(_: str, at: list[str]) -> list[str]:
            places = [at]
            for _row in range(count):
                places.append(
                    [f.at(place, step) for place, (_, step) in zip(places[-1], rows, strict=True)]
                )
            parts = [(place, i, mask) for place in places[:-1] for i, mask in enumerate(masks)]
            found = formulas.activated(code, [read(*part) for part in parts])
            for x, part in zip(found, parts, strict=True):
                write(*part, x)
            return places[-1]

        return body

    def all_rows(masks: Sequence[str | None]) -> None:
        count = VECTORS * _TOGETHER // len(masks)
        at = f.loop(f.let(f"udiv i64 %rows, {count}"), starts, together(count, masks))
        left = [("ptr", place) for place in at]
        f.loop(f.let(f"urem i64 %rows, {count}"), left, together(1, masks))

    def some_columns() -> None:
        masks = column_masks(f, "%columns", lanes, VECTORS)
        one = f.let(f"icmp sle i64 %columns, {lanes}")
        f.either(one, lambda: all_rows(masks[:1]), lambda: all_rows(masks))

    whole = f.let(f"icmp eq i64 %columns, {VECTORS * lanes}")
    f.either(whole, lambda: all_rows([None] * VECTORS), some_columns)
    f.do("ret void")
    return f


_Body = Callable[[str, list[str]], list[str]]
"""Of a loop: what it carries on from a round to the next."""

_Numbers = str | list[str]
"""A vector for all, or one for each."""


class Formulas:
    """Writes functions of several vectors, step by step.

    Each step of a formula waits for the one before. Steps of several vectors side by side fill that
    time; one vector after another fills a processor's queue with steps that wait.

    Args:
        f: What they are written into.
        lanes: Floats of a vector.
        rounded: Whether results end in bfloat16, for which fewer steps do.
    """

    def __init__(self, f: Function, lanes: int, rounded: bool = False) -> None:
        self._f, self._lanes, self._rounded = f, lanes, rounded
        self._kind, self._mask = f"<{lanes} x float>", f"<{lanes} x i1>"
        self._ints = f"<{lanes} x i32>"

    def activated(self, code: ActivationCode, x: list[str]) -> list[str]:
        """One of `KERNELS`, of vectors."""
        if code is ActivationCode.GELU:
            gate = self._below_normal(x)
        elif code is ActivationCode.GELU_TANH:
            square = self._two("fmul", x, x)
            factor = self._two("fmul", square, self._number(GELU_CUBIC))
            cubic = self._fma(factor, x, x)
            gate = self.sigmoid(self._two("fmul", cubic, self._number(GELU_SLOPE)))
        else:
            gate = self.sigmoid(x)
        return gate if code is ActivationCode.SIGMOID else self._two("fmul", x, gate)

    def _below_normal(self, x: list[str]) -> list[str]:
        """The probability that a number of the normal distribution is below x."""
        size = self._each(lambda a: f"call {self._kind} {self._fabs}({self._kind} {a})", x)
        p = self._polynomial(_FEW_TAIL_POWERS if self._rounded else TAIL_POWERS, size)
        tail = self._exp2_below_zero(p)
        rest = self._two("fsub", self._number(1.0), tail)
        return self._chosen(self._negative(x), tail, rest)

    def sigmoid(self, x: list[str]) -> list[str]:
        """``1 / (1 + exp(-x))``, by ``exp(-|x|)``, which cannot overflow."""
        size = self._each(lambda a: f"call {self._kind} {self._fabs}({self._kind} {a})", x)
        e = self.exp_below_zero(self._each(lambda a: f"fneg {self._kind} {a}", size))
        one = self._number(1.0)
        part = self._chosen(self._negative(x), e, one)
        return self._over(part, self._two("fadd", one, e))

    def exp_below_zero(self, x: _Numbers) -> list[str]:
        """exp(x) for x <= 0: ``2**k * exp(r)`` with ``|r| <= ln(2) / 2``."""
        x = self._at_least(_LOWEST, x)
        shifted = self._fma(x, self._number(1 / math.log(2)), self._number(_ROUND))
        k = self._two("fsub", shifted, self._number(_ROUND))
        if self._rounded:
            r = self._fma(k, self._number(-math.log(2)), x)
            p = self._polynomial(_FEW_EXPONENTS, r)
        else:
            r = self._fma(k, self._number(-_LN2_HIGH), x)
            r = self._fma(k, self._number(-float(np.float32(math.log(2) - _LN2_HIGH))), r)
            p = self._polynomial((*_EXPONENTS, 1.0, 1.0), r)
        return self._times_power(p, shifted)

    def _exp2_below_zero(self, x: _Numbers) -> list[str]:
        """``2**x`` for x <= 0: ``2**k * 2**r`` with ``|r| <= 1 / 2``."""
        x = self._at_least(_LOWEST_EXPONENT, x)
        shifted = self._two("fadd", x, self._number(_ROUND))
        r = self._two("fsub", x, self._two("fsub", shifted, self._number(_ROUND)))
        p = self._polynomial(FEW_EXP2_POWERS if self._rounded else EXP2_POWERS, r)
        return self._times_power(p, shifted)

    def _at_least(self, limit: float, x: _Numbers) -> list[str]:
        """x, or the limit where that is larger; NaN stays."""
        lowest = self._number(limit)
        return self._chosen(self._two("fcmp olt", x, lowest), lowest, x)

    def _times_power(self, p: list[str], shifted: list[str]) -> list[str]:
        """``p * 2**k``, where k is in the low bits of what was shifted by `_ROUND`."""
        bits = self._each(lambda a: f"bitcast {self._kind} {a} to {self._ints}", shifted)
        biased = self._int("add", bits, 127 - _ROUND_BITS)
        power = self._int("shl", biased, 23)
        scale = self._each(lambda a: f"bitcast {self._ints} {a} to {self._kind}", power)
        return self._two("fmul", p, scale)

    def _polynomial(self, factors: Sequence[float], x: list[str]) -> list[str]:
        """Of x, by factors of its powers, the highest first."""
        p: _Numbers = self._number(factors[0])
        for factor in factors[1:]:
            p = self._fma(p, x, self._number(factor))
        return list(p)

    def _over(self, a: list[str], b: list[str]) -> list[str]:
        """``a / b`` for b from 1 to 2.

        AVX-512 divides 16 floats in as many cycles; 14 bits of the inverse by an instruction, a
        step of Newton's and one that corrects the quotient take a third of it.
        """
        v = self._kind
        if self._lanes != 16:
            return self._two("fdiv", a, b)
        inverse = self._each(
            lambda x: f"call {v} {_INVERSE}({v} {x}, {v} zeroinitializer, i16 -1)", b
        )
        if self._rounded:
            return self._two("fmul", a, inverse)
        against = self._each(lambda x: f"fneg {v} {x}", b)
        error = self._fma(against, inverse, self._number(1.0))
        inverse = self._fma(inverse, error, inverse)
        quotient = self._two("fmul", a, inverse)
        return self._fma(self._fma(against, quotient, a), inverse, quotient)

    @property
    def _fabs(self) -> str:
        return f"@llvm.fabs.v{self._lanes}f32"

    def _negative(self, x: list[str]) -> list[str]:
        """Where the sign is set: AVX2 chooses by it without comparing."""
        bits = self._each(lambda a: f"bitcast {self._kind} {a} to {self._ints}", x)
        return self._each(lambda a: f"icmp slt {self._ints} {a}, zeroinitializer", bits)

    def _each(self, expression: Callable[..., str], *operands: _Numbers) -> list[str]:
        """An instruction for each of the vectors."""
        count = max(len(x) for x in operands if isinstance(x, list))
        rows = ([x] * count if isinstance(x, str) else x for x in operands)
        return [self._f.let(expression(*values)) for values in zip(*rows, strict=True)]

    def _two(self, instruction: str, a: _Numbers, b: _Numbers) -> list[str]:
        return self._each(lambda x, y: f"{instruction} {self._kind} {x}, {y}", a, b)

    def _int(self, instruction: str, a: list[str], number: int) -> list[str]:
        same = _all(self._lanes, "i32", number)
        return self._each(lambda x: f"{instruction} {self._ints} {x}, {same}", a)

    def _chosen(self, mask: list[str], yes: _Numbers, no: _Numbers) -> list[str]:
        v, m = self._kind, self._mask
        return self._each(lambda c, a, b: f"select {m} {c}, {v} {a}, {v} {b}", mask, yes, no)

    def _fma(self, a: _Numbers, b: _Numbers, c: _Numbers) -> list[str]:
        v, name = self._kind, f"@llvm.fma.v{self._lanes}f32"
        return self._each(lambda x, y, z: f"call {v} {name}({v} {x}, {v} {y}, {v} {z})", a, b, c)

    def _number(self, value: float) -> str:
        bits = int(np.float64(np.float32(value)).view(np.uint64))  # as LLVM's text has them
        return _all(self._lanes, "float", f"0x{bits:016X}")


def _all(lanes: int, kind: str, value: object) -> str:
    """A constant vector of one number."""
    return "<" + ", ".join([f"{kind} {value}"] * lanes) + ">"


_INVERSE = "@llvm.x86.avx512.rcp14.ps.512"


def declarations(lanes: int) -> str:
    """What the kernels call, beyond those of `masked` and `tiles.fma`."""
    v = f"<{lanes} x float>"
    text = f"declare {v} @llvm.fabs.v{lanes}f32({v})\n"
    return text + (f"declare {v} {_INVERSE}({v}, {v}, i16)\n" if lanes == 16 else "")

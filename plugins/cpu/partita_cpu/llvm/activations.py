"""Activations that bounds and a gate do not express, on the float32 results of a tile.

A kernel applies one where the results lie, which are in the nearest cache then. The formulas are
those of `partita_cpu.scalar.math`, but for the quotient where an instruction begins it.
"""

from __future__ import annotations

import math

import numpy as np

from partita.lowering import ActivationCode
from partita_cpu.llvm.epilogue import VECTORS
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store

PARAMETERS = "i64 %rows, ptr %y, i64 %ldy, i64 %columns"
"""How many rows, the first one, bytes from one to the next, and how many columns exist."""

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

_LOWEST = -87.0
"""Below it exp is taken as 0: its results would be subnormal."""

TAIL_LIMIT = 5.6
"""Beyond it the tail of the normal distribution, below 1.1e-8, is taken as 0."""

TAIL_POWERS = (
    *(1.0311872955526269e-07, -2.56229850492673e-06, 2.517253960832022e-05),
    *(-0.00010391873365733773, -0.00017331251001451164, 0.005010105669498444),
    *(-0.036469604820013046, -0.3182719051837921, -0.7978885173797607, -0.6931471228599548),
)
"""Of the polynomial that is the logarithm of that tail from 0 to the limit, highest power first;
fitted so that the tail is off by at most 2e-8, and by 7e-6 of itself."""

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
    masks = column_masks(f, "%columns", lanes, VECTORS)

    def row(_: str, at: list[str]) -> list[str]:
        for i, mask in enumerate(masks):
            place = f.at(at[0], 4 * lanes * i)
            x = masked_load(f, lanes, place, mask)
            masked_store(f, lanes, _Formulas(f, lanes).activated(code, x), place, mask)
        return [f.at(at[0], "%ldy")]

    f.loop("%rows", [("ptr", "%y")], row)
    f.do("ret void")
    return f


class _Formulas:
    """Writes functions of vectors."""

    def __init__(self, f: Function, lanes: int) -> None:
        self._f, self._lanes = f, lanes
        self._kind, self._mask = f"<{lanes} x float>", f"<{lanes} x i1>"

    def activated(self, code: ActivationCode, x: str) -> str:
        """One of `KERNELS`, of a vector."""
        f, v = self._f, self._kind
        if code is ActivationCode.GELU:
            gate = self._below_normal(x)
        elif code is ActivationCode.GELU_TANH:
            square = f.let(f"fmul {v} {x}, {x}")
            factor = f.let(f"fmul {v} {square}, {self._number(GELU_CUBIC)}")
            cubic = self._fma(factor, x, x)
            gate = self.sigmoid(f.let(f"fmul {v} {cubic}, {self._number(GELU_SLOPE)}"))
        else:
            gate = self.sigmoid(x)
        return gate if code is ActivationCode.SIGMOID else f.let(f"fmul {v} {x}, {gate}")

    def _below_normal(self, x: str) -> str:
        """The probability that a number of the normal distribution is below x."""
        f, v = self._f, self._kind
        size = f.let(f"call {v} @llvm.fabs.v{self._lanes}f32({v} {x})")
        p = self._number(TAIL_POWERS[0])
        for factor in TAIL_POWERS[1:]:
            p = self._fma(p, size, self._number(factor))
        far = f.let(f"fcmp ogt {v} {size}, {self._number(TAIL_LIMIT)}")
        near = self._exp_below_zero(p)
        tail = f.let(f"select {self._mask} {far}, {v} zeroinitializer, {v} {near}")
        above = f.let(f"fcmp oge {v} {x}, zeroinitializer")
        rest = f.let(f"fsub {v} {self._number(1.0)}, {tail}")
        return f.let(f"select {self._mask} {above}, {v} {rest}, {v} {tail}")

    def sigmoid(self, x: str) -> str:
        """``1 / (1 + exp(-x))``, by ``exp(-|x|)``, which cannot overflow."""
        f, v = self._f, self._kind
        size = f.let(f"call {v} @llvm.fabs.v{self._lanes}f32({v} {x})")
        e = self._exp_below_zero(f.let(f"fneg {v} {size}"))
        one = self._number(1.0)
        above = f.let(f"fcmp oge {v} {x}, zeroinitializer")
        part = f.let(f"select {self._mask} {above}, {v} {one}, {v} {e}")
        return self._over(part, f.let(f"fadd {v} {one}, {e}"))

    def _exp_below_zero(self, x: str) -> str:
        """exp(x) for x <= 0: ``2**k * exp(r)`` with ``|r| <= ln(2) / 2``."""
        f, v, ints = self._f, self._kind, f"<{self._lanes} x i32>"
        tiny = f.let(f"fcmp olt {v} {x}, {self._number(_LOWEST)}")
        x = f.let(f"select {self._mask} {tiny}, {v} {self._number(_LOWEST)}, {v} {x}")
        shifted = self._fma(x, self._number(1 / math.log(2)), self._number(_ROUND))
        k = f.let(f"fsub {v} {shifted}, {self._number(_ROUND)}")
        r = self._fma(k, self._number(-_LN2_HIGH), x)
        r = self._fma(k, self._number(-float(np.float32(math.log(2) - _LN2_HIGH))), r)
        p = self._number(_EXPONENTS[0])
        for factor in _EXPONENTS[1:]:
            p = self._fma(p, r, self._number(factor))
        p = self._fma(f.let(f"fmul {v} {p}, {r}"), r, r)
        p = f.let(f"fadd {v} {p}, {self._number(1.0)}")
        bits = f.let(f"bitcast {v} {shifted} to {ints}")
        biased = f.let(f"add {ints} {bits}, {_all(self._lanes, 'i32', 127 - _ROUND_BITS)}")
        power = f.let(f"shl {ints} {biased}, {_all(self._lanes, 'i32', 23)}")
        y = f.let(f"fmul {v} {p}, {f.let(f'bitcast {ints} {power} to {v}')}")
        return f.let(f"select {self._mask} {tiny}, {v} zeroinitializer, {v} {y}")

    def _over(self, a: str, b: str) -> str:
        """``a / b`` for b from 1 to 2.

        AVX-512 divides 16 floats in as many cycles; 14 bits of the inverse by an instruction, a
        step of Newton's and one that corrects the quotient take a third of it.
        """
        f, v = self._f, self._kind
        if self._lanes != 16:
            return f.let(f"fdiv {v} {a}, {b}")
        inverse = f.let(f"call {v} {_INVERSE}({v} {b}, {v} zeroinitializer, i16 -1)")
        against = f.let(f"fneg {v} {b}")
        error = self._fma(against, inverse, self._number(1.0))
        inverse = self._fma(inverse, error, inverse)
        quotient = f.let(f"fmul {v} {a}, {inverse}")
        return self._fma(self._fma(against, quotient, a), inverse, quotient)

    def _fma(self, a: str, b: str, c: str) -> str:
        v = self._kind
        return self._f.let(f"call {v} @llvm.fma.v{self._lanes}f32({v} {a}, {v} {b}, {v} {c})")

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

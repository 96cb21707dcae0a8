"""Mathematical functions of one element, and operators that hand their input on."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import Kernel, emit_map, mapped, mapped_with
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, BOOL, INTS, kernel
from partita_cpu.scalar.instructions import ceil, floor, like, round_even, sqrt
from partita_cpu.scalar.math import SINE_LIMIT, cosine_below_limit, erf, exp, log, sine_below_limit


@register_jitable
def reciprocal(x: Any) -> Any:
    """``1 / x``."""
    return like(x, 1) / x


@register_jitable
def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN stays."""
    zero = like(x, 0)
    return like(x, x > zero) - like(x, x < zero) if x == x else x


@register_jitable
def sign_unsigned(x: Any) -> Any:
    """0 or 1."""
    return x > like(x, 0)


@register_jitable
def is_nan(x: Any) -> Any:
    """Whether x is not a number."""
    return x != x


@register_jitable
def is_infinite(x: Any, negative: Any, positive: Any) -> Any:
    """Whether x is an infinity of a sign that is asked for."""
    infinity = like(x, np.inf)
    return (negative and x == -infinity) or (positive and x == infinity)


def _periodic(below_limit: Any, exact: Any) -> Kernel:
    """The float32 kernel of sine or cosine: a vector loop, then the few huge arguments again."""

    def periodic(x: Any, y: Any, tid: int, nt: int) -> None:
        start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
        source, target = x[start:stop], y[start:stop]
        for i in range(target.size):
            target[i] = below_limit(source[i])
        for i in range(target.size):
            if abs(source[i]) > SINE_LIMIT:
                target[i] = exact(source[i])

    periodic.__name__ = periodic.__qualname__ = f"periodic_{below_limit.__name__}"
    return loop(periodic)


_FLOAT = {
    "Sqrt": mapped(sqrt),
    "Exp": mapped(exp),
    "Log": mapped(log),
    "Erf": mapped(erf),
    "Reciprocal": mapped(reciprocal),
    "Floor": mapped(floor),
    "Ceil": mapped(ceil),
    "Round": mapped(round_even),
    "Tan": mapped(np.tan),
    "Asin": mapped(np.arcsin),
    "Acos": mapped(np.arccos),
    "Atan": mapped(np.arctan),
    "Sinh": mapped(np.sinh),
    "Cosh": mapped(np.cosh),
    "Asinh": mapped(np.arcsinh),
    "Acosh": mapped(np.arccosh),
    "Atanh": mapped(np.arctanh),
}
_PERIODIC = {
    "Sin": (_periodic(sine_below_limit, np.sin), mapped(np.sin)),
    "Cos": (_periodic(cosine_below_limit, np.cos), mapped(np.cos)),
}
_absolute, _negative = mapped(abs), mapped(operator.neg)
_sign, _sign_unsigned = mapped(sign), mapped(sign_unsigned)
_is_nan, _is_infinite = mapped(is_nan), mapped_with(is_infinite)
_negation, _complement = mapped(operator.not_), mapped(operator.invert)


@kernel(*_FLOAT, dtypes=ALL_FLOATS)
@through_float32
def float_function(b: Builder, node: Node, x: Operand) -> Operand:
    """Functions of a real number."""
    return emit_map(b, _FLOAT[node.op_type], x)


@kernel("Sin", "Cos", dtypes=ALL_FLOATS)
@through_float32
def periodic_function(b: Builder, node: Node, x: Operand) -> Operand:
    """Sine and cosine."""
    single, double = _PERIODIC[node.op_type]
    return emit_map(b, single if x.dtype == np.float32 else double, x)


@kernel("Abs", "Neg", "Sign", dtypes=ALL_FLOATS | INTS)
@through_float32
def signed_function(b: Builder, node: Node, x: Operand) -> Operand:
    """Abs, Neg and Sign."""
    if x.dtype.kind == "u" and node.op_type == "Abs":
        return x
    if node.op_type == "Sign":
        return emit_map(b, _sign_unsigned if x.dtype.kind == "u" else _sign, x)
    return emit_map(b, _absolute if node.op_type == "Abs" else _negative, x)


@kernel("IsNaN", dtypes=ALL_FLOATS)
@through_float32
def emit_is_nan(b: Builder, node: Node, x: Operand) -> Operand:
    """Where x is not a number."""
    return emit_map(b, _is_nan, x, np.bool_)


@kernel("IsInf", dtypes=ALL_FLOATS)
@through_float32
def emit_is_infinite(b: Builder, node: Node, x: Operand) -> Operand:
    """Where x is infinite, of either sign or of one."""
    below = bool(node.attrs.get("detect_negative", 1))
    above = bool(node.attrs.get("detect_positive", 1))
    return emit_map(b, _is_infinite, x, np.bool_, below, above)


@kernel("Not", dtypes=BOOL)
def logical_not(b: Builder, node: Node, x: Operand) -> Operand:
    """Logical not."""
    return emit_map(b, _negation, x)


@kernel("BitwiseNot", dtypes=INTS)
def bitwise_not(b: Builder, node: Node, x: Operand) -> Operand:
    """Bitwise not."""
    return emit_map(b, _complement, x)


@kernel("Identity", dtypes={})
def identity(b: Builder, node: Node, x: Operand) -> Operand:
    """The input itself."""
    return x

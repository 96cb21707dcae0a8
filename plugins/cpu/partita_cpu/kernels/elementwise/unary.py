"""Mathematical functions of one element, and operators that hand their input on."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import Kernel, emit_map, mapped, mapped_with
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, BOOL, INTS, kernel
from partita_cpu.scalar.math import (
    SINE_LIMIT,
    ceil,
    cosine_below_limit,
    erf,
    exp,
    floor,
    like,
    log,
    round_even,
    sine_below_limit,
    sqrt,
)


@register_jitable
def absolute(x: Any) -> Any:
    """``|x|``; the least integer stays itself."""
    return abs(x)


@register_jitable
def negative(x: Any) -> Any:
    """``-x``."""
    return -x


@register_jitable
def reciprocal(x: Any) -> Any:
    """``1 / x``."""
    return like(x, 1) / x


@register_jitable
def square_root(x: Any) -> Any:
    """``sqrt(x)``."""
    return sqrt(x)


@register_jitable
def round_down(x: Any) -> Any:
    """``floor(x)``."""
    return floor(x)


@register_jitable
def round_up(x: Any) -> Any:
    """``ceil(x)``."""
    return ceil(x)


@register_jitable
def round_nearest(x: Any) -> Any:
    """The nearest whole number, ties to even."""
    return round_even(x)


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
def exponential(x: Any) -> Any:
    """``exp(x)``."""
    return exp(x)


@register_jitable
def logarithm(x: Any) -> Any:
    """``log(x)``."""
    return log(x)


@register_jitable
def error_function(x: Any) -> Any:
    """``erf(x)``."""
    return erf(x)


@register_jitable
def tangent(x: Any) -> Any:
    """``tan(x)``."""
    return np.tan(x)


@register_jitable
def arc_sine(x: Any) -> Any:
    """``asin(x)``."""
    return np.arcsin(x)


@register_jitable
def arc_cosine(x: Any) -> Any:
    """``acos(x)``."""
    return np.arccos(x)


@register_jitable
def arc_tangent(x: Any) -> Any:
    """``atan(x)``."""
    return np.arctan(x)


@register_jitable
def hyperbolic_sine(x: Any) -> Any:
    """``sinh(x)``."""
    return np.sinh(x)


@register_jitable
def hyperbolic_cosine(x: Any) -> Any:
    """``cosh(x)``."""
    return np.cosh(x)


@register_jitable
def area_sine(x: Any) -> Any:
    """``asinh(x)``."""
    return np.arcsinh(x)


@register_jitable
def area_cosine(x: Any) -> Any:
    """``acosh(x)``."""
    return np.arccosh(x)


@register_jitable
def area_tangent(x: Any) -> Any:
    """``atanh(x)``."""
    return np.arctanh(x)


@register_jitable
def is_nan(x: Any) -> Any:
    """Whether x is not a number."""
    return x != x


@register_jitable
def is_infinite(x: Any, negative: Any, positive: Any) -> Any:
    """Whether x is an infinity of a sign that is asked for."""
    infinity = like(x, np.inf)
    return (negative and x == -infinity) or (positive and x == infinity)


@register_jitable
def negation(x: Any) -> Any:
    """Logical not."""
    return not x


@register_jitable
def complement(x: Any) -> Any:
    """Bitwise not."""
    return ~x


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


@register_jitable
def _sine(x: Any) -> Any:
    return np.sin(x)


@register_jitable
def _cosine(x: Any) -> Any:
    return np.cos(x)


_FLOAT = {
    "Sqrt": mapped(square_root),
    "Exp": mapped(exponential),
    "Log": mapped(logarithm),
    "Erf": mapped(error_function),
    "Reciprocal": mapped(reciprocal),
    "Floor": mapped(round_down),
    "Ceil": mapped(round_up),
    "Round": mapped(round_nearest),
    "Tan": mapped(tangent),
    "Asin": mapped(arc_sine),
    "Acos": mapped(arc_cosine),
    "Atan": mapped(arc_tangent),
    "Sinh": mapped(hyperbolic_sine),
    "Cosh": mapped(hyperbolic_cosine),
    "Asinh": mapped(area_sine),
    "Acosh": mapped(area_cosine),
    "Atanh": mapped(area_tangent),
}
_PERIODIC = {
    "Sin": (_periodic(sine_below_limit, _sine), mapped(_sine)),
    "Cos": (_periodic(cosine_below_limit, _cosine), mapped(_cosine)),
}
_absolute, _negative = mapped(absolute), mapped(negative)
_sign, _sign_unsigned = mapped(sign), mapped(sign_unsigned)
_is_nan, _is_infinite = mapped(is_nan), mapped_with(is_infinite)
_negation, _complement = mapped(negation), mapped(complement)


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

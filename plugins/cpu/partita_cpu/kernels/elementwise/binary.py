"""Operators of two elements, and of several by repetition, with broadcasting."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita_cpu.jit.deferred_numba import intrinsic, overload, register_jitable, types
from partita_cpu.kernels.elementwise.broadcast_loops import (
    Kernel,
    broadcast,
    broadcast_shape,
    emit_broadcast,
    emit_map,
    mapped,
)
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.elementwise.combined_rows import emit_combined
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, BOOL, INTS, kernel
from partita_cpu.scalar.instructions import like, maximum, minimum, sqrt

ARITHMETIC = ALL_FLOATS | INTS


def _integer_instruction(name: str) -> Any:
    """``sdiv``, ``udiv``, ``srem`` or ``urem`` of integers of one type."""

    def typed(typing_context: Any, a: Any, b: Any) -> Any:
        del typing_context, b

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            del context, signature
            return getattr(builder, ("s" if a.signed else "u") + name)(*values)

        return a(a, a), generate

    return intrinsic(typed)


_quotient = _integer_instruction("div")
_remainder = _integer_instruction("rem")


@register_jitable
def divide_integers(a: Any, b: Any) -> Any:
    """Integer division towards zero; 0 where the divisor is 0 (the processor would trap)."""
    one = like(a, 1)
    # The least integer divided by -1 traps too; negation wraps.
    unsafe = b == like(b, 0) or like(b, b + one) == like(b, 0)
    result = _quotient(a, one if unsafe else b)
    if not unsafe:
        return result
    return like(a, 0) if b == like(b, 0) else like(a, like(a, 0) - a)


@register_jitable
def remainder_integers(a: Any, b: Any) -> Any:
    """What `divide_integers` leaves; has the sign of ``a``."""
    one = like(a, 1)
    unsafe = b == like(b, 0) or like(b, b + one) == like(b, 0)
    result = _remainder(a, one if unsafe else b)
    return like(a, 0) if unsafe else result


@register_jitable
def modulo_integers(a: Any, b: Any) -> Any:
    """The remainder with the sign of ``b``, as Python has it."""
    zero = like(a, 0)
    rest = remainder_integers(a, b)
    return like(a, rest + b) if rest != zero and (rest < zero) != (b < zero) else rest


@register_jitable
def modulo_unsigned(a: Any, b: Any) -> Any:
    """The remainder of unsigned integers; 0 where the divisor is 0."""
    zero = like(a, 0)
    return zero if b == zero else _remainder(a, like(a, 1) if b == zero else b)


@register_jitable
def divide_unsigned(a: Any, b: Any) -> Any:
    """The quotient of unsigned integers; 0 where the divisor is 0."""
    zero = like(a, 0)
    return zero if b == zero else _quotient(a, like(a, 1) if b == zero else b)


@register_jitable
def modulo_float(a: Any, b: Any) -> Any:
    """The float remainder with the sign of ``b``."""
    rest = np.fmod(a, b)
    return rest + b if rest != 0 and (rest < 0) != (b < 0) else rest


@register_jitable
def power_integers(a: Any, b: Any) -> Any:
    """A power of integers, which wraps; with a negative exponent, the quotient towards zero."""
    zero, one = like(a, 0), like(a, 1)
    result, base, rest = one, a, np.uint64(b)
    if b < like(b, 0):  # only powers of 1 and -1 are no fractions
        whole = a == one or (a < zero and like(a, a + one) == zero)
        base = a if whole else zero
        result, rest = like(a, base * base), np.uint64(b & like(b, 1))
    while rest != np.uint64(0):
        if rest & np.uint64(1) != np.uint64(0):
            result = like(a, result * base)
        base = like(a, base * base)
        rest = rest >> np.uint64(1)
    return result


@register_jitable
def power_of_integer(a: Any, b: Any) -> Any:
    """A power of an integer whose exponent is none, computed in float64 as onnxruntime does."""
    return np.int64(np.float64(a) ** np.float64(b))


@register_jitable
def square(x: Any) -> Any:
    """``x ** 2``."""
    return x * x


@register_jitable
def cube(x: Any) -> Any:
    """``x ** 3``."""
    return x * x * x


@register_jitable
def power_half(x: Any) -> Any:
    """``x ** 0.5``: as sqrt, but positive for -0 and -inf."""
    infinity = like(x, np.inf)
    return infinity if x == -infinity else sqrt(x + like(x, 0))


def larger(a: Any, b: Any) -> Any:
    """The larger one; NaN if either is NaN."""
    return max(a, b)


def smaller(a: Any, b: Any) -> Any:
    """The smaller one; NaN if either is NaN."""
    return min(a, b)


def _larger_float(a: Any, b: Any) -> Any:
    return maximum(a, b)


def _larger_integer(a: Any, b: Any) -> Any:
    return a if a > b else b


def _smaller_float(a: Any, b: Any) -> Any:
    return minimum(a, b)


def _smaller_integer(a: Any, b: Any) -> Any:
    return a if a < b else b


@overload(larger)
def _larger(a: Any, b: Any) -> Any:
    return _larger_float if isinstance(a, types.Float) else _larger_integer


@overload(smaller)
def _smaller(a: Any, b: Any) -> Any:
    return _smaller_float if isinstance(a, types.Float) else _smaller_integer


@register_jitable
def shift_left(a: Any, b: Any) -> Any:
    """``a << b``; 0 when all bits leave."""
    return like(a, 0) if b >= like(b, 64) else like(a, np.uint64(a) << np.uint64(b))


@register_jitable
def shift_right(a: Any, b: Any) -> Any:
    """``a >> b``; 0 when all bits leave."""
    return like(a, 0) if b >= like(b, 64) else like(a, np.uint64(a) >> np.uint64(b))


@register_jitable
def shift_left_signed(a: Any, b: Any) -> Any:
    """``a << b``; 0 when all bits leave, or when there are fewer than none to shift by."""
    return like(a, 0) if b < 0 or b >= 64 else like(a, np.int64(a) << np.int64(b))


@register_jitable
def shift_right_signed(a: Any, b: Any) -> Any:
    """``a >> b``; only the sign is left of shifts by more bits than there are, or by < 0."""
    return like(a, np.int64(a) >> np.int64(63 if b < 0 or b >= 64 else b))


_add, _divide = broadcast(operator.add), broadcast(operator.truediv)
_divide_integers, _divide_unsigned = broadcast(divide_integers), broadcast(divide_unsigned)
_power, _power_integers = broadcast(operator.pow), broadcast(power_integers)
_power_of_integer = broadcast(power_of_integer)
_POWERS = {2.0: mapped(square), 3.0: mapped(cube), 0.5: mapped(power_half)}
_ARITHMETIC = {"Add": _add, "Sub": broadcast(operator.sub), "Mul": broadcast(operator.mul)}
_VARIADIC = {"Max": broadcast(larger), "Min": broadcast(smaller), "Sum": _add, "Mean": _add}
_greater, _greater_equal = broadcast(operator.gt), broadcast(operator.ge)
_COMPARISON = {
    "Equal": (broadcast(operator.eq), False),
    "Greater": (_greater, False),
    "GreaterOrEqual": (_greater_equal, False),
    "Less": (_greater, True),
    "LessOrEqual": (_greater_equal, True),
}
_VERBS = {
    _add: "add",
    _divide: "div",
    _ARITHMETIC["Sub"]: "sub",
    _ARITHMETIC["Mul"]: "mul",
    _greater: "greater",
    _greater_equal: "greater_equal",
    _COMPARISON["Equal"][0]: "equal",
}
"""What kernels of rows compute, too."""

_and, _or, _xor = (broadcast(f) for f in (operator.and_, operator.or_, operator.xor))
_LOGIC = {"And": _and, "Or": _or, "Xor": _xor}
_BITWISE = {"BitwiseAnd": _and, "BitwiseOr": _or, "BitwiseXor": _xor}
_SHIFT = {
    ("LEFT", "u"): broadcast(shift_left),
    ("LEFT", "i"): broadcast(shift_left_signed),
    ("RIGHT", "u"): broadcast(shift_right),
    ("RIGHT", "i"): broadcast(shift_right_signed),
}
_MODULO: dict[tuple[str, bool], Kernel] = {
    ("f", False): broadcast(modulo_float),
    ("f", True): broadcast(np.fmod),
    ("i", False): broadcast(modulo_integers),
    ("i", True): broadcast(remainder_integers),
    ("u", False): broadcast(modulo_unsigned),
}
_MODULO["u", True] = _MODULO["u", False]


def _binary(b: Builder, function: Kernel, x: Operand, y: Operand, dtype: Any = None) -> Operand:
    result = b.empty(broadcast_shape(b, [x, y]), x.dtype if dtype is None else dtype)
    verb = _VERBS.get(function)
    if verb is None or not emit_combined(b, verb, (x, y), result):
        emit_broadcast(b, function, [x, y], result)
    return result


@kernel("Add", "Sub", "Mul", dtypes=ARITHMETIC, since=7)
@through_float32
def arithmetic(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Sum, difference and product; integers wrap."""
    return _binary(b, _ARITHMETIC[node.op_type], x, y)


def _divider(x: Operand) -> Kernel:
    return {"f": _divide, "i": _divide_integers, "u": _divide_unsigned}[x.dtype.kind]


@kernel("Div", dtypes=ARITHMETIC, since=7)
@through_float32
def emit_divide(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Quotient; integers are divided towards zero."""
    return _binary(b, _divider(x), x, y)


@kernel("Mod", dtypes=ARITHMETIC)
@through_float32
def modulo(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Remainder with the sign of the divisor, or with ``fmod`` of the dividend."""
    return _binary(b, _MODULO[x.dtype.kind, bool(node.attrs.get("fmod", 0))], x, y)


@kernel("Pow", dtypes=ARITHMETIC, since=7)
@through_float32
def emit_power(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Power; the exponent may be of another type."""
    if x.dtype.kind == "f":
        known = _POWERS.get(float(y.const.item())) if y.const is not None and y.size == 1 else None
        if known is not None and len(y.shape) <= len(x.shape):
            return emit_map(b, known, x)
        return _binary(b, _power, x, emit_cast(b, y, x.dtype))
    return _binary(b, _power_integers if y.dtype.kind in "iu" else _power_of_integer, x, y)


@kernel("Max", "Min", "Sum", "Mean", dtypes=ARITHMETIC, since=8)
@kernel("Max", "Min", "Sum", "Mean", dtypes=ALL_FLOATS, since=6, until=7)
@through_float32
def variadic(b: Builder, node: Node, first: Operand, *others: Operand) -> Operand:
    """Maximum, minimum, sum and mean of any number of tensors."""
    result = first
    for other in others:
        result = _binary(b, _VARIADIC[node.op_type], result, other)
    if node.op_type == "Mean" and others:
        count = b.constant(np.full((), len(others) + 1, first.dtype))
        result = _binary(b, _divider(result), result, count)
    return result


@kernel(*_COMPARISON, dtypes=ARITHMETIC | BOOL, since=7)
@through_float32
def comparison(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Comparisons; false where an operand is NaN."""
    function, swapped = _COMPARISON[node.op_type]
    return _binary(b, function, *((y, x) if swapped else (x, y)), np.bool_)


@kernel("And", "Or", "Xor", dtypes=BOOL, since=7)
def logic(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Logical connectives."""
    return _binary(b, _LOGIC[node.op_type], x, y)


@kernel("BitwiseAnd", "BitwiseOr", "BitwiseXor", dtypes=INTS)
def bitwise(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Bitwise connectives."""
    return _binary(b, _BITWISE[node.op_type], x, y)


@kernel("BitShift", dtypes=INTS)
def bit_shift(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Shift by a number of bits; to the right, signs stay."""
    return _binary(b, _SHIFT[node.attrs["direction"], x.dtype.kind], x, y)

"""Operators that compute each element by itself: arithmetic, comparisons, activations, types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.tflite.translator import Site, translates
from partita.frontends.tflite.weights import element_type

if TYPE_CHECKING:
    import onnx_ir as ir

_UNARY = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "ELU": "Elu",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "HARD_SWISH": "HardSwish",
    "LOG": "Log",
    "LOGICAL_NOT": "Not",
    "LOGISTIC": "Sigmoid",
    "NEG": "Neg",
    "ROUND": "Round",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "TANH": "Tanh",
}
"""Operators of one input that ONNX has too."""

_BINARY = {
    "ADD": "Add",
    "BITWISE_XOR": "BitwiseXor",
    "DIV": "Div",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "MUL": "Mul",
    "POW": "Pow",
    "SUB": "Sub",
}
"""Operators of two inputs that ONNX has too, some with an activation behind them."""

_COMPARISONS = {
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
}

_LIMITS: dict[str, tuple[float, float | None]] = {
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_0_TO_1": (0.0, 1.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}


@translates(*_UNARY)
def unary(at: Site) -> ir.Value:
    """An operator that ONNX has as it is."""
    return at.result(at.emit(_UNARY[at.operator.code], at.floats(0)))


@translates(*_BINARY)
def binary(at: Site) -> ir.Value:
    """Two inputs, broadcast as numpy does; an activation may follow."""
    value = at.emit(_BINARY[at.operator.code], at.floats(0), at.floats(1))
    if at.operator.code in ("ADD", "SUB", "MUL", "DIV"):
        value = at.activated(value)
    return at.result(value)


@translates(*_COMPARISONS)
def comparison(at: Site) -> ir.Value:
    """Which of two numbers is more."""
    return at.emit(_COMPARISONS[at.operator.code], at.floats(0), at.floats(1))


@translates("NOT_EQUAL")
def not_equal(at: Site) -> ir.Value:
    """Whether two numbers differ."""
    return at.emit("Not", at.emit("Equal", at.floats(0), at.floats(1)))


@translates("MAXIMUM", "MINIMUM")
def extreme(at: Site) -> ir.Value:
    """The larger or smaller of two numbers."""
    op_type = {"MAXIMUM": "Max", "MINIMUM": "Min"}[at.operator.code]
    return at.carried(lambda values: at.emit(op_type, *values), (0, 1))


@translates("ADD_N")
def add_n(at: Site) -> ir.Value:
    """The sum of all inputs."""
    value = at.floats(0)
    for index in range(1, len(at.inputs)):
        value = at.emit("Add", value, at.floats(index))
    return at.result(value)


@translates("FLOOR_DIV")
def floor_div(at: Site) -> ir.Value:
    """The quotient, rounded down."""
    a, b = at.floats(0), at.floats(1)
    if at.is_float(0):
        return at.result(at.emit("Floor", at.emit("Div", a, b)))
    return at.emit("Div", at.emit("Sub", a, at.emit("Mod", a, b)), b)


@translates("FLOOR_MOD")
def floor_mod(at: Site) -> ir.Value:
    """The remainder, with the sign of the divisor."""
    a, b = at.floats(0), at.floats(1)
    if not at.is_float(0):
        return at.emit("Mod", a, b)
    rest = at.emit("Mod", a, b, fmod=1)
    zero = at.const(0, np.float32)
    other = at.emit("Less", at.emit("Mul", rest, b), zero)
    return at.result(at.emit("Where", other, at.emit("Add", rest, b), rest))


@translates("SQUARED_DIFFERENCE")
def squared_difference(at: Site) -> ir.Value:
    """The square of the difference."""
    difference = at.emit("Sub", at.floats(0), at.floats(1))
    return at.result(at.emit("Mul", difference, difference))


@translates("SQUARE")
def square(at: Site) -> ir.Value:
    """The number times itself."""
    return at.result(at.emit("Mul", at.floats(0), at.floats(0)))


@translates("RSQRT")
def rsqrt(at: Site) -> ir.Value:
    """One by the square root."""
    return at.result(at.emit("Reciprocal", at.emit("Sqrt", at.floats(0))))


@translates(*_LIMITS)
def limited(at: Site) -> ir.Value:
    """Numbers between bounds."""
    low, high = _LIMITS[at.operator.code]
    if at.same_levels([0]) and at.levels(at.target()) is not None:
        return _limited_levels(at, low, high)
    return at.result(at.bounded(at.floats(0), low, high))


def _limited_levels(at: Site, low: float, high: float | None) -> ir.Value:
    """The levels between those of the bounds."""
    found, dtype = at.levels(at.target()), at.dtype(at.target())
    if found is None or found.scale.size > 1 or not found.scale[0]:
        raise at.error("it has a scale for each index of an axis")
    limits = np.iinfo(dtype)
    ends = [
        None
        if end is None
        else at.const(
            np.clip(
                found.zero_point[0] + round(end / float(found.scale[0])), limits.min, limits.max
            ),
            dtype,
        )
        for end in (low, high)
    ]
    return at.emit("Clip", at.value(0), *ends)


@translates("LEAKY_RELU")
def leaky_relu(at: Site) -> ir.Value:
    """A slope below zero."""
    return at.result(at.emit("LeakyRelu", at.floats(0), alpha=at.real("Alpha")))


@translates("PRELU")
def prelu(at: Site) -> ir.Value:
    """A slope below zero for each channel, or element."""
    return at.result(at.emit("PRelu", at.floats(0), at.floats(1)))


@translates("GELU")
def gelu(at: Site) -> ir.Value:
    """Gaussian error linear unit."""
    form = "tanh" if at.flag("Approximate", False) else "none"
    return at.result(at.emit("Gelu", at.floats(0), approximate=form))


@translates("CAST")
def cast(at: Site) -> ir.Value:
    """Another element type; levels stay the numbers that they are."""
    return at.cast(at.value(0), element_type(at.target().type, at.target()))


@translates("QUANTIZE")
def quantize(at: Site) -> ir.Value:
    """Floats, or levels of another scale, as levels."""
    if at.levels(at.target()) is None:
        raise at.error(f"{at.target()} has no scale")
    return at.result(at.floats(0))


@translates("DEQUANTIZE")
def dequantize(at: Site) -> ir.Value:
    """Levels, or float16, as floats; a constant of float16 is turned when it is asked for."""
    if at.levels(at.tensor(0)) is not None:
        return at.floats(0)
    return at.cast(at.value(0), element_type(at.target().type, at.target()))


@translates("DENSIFY")
def densify(at: Site) -> ir.Value:
    """A sparse constant, which has all its elements when it is read."""
    at.known(0)
    return at.value(0)


@translates("FAKE_QUANT")
def fake_quant(at: Site) -> ir.Value:
    """Floats rounded to levels between bounds, of which zero is one."""
    low, high, bits = at.real("Min"), at.real("Max"), at.integer("NumBits", 8)
    if not 2 <= bits <= 16 or not low <= 0 <= high or low == high:
        raise at.error(f"bounds {low} and {high} with {bits} bits cannot be used")
    first = 1 if at.flag("NarrowRange", False) else 0
    last = (1 << bits) - 1
    scale = (high - low) / (last - first)
    zero = int(np.clip(np.floor(first - low / scale + 0.5), first, last))
    low, high = (first - zero) * scale, (last - zero) * scale
    bounded = at.emit("Clip", at.value(0), at.const(low, np.float32), at.const(high, np.float32))
    shifted = at.emit("Sub", bounded, at.const(low, np.float32))
    steps = at.emit("Mul", shifted, at.const(1 / scale, np.float32))
    level = at.emit("Floor", at.emit("Add", steps, at.const(0.5, np.float32)))
    back = at.emit("Mul", level, at.const(scale, np.float32))
    return at.emit("Add", back, at.const(low, np.float32))


@translates("SELECT")
def select(at: Site) -> ir.Value:
    """Elements of one or the other; a row of conditions picks whole entries of the first axis."""
    condition = at.value(0)
    if at.rank(0) == 1 and at.rank(1) > 1:
        condition = at.reshaped(condition, [-1, *[1] * (at.rank(1) - 1)])
    return at.carried(lambda values: at.emit("Where", condition, *values), (1, 2))


@translates("SELECT_V2")
def select_v2(at: Site) -> ir.Value:
    """Elements of one or the other, broadcast as numpy does."""
    return at.carried(lambda values: at.emit("Where", at.value(0), *values), (1, 2))


@translates("ZEROS_LIKE")
def zeros_like(at: Site) -> ir.Value:
    """Zeros in the shape of the input."""
    zero = at.const(0, at.dtype(at.target()))
    return at.emit("Expand", zero, at.emit("Shape", at.value(0)))


@translates("FILL")
def fill(at: Site) -> ir.Value:
    """One number in a given shape."""
    return at.emit("Expand", at.value(1), at.indices(0))


@translates("RANGE")
def range_(at: Site) -> ir.Value:
    """Numbers from one to another in steps."""
    ends = [at.reshaped(at.value(index), []) for index in range(3)]
    return at.emit("Range", *ends)


@translates("CUMSUM")
def cumsum(at: Site) -> ir.Value:
    """Sums of what stands before along an axis."""
    exclusive, backward = at.flag("Exclusive", False), at.flag("Reverse", False)
    axis = at.reshaped(at.indices(1), [])
    total = at.emit("CumSum", at.floats(0), axis, exclusive=int(exclusive), reverse=int(backward))
    return at.result(total)


@translates("ATAN2")
def atan2(at: Site) -> ir.Value:
    """The angle of a point, from its height and its place along the first axis."""
    y, x = at.floats(0), at.floats(1)
    zero, turn = at.const(0, np.float32), at.const(np.pi, np.float32)
    half = at.emit("Mul", at.emit("Sign", y), at.const(np.pi / 2, np.float32))
    below = at.emit("Where", at.emit("Less", y, zero), at.emit("Neg", turn), turn)
    behind = at.emit("Where", at.emit("Less", x, zero), below, zero)
    angle = at.emit("Add", at.emit("Atan", at.emit("Div", y, x)), behind)
    return at.emit("Where", at.emit("Equal", x, zero), half, angle)


@translates("BUCKETIZE")
def bucketize(at: Site) -> ir.Value:
    """How many of the boundaries are not above a number."""
    found = at.option("BoundariesAsNumpy")
    bounds = at.const([] if isinstance(found, int) else found, np.float32)
    number = at.emit("Unsqueeze", at.cast(at.value(0), 1), at.const([-1], np.int64))
    passed = at.cast(at.emit("GreaterOrEqual", number, bounds), 6)
    return at.emit("ReduceSum", passed, at.const([-1], np.int64), keepdims=0)


@translates("RIGHT_SHIFT")
def right_shift(at: Site) -> ir.Value:
    """Bits moved to the right, the sign kept: division by a power of two, rounded down."""
    dtype = at.dtype(at.tensor(0))
    number, shift = at.cast(at.value(0), 11), at.cast(at.value(1), 11)
    bits = at.const(8 * dtype.itemsize - 1, np.float64)
    power = at.emit("Pow", at.const(2, np.float64), at.emit("Min", shift, bits))
    return at.cast(
        at.emit("Floor", at.emit("Div", number, power)),
        element_type(at.tensor(0).type, at.tensor(0)),
    )

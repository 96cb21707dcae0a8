"""Layers that compute each element by itself: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates
from partita.frontends.openvino_ir.weights import element_type

if TYPE_CHECKING:
    import onnx_ir as ir

_SAME = {
    "Abs": "Abs",
    "Acos": "Acos",
    "Acosh": "Acosh",
    "Asin": "Asin",
    "Asinh": "Asinh",
    "Atan": "Atan",
    "Atanh": "Atanh",
    "Ceiling": "Ceil",
    "Cos": "Cos",
    "Cosh": "Cosh",
    "Erf": "Erf",
    "Exp": "Exp",
    "Floor": "Floor",
    "HSwish": "HardSwish",
    "Identity": "Identity",
    "IsNaN": "IsNaN",
    "Log": "Log",
    "LogicalNot": "Not",
    "Mish": "Mish",
    "Negative": "Neg",
    "ReLU": "Relu",
    "Relu": "Relu",
    "Sigmoid": "Sigmoid",
    "Sign": "Sign",
    "Sin": "Sin",
    "Sinh": "Sinh",
    "SoftPlus": "Softplus",
    "SoftSign": "Softsign",
    "Sqrt": "Sqrt",
    "Tan": "Tan",
    "Tanh": "Tanh",
}
"""Layers of one input that ONNX has too."""

_BINARY = {
    "Add": "Add",
    "Equal": "Equal",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "LogicalXor": "Xor",
    "Maximum": "Max",
    "Minimum": "Min",
    "Multiply": "Mul",
    "Power": "Pow",
    "Subtract": "Sub",
    "Xor": "Xor",
}
"""Layers of two inputs that ONNX has too."""


@translates(*_SAME)
def same(at: Site) -> ir.Value:
    """An operator that ONNX has as it is."""
    return at.emit(_SAME[at.layer.type], at.inputs[0])


@translates(*_BINARY, "NotEqual", "SquaredDifference", "Divide", "Mod", "FloorMod")
def binary(at: Site) -> ir.Value:
    """Two inputs, broadcast as numpy does."""
    if at.text("auto_broadcast", "numpy") not in ("numpy", "none"):
        raise at.error(f"auto_broadcast '{at.text('auto_broadcast')}' is not known")
    a, b = at.inputs
    kind = at.layer.type
    if kind == "NotEqual":
        return at.emit("Not", at.emit("Equal", a, b))
    if kind == "SquaredDifference":
        difference = at.emit("Sub", a, b)
        return at.emit("Mul", difference, difference)
    if kind == "Mod":
        return at.emit("Mod", a, b, fmod=1)
    if kind == "FloorMod":
        return _floor_mod(at, a, b)
    if kind == "Divide" and at.precision(0).startswith("I") and at.flag("m_pythondiv", True):
        return at.emit("Div", at.emit("Sub", a, _floor_mod(at, a, b)), b)  # rounds down
    if kind == "Divide":
        return at.emit("Div", a, b)
    return at.emit(_BINARY[kind], a, b)


def _floor_mod(at: Site, a: ir.Value, b: ir.Value) -> ir.Value:
    """The remainder with the divisor's sign."""
    if at.is_integer:
        return at.emit("Mod", a, b, fmod=0)
    whole = at.emit("Floor", at.emit("Div", a, b))
    return at.emit("Sub", a, at.emit("Mul", whole, b))


_OF_BITS = {"BitwiseAnd": "And", "BitwiseNot": "Not", "BitwiseOr": "Or", "BitwiseXor": "Xor"}
"""Layers that take booleans too, to ONNX's operations on these."""


@translates(*_OF_BITS)
def bitwise(at: Site) -> ir.Value:
    """Each bit by itself; a boolean is one bit, for which ONNX has operations of its own."""
    kind = at.layer.type
    return at.emit(_OF_BITS[kind] if at.precision(0) == "BOOL" else kind, *at.inputs)


@translates("Select")
def select(at: Site) -> ir.Value:
    """Elements of one or the other."""
    return at.emit("Where", *at.inputs)


@translates("Convert")
def convert(at: Site) -> ir.Value:
    """Another element type."""
    return at.emit("Cast", at.inputs[0], to=at.output_type("destination_type"))


@translates("ConvertLike")
def convert_like(at: Site) -> ir.Value:
    """The element type of another value."""
    return at.emit("Cast", at.inputs[0], to=element_type(at.precision(1), at.layer))


@translates("Clamp")
def clamp(at: Site) -> ir.Value:
    """Bounds, which ONNX has as inputs; those of whole numbers are rounded inwards."""
    low, high = at.real("min"), at.real("max")
    if at.is_integer:
        limits = np.iinfo(at.dtype(0))
        low, high = max(np.ceil(low), limits.min), min(np.floor(high), limits.max)
    return at.emit("Clip", at.inputs[0], at.like(low), at.like(high))


@translates("Round")
def rounded(at: Site) -> ir.Value:
    """To whole numbers: halves to even ones, or away from zero."""
    x = at.inputs[0]
    if at.one_of("mode", "half_to_even", {"half_to_even": True, "half_away_from_zero": False}):
        return at.emit("Round", x)
    size = at.emit("Floor", at.emit("Add", at.emit("Abs", x), at.like(0.5)))
    return at.emit("Mul", at.emit("Sign", x), size)


@translates("IsInf")
def is_inf(at: Site) -> ir.Value:
    """Infinity of either sign."""
    signs = {
        "detect_negative": int(at.flag("detect_negative", True)),
        "detect_positive": int(at.flag("detect_positive", True)),
    }
    return at.emit("IsInf", at.inputs[0], **signs)


@translates("IsFinite")
def is_finite(at: Site) -> ir.Value:
    """Neither infinity nor NaN."""
    x = at.inputs[0]
    return at.emit("Not", at.emit("Or", at.emit("IsInf", x), at.emit("IsNaN", x)))


@translates("Elu")
def elu(at: Site) -> ir.Value:
    """Exponential below zero."""
    return at.emit("Elu", at.inputs[0], alpha=at.real("alpha"))


@translates("Gelu")
def gelu(at: Site) -> ir.Value:
    """Gaussian error linear unit."""
    forms = {"erf": "none", "tanh": "tanh"}
    return at.emit("Gelu", at.inputs[0], approximate=at.one_of("approximation_mode", "erf", forms))


@translates("Swish")
def swish(at: Site) -> ir.Value:
    """The input times the sigmoid of beta times the input."""
    x = at.inputs[0]
    inner = at.emit("Mul", x, at.inputs[1]) if at.has(1) else x
    return at.emit("Mul", x, at.emit("Sigmoid", inner))


@translates("HSigmoid")
def hsigmoid(at: Site) -> ir.Value:
    """The sigmoid as a straight line between -3 and 3."""
    return at.emit("HardSigmoid", at.inputs[0], alpha=1 / 6, beta=0.5)


@translates("HardSigmoid")
def hard_sigmoid(at: Site) -> ir.Value:
    """The sigmoid as a straight line of given slope and middle."""
    alpha, beta = (float(at.known(index).reshape(())) for index in (1, 2))
    return at.emit("HardSigmoid", at.inputs[0], alpha=alpha, beta=beta)


@translates("Selu")
def selu(at: Site) -> ir.Value:
    """Scaled exponential below zero."""
    alpha, gamma = (float(at.known(index).reshape(())) for index in (1, 2))
    return at.emit("Selu", at.inputs[0], alpha=alpha, gamma=gamma)


@translates("PReLU", "PRelu")
def prelu(at: Site) -> ir.Value:
    """A slope below zero; one dimension of slopes as long as the channels is one for each."""
    slope = at.inputs[1]
    if at.rank(1) == 1 and at.rank(0) > 1 and at.dims(1)[0] in (at.dims(0)[1], -1):
        axes = list(range(1, at.rank(0) - 1))
        slope = at.emit("Unsqueeze", slope, at.const(axes, np.int64)) if axes else slope
    return at.emit("PRelu", at.inputs[0], slope)


@translates("FakeQuantize")
def fake_quantize(at: Site) -> ir.Value:
    """Rounds to a number of levels between bounds, and maps these to other bounds."""
    x, low, high, to_low, to_high = at.inputs
    of_bytes = _byte_grids(at)
    if of_bytes is not None:
        first, second = ([at.const(number) for number in grid] for grid in of_bytes)
        return at.emit("DequantizeLinear", at.emit("QuantizeLinear", x, *first), *second)
    steps = at.like(at.integer("levels") - 1)
    lower, upper = at.emit("Min", low, high), at.emit("Max", low, high)
    inside = at.emit("Min", at.emit("Max", x, lower), upper)
    share = at.emit("Div", at.emit("Sub", inside, low), at.emit("Sub", high, low))
    level = at.emit("Div", at.emit("Round", at.emit("Mul", share, steps)), steps)
    spread = at.emit("Mul", level, at.emit("Sub", to_high, to_low))
    return at.emit("Add", spread, to_low)


_OFF_GRID = 1e-3
"""So much of a step may 0 be from a level of bytes."""


def _byte_grids(at: Site) -> list[tuple[np.float32, np.uint8]] | None:
    """Scales and levels of 0 of both bounds of a FakeQuantize, if bytes are its levels."""
    bounds = [at.constant(index) for index in range(1, 5)]
    if at.integer("levels") != 256 or at.constant(0) is not None:
        return None
    grids = []
    for low, high in (bounds[:2], bounds[2:]):
        if low is None or high is None or low.size * high.size != 1 or low.dtype != np.float32:
            return None
        scale = (float(high.item()) - float(low.item())) / 255
        if not 0 < scale < np.inf:
            return None
        zero = -float(low.item()) / scale
        level = round(zero) if abs(zero) < 256 else -1
        if not (0 <= level <= 255 and abs(zero - level) <= _OFF_GRID):
            return None
        grids.append((np.float32(scale), np.uint8(level)))
    return grids

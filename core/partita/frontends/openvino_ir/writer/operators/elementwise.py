"""Operators that compute each element by itself: arithmetic, comparisons, activations."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from partita.frontends.openvino_ir.writer.document import Output
from partita.frontends.openvino_ir.writer.writing_context import Site, writes

_UNARY = {
    "Abs": ("Abs", 1),
    "Acos": ("Acos", 1),
    "Acosh": ("Acosh", 4),
    "Asin": ("Asin", 1),
    "Asinh": ("Asinh", 4),
    "Atan": ("Atan", 1),
    "Atanh": ("Atanh", 4),
    "BitwiseNot": ("BitwiseNot", 13),
    "Ceil": ("Ceiling", 1),
    "Cos": ("Cos", 1),
    "Cosh": ("Cosh", 1),
    "Erf": ("Erf", 1),
    "Exp": ("Exp", 1),
    "Floor": ("Floor", 1),
    "HardSwish": ("HSwish", 4),
    "IsNaN": ("IsNaN", 10),
    "Log": ("Log", 1),
    "Mish": ("Mish", 4),
    "Neg": ("Negative", 1),
    "Not": ("LogicalNot", 1),
    "Relu": ("ReLU", 1),
    "Sigmoid": ("Sigmoid", 1),
    "Sign": ("Sign", 1),
    "Sin": ("Sin", 1),
    "Sinh": ("Sinh", 1),
    "Softplus": ("SoftPlus", 4),
    "Softsign": ("SoftSign", 9),
    "Sqrt": ("Sqrt", 1),
    "Tan": ("Tan", 1),
    "Tanh": ("Tanh", 1),
}
"""To layers of one input, and the operation set that they are of."""

_BINARY = {
    "Add": ("Add", 1),
    "And": ("LogicalAnd", 1),
    "BitwiseAnd": ("BitwiseAnd", 13),
    "BitwiseOr": ("BitwiseOr", 13),
    "BitwiseXor": ("BitwiseXor", 13),
    "Equal": ("Equal", 1),
    "Greater": ("Greater", 1),
    "GreaterOrEqual": ("GreaterEqual", 1),
    "Less": ("Less", 1),
    "LessOrEqual": ("LessEqual", 1),
    "Mul": ("Multiply", 1),
    "Or": ("LogicalOr", 1),
    "Sub": ("Subtract", 1),
    "Xor": ("LogicalXor", 1),
}
"""To layers of two inputs, and the operation set that they are of."""


@writes(*_UNARY)
def unary(at: Site) -> Output:
    """A layer of one input."""
    kind, version = _UNARY[at.node.op_type]
    return at.emit(kind, at.read(0), version=f"opset{version}")


@writes(*_BINARY)
def binary(at: Site) -> Output:
    """Two inputs, broadcast as numpy does."""
    kind, version = _BINARY[at.node.op_type]
    return at.emit(kind, at.read(0), at.read(1), version=f"opset{version}", auto_broadcast="numpy")


@writes("Div")
def divide(at: Site) -> Output:
    """A quotient; one of whole numbers is cut off towards zero."""
    return at.emit("Divide", at.read(0), at.read(1), auto_broadcast="numpy", m_pythondiv=False)


@writes("Mod")
def mod(at: Site) -> Output:
    """A remainder with the sign of the divisor, or of the dividend (``fmod``)."""
    kind = "Mod" if at.integer("fmod") else "FloorMod"
    return at.emit(kind, at.read(0), at.read(1), auto_broadcast="numpy")


@writes("Pow")
def power(at: Site) -> Output:
    """A power, whose exponent may be of another type."""
    x, exponent = at.read(0), at.read(1)
    return at.emit("Power", x, at.convert(exponent, x.dtype), auto_broadcast="numpy")


@writes("Max", "Min", "Sum", "Mean")
def several(at: Site) -> Output:
    """Any number of inputs, two by two."""
    kinds = {"Max": "Maximum", "Min": "Minimum", "Sum": "Add", "Mean": "Add"}
    kind = kinds[at.node.op_type]
    values = [at.read(index) for index in range(len(at.inputs))]
    found = functools.reduce(lambda a, b: at.binary(kind, a, b), values)
    if at.node.op_type == "Mean":
        return at.binary("Divide", found, at.like(len(values), found))
    return found


@writes("Where")
def where(at: Site) -> Output:
    """Elements of one or the other."""
    return at.emit("Select", *(at.read(index) for index in range(3)), auto_broadcast="numpy")


@writes("Cast")
def cast(at: Site) -> Output:
    """Another element type."""
    return at.emit("Convert", at.read(0), destination_type=at.type_name(at.result()[0]))


@writes("CastLike")
def cast_like(at: Site) -> Output:
    """The element type of another value."""
    return at.emit("ConvertLike", at.read(0), at.read(1))


@writes("Clip")
def clip(at: Site) -> Output:
    """Bounds: attributes where they are known floats, inputs otherwise."""
    x = at.read(0)
    bounds = [at.read(index) if at.has(index) else None for index in (1, 2)]
    known = [None if bound is None else bound.constant for bound in bounds]
    limits = np.finfo(x.dtype.numpy()) if x.dtype.is_floating_point() else None
    if limits is not None and all(b is None or k is not None
                                  for b, k in zip(bounds, known, strict=True)):  # fmt: skip
        low, high = (
            float(limit if array is None else array.reshape(()))
            for limit, array in zip((limits.min, limits.max), known, strict=True)
        )
        return at.emit("Clamp", x, min=min(low, high), max=high)
    for kind, bound in zip(("Maximum", "Minimum"), bounds, strict=True):
        x = x if bound is None else at.binary(kind, x, bound)
    return x


@writes("Round")
def rounded(at: Site) -> Output:
    """To whole numbers, halves to even ones."""
    return at.emit("Round", at.read(0), version="opset5", mode="half_to_even")


@writes("IsInf")
def is_inf(at: Site) -> Output:
    """Infinity of either sign."""
    signs: dict[str, Any] = {
        key: bool(at.integer(key, 1)) for key in ("detect_negative", "detect_positive")
    }
    return at.emit("IsInf", at.read(0), version="opset10", **signs)


@writes("Elu")
def elu(at: Site) -> Output:
    """Exponential below zero."""
    return at.emit("Elu", at.read(0), alpha=at.real("alpha", 1.0))


@writes("LeakyRelu")
def leaky_relu(at: Site) -> Output:
    """A slope below zero that is the same for all elements."""
    slope = at.const([at.real("alpha", 0.01)], at.read(0).dtype.numpy())
    return at.emit("PReLU", at.read(0), slope)


@writes("PRelu")
def prelu(at: Site) -> Output:
    """Slopes below zero, broadcast as numpy does."""
    x, slope = at.read(0), at.read(1)
    zero = at.like(0, x)
    below = at.binary("Multiply", at.binary("Minimum", x, zero), slope)
    return at.emit("Add", at.binary("Maximum", x, zero), below, auto_broadcast="numpy")


@writes("Gelu")
def gelu(at: Site) -> Output:
    """Gaussian error linear unit."""
    form = "TANH" if at.text("approximate", "none") == "tanh" else "ERF"
    return at.emit("Gelu", at.read(0), version="opset7", approximation_mode=form)


@writes("Swish")
def swish(at: Site) -> Output:
    """The input times its sigmoid."""
    x = at.read(0)
    return at.emit("Swish", x, at.like(at.real("alpha", 1.0), x), version="opset4")


@writes("HardSigmoid")
def hard_sigmoid(at: Site) -> Output:
    """The sigmoid as a straight line."""
    x = at.read(0)
    numbers = (at.like(at.real(*given), x) for given in (("alpha", 0.2), ("beta", 0.5)))
    return at.emit("HardSigmoid", x, *numbers)


@writes("Selu")
def selu(at: Site) -> Output:
    """Scaled exponential below zero."""
    x = at.read(0)
    given = ("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)
    return at.emit("Selu", x, *(at.like(at.real(*one), x) for one in given))


@writes("Celu")
def celu(at: Site) -> Output:
    """An exponential below zero whose slope begins as that of the line above."""
    x, alpha = at.read(0), at.like(at.real("alpha", 1.0), at.read(0))
    zero = at.like(0, x)
    shrunk = at.binary("Divide", at.binary("Minimum", x, zero), alpha)
    below = at.emit("Elu", shrunk, made=(x.dtype, x.dims), alpha=1.0)
    negative = at.binary("Multiply", below, alpha)
    return at.emit("Add", at.binary("Maximum", x, zero), negative, auto_broadcast="numpy")


@writes("ThresholdedRelu")
def thresholded_relu(at: Site) -> Output:
    """Nothing up to a threshold."""
    import onnx_ir as ir

    x = at.read(0)
    bound = at.like(at.real("alpha", 1.0), x)
    above = at.emit("Greater", x, bound, made=(ir.DataType.BOOL, x.dims), auto_broadcast="numpy")
    return at.emit("Select", above, x, at.like(0, x), auto_broadcast="numpy")


@writes("Reciprocal")
def reciprocal(at: Site) -> Output:
    """One divided by each element."""
    return at.emit("Divide", at.like(1, at.read(0)), at.read(0), auto_broadcast="numpy")


@writes("QuantizeLinear")
def quantize(at: Site) -> Output:
    """Whole numbers of a scale and a zero point."""
    x = at.read(0)
    scale = _along(at, x, at.read(1))
    dtype, dims = at.result()
    if not dtype.is_integer() or dtype.bitwidth != 8:
        raise at.error(f"element type {dtype.name}")
    limits = np.iinfo(dtype.numpy())
    level = at.binary("Divide", x, at.convert(scale, x.dtype))
    level = at.emit("Round", level, version="opset5", made=(x.dtype, dims), mode="half_to_even")
    if at.has(2):
        zero = at.convert(_along(at, x, at.read(2)), x.dtype)
        level = at.binary("Add", level, zero)
    inside = at.emit(
        "Clamp", level, made=(x.dtype, dims), min=float(limits.min), max=float(limits.max)
    )
    return at.emit("Convert", inside, destination_type=at.type_name(dtype))


@writes("DequantizeLinear")
def dequantize(at: Site) -> Output:
    """Numbers that whole ones of a scale and a zero point stand for."""
    x = at.read(0)
    scale = _along(at, x, at.read(1))
    level = at.convert(x, scale.dtype)
    if at.has(2):
        zero = _along(at, x, at.read(2))
        level = at.binary("Subtract", level, at.convert(zero, scale.dtype))
    return at.emit("Multiply", level, scale, auto_broadcast="numpy")


def _along(at: Site, x: Output, numbers: Output) -> Output:
    """Scales or zero points in the dimensions of what they are for."""
    if at.integer("block_size"):
        raise at.error("scales for blocks")
    if numbers.rank != 1 or x.rank is None or (numbers.dims == (1,)):
        return numbers
    axis = at.integer("axis", 1) % x.rank
    return at.channels(numbers, x.rank - axis + 1)

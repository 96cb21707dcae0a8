"""Element-wise operators: each becomes a chain of one or a few lines, fused later with others."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Node, Operand
from partita.lowering.fusion.activation import CLIP_DEFAULTS
from partita.lowering.geometry.broadcasting import broadcast as broadcast_shapes
from partita.lowering.kernel_table import HALVES
from partita_opencl.emitters.operator_table import (
    BOOL,
    COMPUTED,
    FLOATS,
    INTS,
    MOVED,
    NUMBERS,
    DTypes,
    operator,
)
from partita_opencl.launches import expressions
from partita_opencl.launches.emitter_kit import Kit, ctype_of, f32
from partita_opencl.launches.expressions import BINARY, UNARY, Expression
from partita_opencl.launches.steps import Line
from partita_opencl.passes.half_precision import HALF, SINGLE

_BOOL = np.dtype(np.bool_)
_BFLOAT = np.dtype(ml_dtypes.bfloat16)


def broadcast(k: Kit, *operands: Operand) -> tuple[int, ...]:
    """The common shape of operands.

    Raises:
        OperandError: They do not broadcast.
    """
    try:
        return broadcast_shapes(*(x.shape for x in operands))
    except ValueError as error:
        node = k.builder.node
        shapes = " and ".join(str(list(x.shape)) for x in operands)
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot broadcast shapes {shapes}."
        ) from error


def apply(
    k: Kit, template: str, dtype: Any, *inputs: Operand, parameters: Sequence[float] = ()
) -> Operand:
    """One expression over operands that broadcast.

    Args:
        k: Records it.
        template: The expression in OpenCL C; ``{a}``, ``{b}`` are float parameters.
        dtype: Element type of the result.
        inputs: The operands.
        parameters: What ``{a}`` and ``{b}`` stand for.
    """
    out = k.empty(broadcast(k, *inputs), dtype)
    _record(k, out, template, inputs, parameters)
    return out


def _record(
    k: Kit, out: Operand, template: str, inputs: Sequence[Operand], parameters: Sequence[float]
) -> None:
    names = {letter: f"{{{len(inputs) + i}}}" for i, letter in enumerate("ab"[: len(parameters)])}
    numbered = _fill(template, names)
    arguments: list[Operand | np.generic] = [*inputs, *(f32(value) for value in parameters)]
    line = Line(numbered, tuple(range(len(arguments))), ctype_of(out.dtype))
    k.chain(out, [line], *arguments)


def _fill(template: str, names: dict[str, str]) -> str:
    """Replaces named fields and leaves the numbered ones."""
    parts = []
    for text, name, _, _ in string.Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(names.get(name, f"{{{name}}}"))
    return "".join(parts)


def _template(expression: Expression, dtype: np.dtype[Any]) -> str | None:
    if dtype == _BOOL:
        return expression.truth
    if dtype.kind == "f":
        return expression.floats
    ints = expression.ints
    if dtype.kind == "u" and expression.unsigned is not None:
        ints = expression.unsigned
    wraps = "ulong" if dtype.itemsize == 8 else "uint"
    zero = "(uint){a}" if _hides_zero(expression, dtype) else f"({wraps})0"
    filled = {"type": ctype_of(dtype), "wraps": wraps, "zero": zero}
    return None if ints is None else _fill(ints, filled)


def _hides_zero(expression: Expression, dtype: np.dtype[Any]) -> bool:
    """Whether the number 0 of a negation comes as a parameter.

    NVIDIA's compiler takes ``-x < 0`` of 16 bits for ``x > 0``, also of the one that stays itself.
    """
    return dtype == np.int16 and "{zero}" in (expression.ints or "")


def _types(expression: Expression) -> DTypes:
    kinds = ((expression.floats, FLOATS), (expression.ints, INTS), (expression.truth, BOOL))
    return frozenset().union(*(types for template, types in kinds if template is not None))


def _emit_expression(k: Kit, node: Node, *inputs: Operand) -> Operand:
    expression = (UNARY if len(inputs) == 1 else BINARY)[node.op_type]
    dtype = inputs[0].dtype
    template = _template(expression, dtype)
    if template is None:
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) has no kernel for {dtype}."
        )
    result = _BOOL if expression.compares else dtype
    parameters = expression.parameters(node.attrs)
    if _hides_zero(expression, dtype):
        parameters = (0.0,)
    return apply(k, template, result, *inputs, parameters=parameters)


def _unary(k: Kit, node: Node, x: Operand) -> Operand:
    return _emit_expression(k, node, x)


def _binary(k: Kit, node: Node, a: Operand, b: Operand) -> Operand:
    return _emit_expression(k, node, a, b)


def _old_broadcast(node: Node) -> Reason | None:
    """Before opset 7, broadcasting was asked for by an attribute and followed other rules."""
    if node.version < 7 and node.attrs.get("broadcast", 0):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "attribute 'broadcast' of opset 6")
    return None


for _name, _expression in UNARY.items():
    operator(_name, types=_types(_expression))(_unary)
for _name, _expression in BINARY.items():
    if _name not in ("Max", "Min", "Pow"):
        operator(_name, types=_types(_expression), check=_old_broadcast)(_binary)
operator("Silu", "HardSwish", "HardSigmoid", "Mish", domain="partita")(_unary)


@operator("Pow", types={0: FLOATS, 1: NUMBERS}, check=_old_broadcast)
def power(k: Kit, node: Node, x: Operand, y: Operand) -> Operand:
    """Power; squares, the most frequent case, are products."""
    if y.const is not None and y.size == 1 and y.ndim <= x.ndim and float(y.const.flat[0]) == 2.0:
        return apply(k, "{0} * {0}", x.dtype, x)
    return apply(k, "pow({0}, (float){1})", x.dtype, x, y)


@operator("Sum", "Max", "Min", types=NUMBERS)
def variadic(k: Kit, node: Node, *inputs: Operand) -> Operand:
    """Any number of operands, joined from left to right."""
    expression = BINARY["Add" if node.op_type == "Sum" else node.op_type]
    template = _template(expression, inputs[0].dtype)
    return _join(k, template or "{0}", inputs)


@operator("Mean", types=FLOATS)
def mean(k: Kit, node: Node, *inputs: Operand) -> Operand:
    """The mean of any number of operands."""
    total = _join(k, "{0} + {1}", inputs)
    return apply(k, "{0} * {a}", total.dtype, total, parameters=(1.0 / len(inputs),))


def _join(k: Kit, template: str, inputs: Sequence[Operand]) -> Operand:
    if len(inputs) == 1:
        return inputs[0]
    result = inputs[0]
    for x in inputs[1:]:
        result = apply(k, template, result.dtype, result, x)
    return result


@operator("Mod", types=NUMBERS)
def modulo(k: Kit, node: Node, a: Operand, b: Operand) -> Operand:
    """Remainder with the sign of the divisor, or with that of the dividend if fmod is set."""
    if a.dtype.kind == "f":
        template = expressions.FMOD if node.attrs.get("fmod", 0) else expressions.FLOAT_MOD
    elif a.dtype.kind == "u":
        template = expressions.UNSIGNED_MOD
    else:
        template = expressions.INT_FMOD if node.attrs.get("fmod", 0) else expressions.INT_MOD
    return apply(k, template, a.dtype, a, b)


def _bitshift_direction(node: Node) -> Reason | None:
    if node.attrs.get("direction") in ("LEFT", "RIGHT"):
        return None
    return Reason(
        ReasonCode.UNSUPPORTED_ATTRIBUTE,
        f"direction {node.attrs.get('direction')!r}; takes 'LEFT' and 'RIGHT'",
    )


@operator("BitShift", types=INTS, check=_bitshift_direction)
def bit_shift(k: Kit, node: Node, a: Operand, b: Operand) -> Operand:
    """Shift by a number of bits; by others than there are, to the right leaves signs, left none."""
    sign = "<<" if node.attrs["direction"] == "LEFT" else ">>"
    signed = a.dtype.kind == "i"
    outside = f"{{1}} >= {a.dtype.itemsize * 8}" + (" || {1} < 0" if signed else "")
    left = "({0} < 0 ? -1 : 0)" if signed and sign == ">>" else "0"
    return apply(k, f"({outside} ? {left} : {{0}} {sign} {{1}})", a.dtype, a, b)


@operator("IsInf", types=FLOATS)
def is_inf(k: Kit, node: Node, x: Operand) -> Operand:
    """Infinities of the signs asked for."""
    signs = (
        bool(node.attrs.get("detect_positive", 1)),
        bool(node.attrs.get("detect_negative", 1)),
    )
    return apply(k, expressions.IS_INF[signs], _BOOL, x)


def _gelu_kind(node: Node) -> Reason | None:
    kind = node.attrs.get("approximate", "none")
    if kind in ("none", "tanh"):
        return None
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"approximate {kind!r}; takes 'none', 'tanh'")


@operator("Gelu", check=_gelu_kind)
@operator("Gelu", domain="partita")
@operator("Gelu", domain="com.microsoft")
def gelu(k: Kit, node: Node, x: Operand) -> Operand:
    """Gaussian error linear unit, exact or by tanh."""
    exact = node.attrs.get("approximate", "none") == "none"
    return apply(k, "gelu_of({0})" if exact else "gelu_tanh_of({0})", x.dtype, x)


@operator("BiasGelu", "FastGelu", domain="com.microsoft")
def bias_gelu(k: Kit, node: Node, x: Operand, bias: Operand | None = None) -> Operand:
    """Gelu of a sum with a bias per column; FastGelu goes through tanh."""
    function = "gelu_of" if node.op_type == "BiasGelu" else "gelu_tanh_of"
    if bias is None:
        return apply(k, f"{function}({{0}})", x.dtype, x)
    return apply(k, f"{function}({{0}} + {{1}})", x.dtype, x, bias)


@operator("QuickGelu", domain="com.microsoft")
def quick_gelu(k: Kit, node: Node, x: Operand) -> Operand:
    """Each element times a sigmoid of it."""
    alpha = node.number("alpha", 1.702)
    return apply(k, "{0} * sigmoid_of({a} * {0})", x.dtype, x, parameters=(alpha,))


@operator("Clip", types=NUMBERS, since=11)
def clip(
    k: Kit, node: Node, x: Operand, low: Operand | None = None, high: Operand | None = None
) -> Operand:
    """Bounds from inputs; the upper bound wins where they cross."""
    result = x
    if low is not None:
        result = apply(k, "({0} < {1} ? {1} : {0})", x.dtype, result, k.view(low, ()))
    if high is not None:
        result = apply(k, "({0} > {1} ? {1} : {0})", x.dtype, result, k.view(high, ()))
    return result


@operator("Clip", types=FLOATS, until=10)
def clip_by_attributes(k: Kit, node: Node, x: Operand) -> Operand:
    """Bounds from attributes."""
    bounds = (node.attrs.get("min", CLIP_DEFAULTS[0]), node.attrs.get("max", CLIP_DEFAULTS[1]))
    return apply(k, "({0} < {a} ? {a} : {0} > {b} ? {b} : {0})", x.dtype, x, parameters=bounds)


@operator("Where", types={0: BOOL, 1: MOVED, 2: MOVED})
def where(k: Kit, node: Node, condition: Operand, x: Operand, y: Operand) -> Operand:
    """Selection by a boolean."""
    return apply(k, "({0} ? {1} : {2})", x.dtype, condition, x, y)


_CAST = {np.dtype(t).name: np.dtype(t) for t in (np.float32, np.float16, np.bool_)} | {
    kind.name: kind for kind in INTS
}


def cast_target(node: Node) -> np.dtype[Any] | None:
    """The element type that a Cast makes, or ``None`` where it is not one that is computed."""
    from onnx import TensorProto, helper

    code = node.attrs.get("to")
    if code is None or code in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    return _CAST.get(np.dtype(helper.tensor_dtype_to_np_dtype(int(code))).name)


def _cast_type(node: Node) -> Reason | None:
    if cast_target(node) is not None:
        return None
    return Reason(
        ReasonCode.UNSUPPORTED_DTYPE,
        f"casts to type {node.attrs.get('to')}; takes {', '.join(_CAST)}",
    )


@operator("Cast", types=COMPUTED | HALVES, check=_cast_type)
def cast(k: Kit, node: Node, x: Operand) -> Operand:
    """Conversion; floats are cut towards zero."""
    target = cast_target(node)
    if target is None:
        raise CompileError(f"Operation '{node.name}' (Cast) has no target type.")
    return _cast_to(k, x, target)


@operator("CastLike", types=COMPUTED)
def cast_like(k: Kit, node: Node, x: Operand, like: Operand) -> Operand:
    """Conversion to the type of another tensor."""
    return _cast_to(k, x, like.dtype)


def _cast_to(k: Kit, x: Operand, dtype: np.dtype[Any]) -> Operand:
    """The elements as another type, rounded to it also where a chain computes on with them."""
    if x.dtype == _BFLOAT:
        x = apply(k, "as_float((uint){0} << 16)", SINGLE, x)
    if dtype != HALF or x.dtype in (HALF, _BOOL) or k.tuning.bfloat:
        return convert(k, x, dtype)
    return apply(k, "rounded_to_half((float){0})", dtype, x)


def convert(k: Kit, x: Operand, dtype: np.dtype[Any]) -> Operand:
    """The elements as another type.

    Args:
        k: The kit of the program.
        x: The tensor.
        dtype: What it becomes; floats are cut towards zero, truth is what is not 0, also of bytes
            that are not 1, which a caller's or a model's truth values may hold.

    Returns:
        The tensor itself if it has the type.
    """
    if x.dtype == dtype:
        return x
    if dtype == _BOOL:
        return apply(k, "({0} != 0)", dtype, x)
    if x.dtype == _BOOL:
        return apply(k, f"({ctype_of(dtype)})({{0}} != 0)", dtype, x)
    return apply(k, f"({ctype_of(dtype)}){{0}}", dtype, x)


@operator("Narrow", "Widen", domain="partita")
def change_precision(k: Kit, node: Node, x: Operand) -> Operand:
    """Between the types of a model's ports and that which it is computed in."""
    target = HALF if node.op_type == "Narrow" else SINGLE
    return x if x.dtype == target else convert(k, x, target)


def _scaled(node: Node) -> Reason | None:
    if node.attrs.get("training_mode", 0):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "training_mode 1; takes inference only")
    if node.version < 9 and node.attrs.get("spatial", 1) != 1:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "spatial 0; takes statistics per channel")
    return None


@operator("BatchNormalization", check=_scaled, since=7)
def batch_normalization(
    k: Kit, node: Node, x: Operand, scale: Operand, bias: Operand, mean: Operand, var: Operand
) -> Operand:
    """One product and sum with factor and shift per channel, made on the host from weights."""
    epsilon = node.number("epsilon", 1e-5)
    column = (scale.size, *(1,) * max(0, x.ndim - 2))
    statistics = [operand.const for operand in (scale, bias, mean, var)]
    if any(array is None for array in statistics):
        factor = apply(k, "{0} / sqrt({1} + {a})", x.dtype, scale, var, parameters=(epsilon,))
        shift = apply(k, "{0} - {1} * {2}", x.dtype, bias, mean, factor)
    else:
        s, b, m, v = (np.asarray(array, np.float64) for array in statistics)
        factor = k.constant((s / np.sqrt(v + epsilon)).astype(np.float32))
        shift = k.constant((b - m * s / np.sqrt(v + epsilon)).astype(np.float32))
    return apply(k, "fma({0}, {1}, {2})", x.dtype, x, k.view(factor, column), k.view(shift, column))

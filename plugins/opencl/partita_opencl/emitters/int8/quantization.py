"""Conversions between floats and quantized whole numbers, of 8 or 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.fusion.quantized.quotient import quotient_type
from partita.lowering.kernel_table import DTypes
from partita_opencl.emitters.elementwise import apply
from partita_opencl.emitters.movement import own_axis
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of
from partita_opencl.passes.half_precision import HALF, SINGLE

LEVELS: DTypes = frozenset(np.dtype(t) for t in (np.int8, np.uint8, np.int16, np.uint16))
"""What numbers are quantized to."""

# They do not fold: ONNX's reference casts before it cuts, and has not all opsets.
_NAMED = {0: None, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16}
"""By ONNX's number the type that attribute output_dtype asks for; 0 is that of the zero point."""


_NUMBERS = {0: None, 1: SINGLE, 10: HALF}
"""The same for numbers; 0 is that of the scale."""


def _whole_axes(node: Node) -> Reason | None:
    if node.attrs.get("block_size", 0):
        detail = f"block_size is {node.attrs['block_size']}; takes scales per tensor or axis"
    elif node.op_type == "QuantizeLinear" and node.attrs.get("output_dtype", 0) not in _NAMED:
        detail = f"output_dtype is {node.attrs['output_dtype']}; takes whole numbers of 8, 16 bits"
    elif node.op_type == "DequantizeLinear" and node.attrs.get("output_dtype", 0) not in _NUMBERS:
        detail = f"output_dtype is {node.attrs['output_dtype']}; takes float32 and float16"
    elif node.op_type == "QuantizeLinear" and node.attrs.get("precision", 0) not in _NUMBERS:
        detail = f"precision is {node.attrs['precision']}; takes float32 and float16"
    else:
        return None
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, detail)


@operator(
    "DequantizeLinear",
    types={0: LEVELS | {np.dtype(np.int32)}, 1: FLOATS},
    check=_whole_axes,
    since=10,
    folds=False,
)
def dequantize(
    k: Kit, node: Node, x: Operand, scale: Operand, zero: Operand | None = None
) -> Operand:
    """Levels as the numbers that they stand for; of constants they are computed here."""
    dtype = HALF if k.tuning.half else _NUMBERS[node.attrs.get("output_dtype", 0)] or scale.dtype
    scale = _along(k, node, scale, x)
    if zero is not None:
        zero = _along(k, node, zero, x)
    if x.const is not None and scale.const is not None and (zero is None or zero.const is not None):
        levels = (
            x.const if zero is None or zero.const is None else x.const - np.int64(1) * zero.const
        )
        numbers = levels.astype(np.float32) * k.numbers(scale.const).astype(np.float32)
        return k.constant(k.halves(numbers) if dtype == HALF else numbers.astype(np.float32))
    if zero is None:
        return apply(k, "(float){0} * {1}", dtype, x, scale)
    # Wrapped as unsigned numbers are, what compilers take for impossible of signed ones.
    template = "(float)(int)((uint){0} - (uint){2}) * {1}"
    return apply(k, template, dtype, x, scale, zero)


@operator(
    "QuantizeLinear",
    types={0: FLOATS, 1: FLOATS, 2: LEVELS},
    check=_whole_axes,
    since=10,
    folds=False,
)
def quantize(
    k: Kit, node: Node, x: Operand, scale: Operand, zero: Operand | None = None
) -> Operand:
    """Numbers as the nearest levels; of two as near, the even one."""
    named = _NAMED[node.attrs.get("output_dtype", 0)]
    dtype = np.dtype(named or np.uint8) if zero is None else zero.dtype
    zeros, own = None if zero is None else _along(k, node, zero, x), node.inputs[1]
    kind = scale.dtype if own is None or own.dtype is None else own.dtype
    template = "{0} / {1}"
    if quotient_type(node, kind) == HALF:
        template = "rounded_to_half(rounded_to_half({0}) / rounded_to_half({1}))"
    return quantized(k, template, dtype, zeros, x, _along(k, node, scale, x))


def quantized(
    k: Kit, template: str, dtype: np.dtype[Any], zero: Operand | None, *inputs: Operand
) -> Operand:
    """Levels of what an expression makes of some inputs.

    Args:
        k: Records it.
        template: The expression in OpenCL C.
        dtype: Of the levels.
        zero: The level of 0.
        inputs: The expression's operands.
    """
    limits = np.iinfo(dtype)
    term = "" if zero is None else f" + (float){{{len(inputs)}}}"
    text = f"({ctype_of(dtype)})within(rint({template}){term}, {{a}}, {{b}})"
    operands = inputs if zero is None else (*inputs, zero)
    return apply(k, text, dtype, *operands, parameters=(limits.min, limits.max))


def _along(k: Kit, node: Node, v: Operand, x: Operand) -> Operand:
    """Scales or zero points, one for all or one for each place of the axis.

    Raises:
        OperandError: There are others.
    """
    if v.size == 1:
        return k.view(v, ())
    axis = own_axis(node, x.ndim, 1)
    if v.size != x.shape[axis]:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has {v.size} scales or zero points for "
            f"{x.shape[axis]} places of axis {axis}."
        )
    return k.view(v, (v.size, *(1,) * (x.ndim - axis - 1)))

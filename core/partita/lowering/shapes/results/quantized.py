"""Results of operators on levels: quantization, products, convolutions and sums of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.geometry.windows import resolve
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.results.rule import ResultRules

QUANTIZED_RESULTS = ResultRules()

_MICROSOFT = "com.microsoft::"


@QUANTIZED_RESULTS.shape("DequantizeLinear", "QuantizeLinear")
@QUANTIZED_RESULTS.shape(f"{_MICROSOFT}DequantizeLinear", f"{_MICROSOFT}QuantizeLinear")
@QUANTIZED_RESULTS.shape(f"{_MICROSOFT}QLinearLeakyRelu", f"{_MICROSOFT}QLinearSigmoid")
@QUANTIZED_RESULTS.shape(f"{_MICROSOFT}QLinearSoftmax")
def _same(node: Node, operands: Any) -> Sequence[int]:
    return operands[0].shape  # type: ignore[no-any-return]  # of an operand


@QUANTIZED_RESULTS.outputs("DynamicQuantizeLinear")
def _dynamic(node: Node, operands: Any) -> Sequence[Operand]:
    byte, single = np.dtype(np.uint8), np.dtype(np.float32)
    return [Operand(operands[0].shape, byte), Operand((), single), Operand((), byte)]


@QUANTIZED_RESULTS.outputs("MatMulInteger")
def _product_of_bytes(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _product(operands[0], operands[1], np.dtype(np.int32))


@QUANTIZED_RESULTS.outputs(f"{_MICROSOFT}MatMulIntegerToFloat")
def _product_to_float(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _product(operands[0], operands[1], operands[2].dtype)


@QUANTIZED_RESULTS.outputs(f"{_MICROSOFT}DynamicQuantizeMatMul")
def _product_of_floats(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _product(operands[0], operands[1], operands[0].dtype)


@QUANTIZED_RESULTS.outputs("QLinearMatMul")
def _product_to_levels(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _product(operands[0], operands[3], operands[7].dtype)


def _product(x: Operand, w: Operand, dtype: np.dtype[Any]) -> Sequence[Operand] | None:
    if x.ndim < 2 or w.ndim < 2 or x.shape[-1] != w.shape[-2]:
        return None
    batch = broadcast(x.shape[:-2], w.shape[:-2])
    return [Operand((*batch, x.shape[-2], w.shape[-1]), dtype)]


@QUANTIZED_RESULTS.outputs("ConvInteger")
def _convolution_of_bytes(node: Node, operands: Any) -> Sequence[Operand]:
    return _convolution(node, operands[0], operands[1], np.dtype(np.int32))


@QUANTIZED_RESULTS.outputs("QLinearConv")
def _convolution_to_levels(node: Node, operands: Any) -> Sequence[Operand]:
    return _convolution(node, operands[0], operands[3], operands[7].dtype)


def _convolution(node: Node, x: Operand, w: Operand, dtype: np.dtype[Any]) -> Sequence[Operand]:
    size = resolve(node, x.shape[2:], w.shape[2:]).out_shape
    return [Operand((x.shape[0], w.shape[0], *size), dtype)]


@QUANTIZED_RESULTS.shape(f"{_MICROSOFT}QLinearAdd", f"{_MICROSOFT}QLinearMul")
def _broadcast(node: Node, operands: Any) -> Sequence[int]:
    return broadcast(operands[0].shape, operands[3].shape)


@QUANTIZED_RESULTS.outputs(f"{_MICROSOFT}QGemm")
def _gemm(node: Node, operands: Any) -> Sequence[Operand]:
    x, w = operands[0].shape, operands[3].shape
    flip_x, flip_w = node.attrs.get("transA", 0), node.attrs.get("transB", 0)
    levels = operands[8].dtype if len(operands) > 8 and operands[8] is not None else None
    shape = x[1 if flip_x else 0], w[0 if flip_w else 1]
    return [Operand(shape, np.dtype(np.float32) if levels is None else levels)]

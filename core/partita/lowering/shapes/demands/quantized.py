"""Demands of operators on levels: quantization, products, convolutions, pools."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import (
    Demand,
    Shapes,
    first_of,
    holds,
    is_of_shape,
    pair_of,
)
from partita.lowering.shapes.demands.windows import weight_faults, window_faults

QUANTIZED_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, QUANTIZED_DEMANDS)


@_demand("QuantizeLinear", "DequantizeLinear")
@_demand("com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear")
def _quantize(node: Node, shapes: Shapes) -> Iterable[str]:
    x, scale = pair_of(shapes)
    axis, size = node.attrs.get("axis", 1), math.prod(scale)
    blocks = node.attrs.get("block_size", 0) > 0
    if len(scale) <= 1 and size != 1 and not (blocks and len(x) == 1):
        if not -len(x) <= axis < len(x) or size != x[axis]:
            yield f"the scale is to hold 1 element, or one for each along axis {axis}"
    elif len(scale) > 1 and len(scale) != len(x):
        yield "a scale for blocks is to have as many dimensions as the input"
    yield from holds("the zero point", shapes[2], size)
    yield from _blocks(node, shapes)


def _blocks(node: Node, shapes: Shapes) -> Iterable[str]:
    """Faults of scales of which each is for a block of elements along an axis."""
    (x, scale), block = pair_of(shapes), node.attrs.get("block_size", 0)
    if block < 0:
        yield f"block_size {block} is negative"
    if block > 0 and scale:
        axis = node.attrs.get("axis", 1) % max(len(x), 1)
        blocks = (*x[:axis], -(-x[axis] // block), *x[axis + 1 :])
        yield from is_of_shape("a scale for blocks", scale, blocks)
        yield from is_of_shape("a zero point for blocks", shapes[2], blocks)


class _Places(NamedTuple):
    """Where a product of bytes has its weights, and what is for a tensor, an output or a row."""

    weights: int
    single: tuple[int, ...]
    per_output: tuple[int, ...]
    bias: int | None = None
    per_row: int | None = None


_PLACES = {
    "QLinearConv": _Places(3, (1, 2, 6, 7), (4, 5), 8),
    "ConvInteger": _Places(1, (2,), (3,)),
    "QLinearMatMul": _Places(3, (1, 6, 7), (4, 5), per_row=2),
    "MatMulInteger": _Places(1, (), (3,), per_row=2),
    "MatMulIntegerToFloat": _Places(1, (2,), (3, 5), 6, per_row=4),
    "DynamicQuantizeMatMul": _Places(1, (), (2, 3), 4),
    "QGemm": _Places(3, (1, 2, 7, 8), (4, 5)),
}


def _quantized(node: Node, shapes: Shapes, outputs: int, per_output: bool) -> Iterable[str]:
    places = _PLACES[node.op_type]
    for place in places.single:
        yield from holds("a scale or zero point of input or output", shapes[place], 1)
    for place in places.per_output if per_output else ():
        yield from holds("a scale or zero point of the weights", shapes[place], 1, outputs)
    if places.bias is not None:
        yield from holds("the bias", shapes[places.bias], outputs)


@_demand("QLinearConv", "ConvInteger")
def _quantized_conv(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = pair_of(shapes, _PLACES[node.op_type].weights)
    yield from window_faults(node, len(x) - 2)
    yield from weight_faults(node, x, w, False)
    yield from _quantized(node, shapes, w[0], True)
    if not w[1]:
        yield "the input has no channels"


@_demand(
    "QLinearMatMul",
    "MatMulInteger",
    "com.microsoft::MatMulIntegerToFloat",
    "com.microsoft::DynamicQuantizeMatMul",
    "com.microsoft::QGemm",
)
def _quantized_product(node: Node, shapes: Shapes) -> Iterable[str]:
    places = _PLACES[node.op_type]
    x, w = pair_of(shapes, places.weights)
    turned = node.op_type == "QGemm" and node.attrs.get("transB", 0)
    outputs, terms = (w[0], w[-1]) if turned else (w[-1], w[max(-2, -len(w))])
    if x[-1] != terms:
        yield f"rows of {x[-1]} cannot be multiplied by columns of {terms}"
    yield from _quantized(node, shapes, outputs if len(w) > 1 else 1, len(w) <= 2)
    if places.per_row is not None:
        rows = math.prod(x[:-1]), *x[-2:-1]
        yield from holds("a zero point of the rows", shapes[places.per_row], 1, *rows)


_PAIRS_OF_LEVELS = ("QLinearAdd", "QLinearMul")


_LEVELS = ("Sigmoid", "LeakyRelu", "GlobalAveragePool", "AveragePool", "Softmax")


@_demand(*(f"com.microsoft::{name}" for name in _PAIRS_OF_LEVELS))
@_demand(*(f"com.microsoft::QLinear{name}" for name in _LEVELS))
def _levels(node: Node, shapes: Shapes) -> Iterable[str]:
    places = (1, 2, 4, 5, 6, 7) if node.op_type in _PAIRS_OF_LEVELS else (1, 2, 3, 4)
    for place in places:
        yield from holds("a scale or zero point", shapes[place], 1)
    if node.op_type == "QLinearAveragePool":
        yield from window_faults(node, len(first_of(shapes)) - 2, kernel=True)

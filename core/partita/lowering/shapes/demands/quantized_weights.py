"""Demands of operators whose weights have few bits and a scale for each block."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import (
    Demand,
    Shapes,
    holds,
    is_of_shape,
    pair_of,
)

QUANTIZED_WEIGHTS_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, QUANTIZED_WEIGHTS_DEMANDS)


@_demand("com.microsoft::MatMulNBits")
def _matmul_nbits(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = pair_of(shapes)
    terms, columns, size = node.attrs["K"], node.attrs["N"], node.attrs["block_size"]
    bits = node.attrs.get("bits", 4)
    if min(terms, columns, size, bits) < 1:
        yield "K, N, block_size and bits are to be positive"
    if x[-1] != terms:
        yield f"rows of {x[-1]} cannot be multiplied by columns of {terms}"
    blocks = -(-terms // size)
    if math.prod(w):  # else it is left out
        yield from holds("the weights", w, columns * blocks * (size * bits // 8))
        yield from holds("the scales", shapes[2], columns * blocks)
        packed = columns * -(-blocks * bits // 8)
        yield from holds("the zero points", shapes[3], packed, columns * blocks)
    yield from holds("the bias", shapes[5], columns)


@_demand("com.microsoft::GatherBlockQuantized")
def _gather_block_quantized(node: Node, shapes: Shapes) -> Iterable[str]:
    data, scales = pair_of(shapes, 2)
    size, bits = node.attrs.get("block_size", 128), node.attrs.get("bits", 4)
    gathered, axis = node.attrs.get("gather_axis", 0), node.attrs.get("quantize_axis", 1)
    rank = len(data)
    if not (-rank <= axis < rank and -rank <= gathered < rank):
        yield f"gather_axis {gathered} and quantize_axis {axis} are to be dimensions of the data"
    if size < 1 or not 1 <= bits <= 8:
        yield "block_size is to be positive, and bits 1 to 8"
    axis %= rank
    # A byte holds one element or several: back-ends, which know the type of the data, know which.
    wholes = [(*data[:-1], data[-1] * each) for each in (1, 8 // bits)]
    blocks = [(*whole[:axis], -(-whole[axis] // size), *whole[axis + 1 :]) for whole in wholes]
    yield from is_of_shape("the scales", scales, *blocks)
    packed = (*scales[:-1], -(-scales[-1] * bits // 8))
    yield from is_of_shape("the zero points", shapes[3], packed, scales)

"""Quantized ConvTranspose with stride equal to its kernel, as QLinearConv and a rearrangement.

Its windows touch and do not overlap, so that each pixel becomes a block of pixels by one product.
"""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.quantized.levels import Levels
from partita.lowering.fusion.quantized.products import bias_levels
from partita.lowering.fusion.rewriting import Accepts, Rewriter, origins
from partita.lowering.geometry.axes import axis_of
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array


def put_blocks(graph: Graph, accepts: Accepts) -> None:
    """``Quantize(ConvTranspose(Dequantize(x), Dequantize(w)))`` becomes QLinearConv and a move.

    If windows lie side by side and cover a square of pixels each, its pixels are results of one
    convolution of 1 x 1, which DepthToSpace brings to their places. Scales and zero points must be
    constants; those of the weights may differ between outputs. Changes the graph, and bodies in it,
    in place.

    Args:
        graph: The graph, before constants are folded.
        accepts: Whether the back-end has a kernel for a node.
    """
    for node in graph.nodes:
        for body in node.graphs():
            put_blocks(body, accepts)
    rewriter = Rewriter(graph, accepts, {})
    placed: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        found = _blocks(rewriter, node) if node.kind == "ConvTranspose" else None
        result = None if found is None else found[-1].result
        quantize = rewriter.maker(result)
        if found is None or result is None or quantize is None:
            continue
        if all(map(accepts, found)):
            placed[quantize] = found
        else:
            result.producer = quantize
    if placed:
        graph.nodes = [step for node in graph.nodes for step in placed.get(node, [node])]
        graph.prune()


def _blocks(rewriter: Rewriter, node: Node) -> list[Node] | None:
    """The convolution and the move in place of a ConvTranspose and what quantizes its result."""
    x, w = (Levels.of(rewriter, value) for value in node.inputs[:2])
    relu = rewriter.only_user(node.outputs[0], "Relu")
    quantize = rewriter.only_user((relu or node).outputs[0], "QuantizeLinear")
    if x is None or w is None or quantize is None or x.scale.size != 1:
        return None
    y, result = Levels.named(quantize, np.dtype(np.uint8)), quantize.outputs[0]
    if y is None or result is None or y.scale.size != 1 or w.levels.const is None:
        return None
    if relu is not None and y.zero.item() != np.iinfo(y.zero.dtype).min:
        return None
    size = _block_size(node, w.levels.const)
    if size is None or w.scale.size not in (1, w.levels.const.shape[1]):
        return None
    if w.scale.size > 1 and axis_of(w.node, w.node.attrs.get("axis", 1), 4) != 1:
        return None
    bias = None
    if node.input(2) is not None:
        bias = bias_levels(rewriter, node.input(2), x, w)
        if bias is None or bias.const is None:
            return None
    weights = w.levels.const
    rows = weights.transpose(2, 3, 1, 0).reshape(-1, weights.shape[0], 1, 1)
    scale, zero = (_repeated(array, size * size) for array in (w.scale, w.zero))
    constants = [np.ascontiguousarray(rows), scale, zero]
    inputs = [x.levels, *x.constants(), *map(Value.constant, constants), *y.constants()]
    if bias is not None and bias.const is not None:
        inputs.append(Value.constant(np.tile(bias.const, size * size)))
    group = [node, *([] if relu is None else [relu]), quantize]
    together = Value("", y.zero.dtype)
    attrs = {"kernel_shape": [1, 1]}
    conv = Node("QLinearConv", inputs, [together], attrs, version=10, name=node.name)
    move = {"blocksize": size, "mode": "DCR"}
    place = Node("DepthToSpace", [together], [result], move, version=13, name=node.name)
    for step in (conv, place):
        step.stand_for(group)
        step.origins = origins(group)
    return [conv, place]


def _block_size(node: Node, weights: Array) -> int | None:
    """Pixels along a side of the square that each pixel becomes; ``None`` if windows do not touch.

    Args:
        node: The ConvTranspose.
        weights: (inputs, outputs, height, width).
    """
    if weights.ndim != 4 or node.attrs.get("group", 1) != 1 or not weights.size:
        return None
    height, width = weights.shape[2:]
    strides = list(node.attrs.get("strides") or (1, 1))
    padded = any(any(node.attrs.get(name) or ()) for name in ("pads", "output_padding"))
    dilated = set(node.attrs.get("dilations") or (1,)) != {1}
    said = node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if padded or dilated or said or node.attrs.get("output_shape"):
        return None
    return int(height) if height == width and strides == [height, width] else None


def _repeated(array: Array, times: int) -> Array:
    """Numbers of outputs for each place of a block; one for all as it is."""
    return array.reshape(()) if array.size == 1 else np.tile(array.reshape(-1), times)

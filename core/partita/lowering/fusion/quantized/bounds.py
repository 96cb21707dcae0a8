"""Bounds between a product of levels and QuantizeLinear are put behind it."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.quantized.levels import Levels
from partita.lowering.fusion.rewriting import Accepts, Rewriter
from partita.lowering.graph import Graph, Node, Value

_PRODUCTS = ("Conv", "MatMul", "Gemm")


def put_bounds_behind(graph: Graph, accepts: Accepts) -> None:
    """``Quantize(Relu(Conv(x)))`` becomes ``Quantize(Relu(Dequantize(Quantize(Conv(x)))))``.

    Rounding keeps the order of numbers, so that levels are the same; the product then ends in
    levels (`fuse_quantized`), and the bound is a table of theirs (`tabulate_levels`). A Relu whose
    0 is the least level stays: saturation does the same. Clip by constants is treated alike.
    Changes the graph, and bodies in it, in place.

    Args:
        graph: The graph, before constants are folded.
        accepts: Whether the back-end has a kernel for a node.
    """
    for node in graph.nodes:
        for body in node.graphs():
            put_bounds_behind(body, accepts)
    rewriter = Rewriter(graph, accepts, {})
    placed: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        bound = rewriter.only_user(node.result, "Relu", "Clip")
        if node.kind not in _PRODUCTS or bound is None or bound.inputs[0] is not node.result:
            continue
        quantize = rewriter.only_user(bound.result, "QuantizeLinear")
        x, w = (Levels.of(rewriter, value) for value in node.inputs[:2])
        if x is not None and w is not None and quantize is not None:
            pair = _pair(node, bound, quantize)
            if pair:
                bound.inputs[0] = pair[-1].result
                placed[node] = [node, *pair]
    if placed:
        graph.nodes = [step for node in graph.nodes for step in placed.get(node, [node])]


def _pair(node: Node, bound: Node, quantize: Node) -> list[Node]:
    """What makes levels of a product's result, and floats of these, if that changes nothing.

    Args:
        node: The product.
        bound: What bounds its result.
        quantize: What makes levels of that.
    """
    y, numbers = Levels.named(quantize, np.dtype(np.uint8)), bound.inputs[1:]
    if y is None or y.scale.size != 1 or not 0 < y.scale.item() < np.inf:
        return []
    if any(value is not None and value.const is None for value in numbers):
        return []
    saturates = y.zero.item() == np.iinfo(y.zero.dtype).min
    if bound.kind == "Relu" and saturates:
        return []
    result = node.result
    if result is None or result.dtype != np.float32:
        return []
    levels = Value("", y.zero.dtype, result.shape)
    floats = Value("", result.dtype, result.shape)
    constants = y.constants()
    first = Node("QuantizeLinear", [result, *constants], [levels], version=13, origins=())
    second = Node("DequantizeLinear", [levels, *constants], [floats], version=13, origins=())
    return [first, second]

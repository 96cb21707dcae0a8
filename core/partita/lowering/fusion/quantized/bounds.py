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
    0 is the least level stays: saturation does the same. Clip, Max and Min by constants are alike.
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
        bounds = _bounds_of(rewriter, node) if node.kind in _PRODUCTS else []
        if not bounds:
            continue
        quantize = rewriter.only_user(bounds[-1].result, "QuantizeLinear")
        x, w = (Levels.of(rewriter, value) for value in node.inputs[:2])
        if x is not None and w is not None and quantize is not None:
            pair = _pair(node, bounds, quantize)
            if pair:
                first = bounds[0]
                first.inputs = [pair[-1].result if v is node.result else v for v in first.inputs]
                placed[node] = [node, *pair]
    if placed:
        graph.nodes = [step for node in graph.nodes for step in placed.get(node, [node])]


def _bounds_of(rewriter: Rewriter, node: Node) -> list[Node]:
    """The operations by constants that bound a node's result, one behind another."""
    found: list[Node] = []
    value = node.result
    while True:
        bound = rewriter.only_user(value, "Relu", "Clip", "Max", "Min")
        others = [] if bound is None else [v for v in bound.inputs if v is not value and v]
        if bound is None or any(v.const is None or v.const.size != 1 for v in others):
            return found
        if bound.kind in ("Relu", "Clip") and bound.inputs[0] is not value:
            return found
        found.append(bound)
        value = bound.result


def _pair(node: Node, bounds: list[Node], quantize: Node) -> list[Node]:
    """What makes levels of a product's result, and floats of these, if that changes nothing.

    Args:
        node: The product.
        bounds: What bounds its result.
        quantize: What makes levels of that.
    """
    y = Levels.named(quantize, np.dtype(np.uint8))
    if y is None or y.scale.size != 1 or not 0 < y.scale.item() < np.inf:
        return []
    saturates = y.zero.item() == np.iinfo(y.zero.dtype).min
    if saturates and len(bounds) == 1 and bounds[0].kind == "Relu":
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

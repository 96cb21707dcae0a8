"""Quantized Concat and Split: parts are requantized each by itself, so that bytes are moved."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.quantized.levels import Levels
from partita.lowering.fusion.rewriting import Accepts, Rewriter
from partita.lowering.graph import Graph, Node, Value


def join_levels(graph: Graph, accepts: Accepts) -> None:
    """``Quantize(Concat(Dequantize(a), ...))`` becomes ``Concat(Quantize(Dequantize(a)), ...)``.

    Each element is quantized as before, so that results are the same. Levels whose scale the result
    shares are put together as they are, others by a table (`tabulate_levels`, to be run behind it).
    What Split makes of floats is treated alike: levels are split, and parts of which the result has
    other scales get these by a table. onnxruntime's QLinearConcat, which names no floats, becomes
    the same. All scales must be constants and for the whole tensor. Changes the graph, and bodies
    in it, in place.

    Args:
        graph: The graph, before constants are folded.
        accepts: Whether the back-end has a kernel for a node.
    """
    for node in graph.nodes:
        for body in node.graphs():
            join_levels(body, accepts)
    rewriter = Rewriter(graph, accepts, {})
    placed: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.kind == "com.microsoft::QLinearConcat":
            apart = _taken_apart(node)
            if apart is not None and all(map(accepts, apart)):
                placed[node] = apart
            elif node.result is not None:
                node.result.producer = node
            continue
        divided = _divided(rewriter, node) if node.kind == "Split" else None
        if divided is not None and accepts(divided[0][0]):
            placed[node] = divided[0]
            placed.update((quantize, []) for quantize in divided[1])
            continue
        found = _joined(rewriter, node) if node.kind == "Concat" else None
        if found is not None and accepts(found[0][-1]):
            steps, quantize = found
            placed[node], placed[quantize] = steps, []
    if placed:
        graph.nodes = [step for node in graph.nodes for step in placed.get(node, [node])]
        graph.prune()


def _joined(rewriter: Rewriter, concat: Node) -> tuple[list[Node], Node] | None:
    """The nodes in place of a Concat and of what quantizes its result, and that one."""
    quantize = rewriter.only_user(concat.outputs[0], "QuantizeLinear")
    result = None if quantize is None else quantize.outputs[0]
    if quantize is None or result is None:
        return None
    y = Levels.named(quantize, np.dtype(np.uint8))
    parts = [Levels.of(rewriter, value) for value in concat.inputs]
    if y is None or any(part is None or part.scale.size > 1 for part in (y, *parts)):
        return None
    steps, levels = [], []
    for part, value in zip(parts, concat.inputs, strict=True):
        if part is not None and part.same_as(y):
            levels.append(part.levels)
            continue
        made = Value("", y.zero.dtype)
        steps.append(quantize.like([value, *quantize.inputs[1:]], [made], origins=()))
        levels.append(made)
    together = concat.like(levels, [result], origins=(*concat.origins, *quantize.origins))
    return [*steps, together], quantize


def _taken_apart(node: Node) -> list[Node] | None:
    """The nodes in place of a QLinearConcat: levels of other scales get the result's before."""
    parts = [Levels.at(node, place, place + 1) for place in range(2, len(node.inputs), 3)]
    y = Levels.at(node, -1, 0)
    if y is None or node.result is None or not parts:
        return None
    steps, levels = [], []
    for part in parts:
        if part is None or part.zero.dtype != y.zero.dtype:
            return None
        if part.same_as(y):
            levels.append(part.levels)
            continue
        floats, made = Value("", np.dtype(np.float32)), Value("", y.zero.dtype)
        ends = ("DequantizeLinear", part, part.levels, floats), ("QuantizeLinear", y, floats, made)
        for op_type, of, value, result in ends:
            inputs = [value, *of.constants()]
            steps.append(Node(op_type, inputs, [result], version=13, name=node.name, origins=()))
        levels.append(made)
    together = Node("Concat", levels, [node.result], node.attrs, version=13, name=node.name)
    together.origins = node.origins
    together.stand_for([node])
    return [*steps, together]


def _divided(rewriter: Rewriter, split: Node) -> tuple[list[Node], list[Node]] | None:
    """The nodes in place of a Split of dequantized levels and of what quantizes all its results."""
    x = Levels.of(rewriter, split.inputs[0])
    if x is None or x.scale.size > 1 or x.levels.const is not None:
        return None
    steps, parts, quantized = [], [], []
    for value in split.outputs:
        quantize = rewriter.only_user(value, "QuantizeLinear")
        y = None if quantize is None else Levels.named(quantize, np.dtype(np.uint8))
        if value is None or quantize is None or y is None or y.scale.size > 1:
            return None
        quantized.append(quantize)
        if x.same_as(y):
            parts.append(quantize.result)
            continue
        part, floats = Value("", x.zero.dtype, value.shape), value.like()
        parts.append(part)
        inputs = [part, *x.constants()]
        kind = "DequantizeLinear"
        steps.append(Node(kind, inputs, [floats], version=13, name=split.name, origins=()))
        steps.append(quantize.like([floats, *quantize.inputs[1:]], quantize.outputs))
    return [split.like([x.levels, *split.inputs[1:]], parts), *steps], quantized

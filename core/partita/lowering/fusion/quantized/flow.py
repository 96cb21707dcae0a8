"""Between DequantizeLinear and QuantizeLinear: sums of two tensors, and what only moves levels."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.quantized.levels import Levels
from partita.lowering.fusion.rewriting import Rewriter, origins
from partita.lowering.graph import Node
from partita.model.op_traits import Trait, having

ROUNDED_STEPS = "rounded_steps"
"""Attribute, 1 on a QLinearAdd whose sum, too, is rounded to float32 before it is divided."""


def fuse_quantized_flow(rewriter: Rewriter) -> None:
    """``Quantize(Add(Dequantize(a), Dequantize(b)))`` becomes onnxruntime's QLinearAdd.

    Operators that select, as MaxPool and Reshape do, work on levels where both ends have the same
    scale. To be run with `fuse_quantized`, before constants are folded.
    """
    for node in rewriter.nodes():
        if node.kind == "Add":
            _fuse_sum(rewriter, node)
        elif node.kind in having(Trait.SELECTS):
            _fuse_move(rewriter, node)


def _fuse_sum(rewriter: Rewriter, node: Node) -> None:
    parts = [Levels.of(rewriter, value) for value in node.inputs]
    relu = rewriter.only_user(node.outputs[0], "Relu")
    quantize = rewriter.only_user((relu or node).outputs[0], "QuantizeLinear")
    if quantize is None or quantize.outputs[0] is None:
        return
    y = Levels.named(quantize, np.dtype(np.uint8))
    a, b = parts
    if a is None or b is None or y is None or max(a.scale.size, b.scale.size, y.scale.size) > 1:
        return
    if a.zero.dtype != y.zero.dtype or b.zero.dtype != y.zero.dtype:
        return
    if relu is not None and y.zero.item() != np.iinfo(y.zero.dtype).min:
        return
    group = [node, *([] if relu is None else [relu]), quantize]
    if not rewriter.inner(group, quantize.outputs[0]):
        return
    fused = Node(
        "QLinearAdd",
        [a.levels, *a.constants(), b.levels, *b.constants(), *y.constants()],
        [quantize.outputs[0]],
        {ROUNDED_STEPS: 1},
        domain="com.microsoft",
        name=node.name,
        origins=origins(group),
    )
    rewriter.replace(_with_sources(rewriter, group, [a.node, b.node]), fused)


def _fuse_move(rewriter: Rewriter, node: Node) -> None:
    x = Levels.of(rewriter, node.inputs[0])
    quantize = rewriter.only_user(node.outputs[0], "QuantizeLinear")
    if x is None or quantize is None or quantize.outputs[0] is None or any(node.outputs[1:]):
        return
    y = Levels.named(quantize, np.dtype(np.uint8))
    if y is None or x.scale.size != 1 or not x.same_as(y):
        return
    group = [node, quantize]
    if not rewriter.inner(group, quantize.outputs[0]):
        return
    inputs = [x.levels, *node.inputs[1:]]
    fused = node.like(inputs, quantize.outputs[:1], origins=origins(group))
    rewriter.replace(_with_sources(rewriter, group, [x.node]), fused)


def _with_sources(rewriter: Rewriter, group: list[Node], sources: list[Node]) -> list[Node]:
    """The group, and those of the nodes that bring floats to it which nobody else reads."""
    result = group[-1].outputs[0]
    for source in dict.fromkeys(sources):
        if result is not None and rewriter.inner([*group, source], result):
            group = [source, *group]
    return group

"""Quantized sums and normalizations, and operations that move elements, without dequantizing."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.norm import affine_rows
from partita.lowering.fusion.quantized.levels import Levels, known_floats
from partita.lowering.fusion.rewriting import Rewriter, origins
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array
from partita.model.op_traits import Trait, having

ROUNDED_STEPS = "rounded_steps"
"""Attribute, 1 on a QLinearAdd whose sum, too, is rounded to float32 before it is divided."""


def fuse_quantized_flow(rewriter: Rewriter) -> None:
    """``Quantize(Add(Dequantize(a), Dequantize(b)))`` becomes onnxruntime's QLinearAdd.

    ``Quantize(BatchNormalization(Dequantize(x)))`` becomes ``partita::LevelScaleShift`` of levels,
    their scale and zero point, a factor and a term for each channel, and the scale and zero point
    of the result. ``Quantize(Softmax(Dequantize(x)))`` over the last axis becomes
    ``partita::LevelSoftmax`` of levels, their scale, and the scale and zero point of the result. A
    Relu before QuantizeLinear is taken in where saturation does the same. Operators that select, as
    MaxPool and Reshape do, work on levels where both ends have the same scale. To be run with
    `fuse_quantized`, before constants are folded.
    """
    for node in rewriter.nodes():
        if node.kind == "Add":
            _fuse_sum(rewriter, node)
        elif node.kind == "BatchNormalization":
            _fuse_normalization(rewriter, node)
        elif node.kind == "Softmax":
            _fuse_softmax(rewriter, node)
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
    a, b = a.moved_to(y.zero.dtype), b.moved_to(y.zero.dtype)
    if a is None or b is None:
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


def _fuse_normalization(rewriter: Rewriter, node: Node) -> None:
    x, rows = Levels.of(rewriter, node.inputs[0]), _rows(rewriter, node)
    relu = rewriter.only_user(node.outputs[0], "Relu")
    quantize = rewriter.only_user((relu or node).outputs[0], "QuantizeLinear")
    if x is None or rows is None or quantize is None or any(node.outputs[1:]):
        return
    y, result = Levels.named(quantize, np.dtype(np.uint8)), quantize.outputs[0]
    if y is None or result is None or max(x.scale.size, y.scale.size) > 1:
        return
    if x.zero.dtype != y.zero.dtype or not _within_limits(x, rows, y):
        return
    if relu is not None and y.zero.item() != np.iinfo(y.zero.dtype).min:
        return
    group = [node, *([] if relu is None else [relu]), quantize]
    if not rewriter.inner(group, result):
        return
    numbers = [Value.constant(row.astype(np.float32)) for row in rows]
    fused = Node(
        "LevelScaleShift",
        [x.levels, *x.constants(), *numbers, *y.constants()],
        [result],
        domain="partita",
        name=node.name,
        origins=origins(group),
    )
    rewriter.replace(_with_sources(rewriter, group, [x.node]), fused)


def _fuse_softmax(rewriter: Rewriter, node: Node) -> None:
    x = Levels.of(rewriter, node.inputs[0])
    quantize = rewriter.only_user(node.outputs[0], "QuantizeLinear")
    if x is None or quantize is None or quantize.outputs[0] is None or not _is_of_rows(node, x):
        return
    y = Levels.named(quantize, np.dtype(np.uint8))
    if y is None or max(x.scale.size, y.scale.size) > 1:
        return
    if not (0 < x.scale.item() < _HUGE and _TINY < y.scale.item() < _HUGE):
        return
    inputs = [x.levels, *x.constants()[:1], *y.constants()]
    group = [node, quantize]
    fused = Node(
        "LevelSoftmax",
        inputs,
        [quantize.outputs[0]],
        domain="partita",
        name=node.name,
        origins=origins(group),
    )
    rewriter.replace(_with_sources(rewriter, group, [x.node]), fused)


def _is_of_rows(node: Node, x: Levels) -> bool:
    """Whether a Softmax is one over the last axis alone."""
    axis, shape = node.attrs.get("axis", -1), x.levels.shape
    return node.version >= 13 and (axis == -1 or (shape is not None and axis == len(shape) - 1))


def _rows(rewriter: Rewriter, node: Node) -> tuple[Array, Array] | None:
    """The factors and terms of a BatchNormalization, whose constants may be quantized."""
    known = [known_floats(rewriter, value) for value in node.inputs[1:5]]
    return affine_rows(Node(node.op_type, [None, *known], [Value()], node.attrs))


_TINY, _HUGE = 1e-20, 1e20


def _within_limits(x: Levels, rows: tuple[Array, Array], y: Levels) -> bool:
    """Whether factors and terms in steps of the result are far from float32's limits.

    Args:
        x: Levels that are multiplied and added to.
        rows: Factors and terms, by channel.
        y: What the sums are quantized to.
    """
    scale, divisor = abs(float(x.scale.item())), float(y.scale.item())
    largest = max(float(np.abs(row).max(initial=0)) for row in rows)
    within = _TINY < divisor < _HUGE and scale < _HUGE
    return within and (256 * scale + 1) * largest < _HUGE * min(divisor, 1)


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

"""Quantized convolutions and products: QDQ patterns become QLinearConv, QLinearMatMul and QGemm."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.quantized.levels import Levels, known_floats
from partita.lowering.fusion.rewriting import Rewriter, origins, other_input
from partita.lowering.geometry.axes import axis_of
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array

_BIAS_TOLERANCE = 1e-3

_MOST_OF_A_LEVEL = 1 / 64
"""A bias of floats is rounded to steps of sums where these are so small a part of a result's."""

_LARGEST_BIAS = 1 << 30


def fuse_quantized(rewriter: Rewriter) -> None:
    """``Quantize(Conv(Dequantize(x), Dequantize(w)))`` becomes QLinearConv.

    MatMul becomes QLinearMatMul, and Gemm onnxruntime's QGemm. Where no QuantizeLinear follows,
    both become onnxruntime's MatMulIntegerToFloat, with a row that is added, and Conv
    ``partita::LevelConv``: QLinearConv without what quantizes the result, with a bias of floats
    and, by the attribute ``relu``, a Relu. So does Conv whose bias is too fine for QLinearConv.

    To be run before constants are folded, since dequantized weights are constants. Scales and zero
    points must be constants; those of the weights may differ between outputs. A Relu before
    QuantizeLinear is taken in where saturation does the same.
    """
    for node in rewriter.nodes():
        if node.kind in ("Conv", "MatMul") or _is_plain_gemm(node):
            _fuse(rewriter, node)


def _fuse(rewriter: Rewriter, node: Node) -> None:
    x = Levels.of(rewriter, node.inputs[0])
    w = Levels.of(rewriter, node.inputs[1])
    relu = rewriter.only_user(node.outputs[0], "Relu")
    last = node if relu is None else relu
    quantize = rewriter.only_user(last.outputs[0], "QuantizeLinear")
    if x is None or w is None or x.scale.size != 1:
        return
    if quantize is None:
        _fuse_to_floats(rewriter, node, x, w)
        return
    y = Levels.named(quantize, np.dtype(np.uint8))
    weights = w.levels.const
    if y is None or y.scale.size != 1 or not _fits(node, w, weights):
        return
    if relu is not None and y.zero.item() != np.iinfo(y.zero.dtype).min:
        return
    sources = [x.levels, *x.constants(), w.levels, *w.constants()]
    bias = None
    if node.input(2) is not None:
        bias = bias_levels(rewriter, node.input(2), x, w)
        bias = _rounded_bias(rewriter, node.input(2), x, w, y) if bias is None else bias
        if bias is None:
            _fuse_to_floats(rewriter, node, x, w)
            return
    gemm = node.op_type == "Gemm"
    inputs: list[Value | None] = [*sources, *([bias] if gemm else []), *y.constants()]
    if bias is not None and not gemm:
        inputs.append(bias)
    group = [node, *([] if relu is None else [relu]), quantize]
    if quantize.outputs[0] is None or not rewriter.inner(group, quantize.outputs[0]):
        return
    for source in {id(n): n for n in (x.node, w.node)}.values():
        if rewriter.inner([*group, source], quantize.outputs[0]):
            group.append(source)
    attrs = {"transB": node.attrs.get("transB", 0)} if gemm else node.attrs
    fused = Node(
        "QGemm" if gemm else f"QLinear{node.op_type}",
        inputs,
        [quantize.outputs[0]],
        attrs,
        domain="com.microsoft" if gemm else "",
        version=1 if gemm else 10,
        name=node.name,
        origins=origins(group),
    )
    rewriter.replace(group, fused)


def _fuse_to_floats(rewriter: Rewriter, node: Node, x: Levels, w: Levels) -> None:
    """A product of levels whose result stays floats, and a row of constants that is added to it."""
    weights, levels = w.levels.const, w.levels
    if not _fits(node, w, weights):
        return
    if node.op_type == "Conv":
        _fuse_convolution(rewriter, node, x, w)
        return
    if node.op_type == "Gemm" and node.attrs.get("transB", 0):
        if weights is None:
            return
        levels = Value.constant(np.ascontiguousarray(weights.T))
    shape = levels.shape
    columns = None if shape is None else shape[-1]
    bias, add, result = node.input(2), None, node.result
    if bias is None:
        add = rewriter.only_user(result, "Add")
        bias = None if add is None else other_input(add, result)
    if bias is not None and (bias.const is None or bias.const.shape != (columns,)):
        if node.op_type == "Gemm":
            return
        bias, add = None, None
    if bias is not None and bias.dtype != np.float32:
        return
    last = node if add is None or bias is None else add
    if last.result is None:
        return
    scales, zeros = zip(x.constants(), w.constants(), strict=True)
    group = list(dict.fromkeys([node, last]))
    for source in dict.fromkeys((x.node, w.node)):
        if rewriter.inner([*group, source], last.result):
            group.append(source)
    fused = Node(
        "MatMulIntegerToFloat",
        [x.levels, levels, *scales, *zeros, *([] if bias is None else [bias])],
        [last.result],
        domain="com.microsoft",
        name=node.name,
        origins=origins(group),
    )
    rewriter.replace(group, fused)


def _fuse_convolution(rewriter: Rewriter, node: Node, x: Levels, w: Levels) -> None:
    """A convolution of levels, all of which each output reads, whose result stays floats."""
    bias, result = known_floats(rewriter, node.input(2)), node.result
    if node.attrs.get("group", 1) != 1 or result is None or w.levels.const is None:
        return
    if bias is not None and (bias.const is None or bias.const.dtype != np.float32):
        return
    relu = rewriter.only_user(result, "Relu")
    group, attrs = [node], node.attrs
    if relu is not None and relu.result is not None:
        group, result, attrs = [node, relu], relu.result, {**node.attrs, "relu": 1}
    for source in dict.fromkeys((x.node, w.node)):
        if rewriter.inner([*group, source], result):
            group.append(source)
    inputs = [x.levels, *x.constants(), w.levels, *w.constants(), *([] if bias is None else [bias])]
    fused = Node("LevelConv", inputs, [result], attrs, domain="partita", name=node.name)
    fused.origins = origins(group)
    rewriter.replace(group, fused)


def _is_plain_gemm(node: Node) -> bool:
    """Whether a Gemm is a product of a matrix and weights, and a bias."""
    if node.kind != "Gemm" or node.attrs.get("transA", 0):
        return False
    return bool(node.number("alpha", 1.0) == node.number("beta", 1.0) == 1.0)


def _fits(node: Node, w: Levels, weights: Array | None) -> bool:
    """Whether scales of the weights are one, or one per output; matrices may be of the run."""
    if weights is None:
        return node.op_type == "MatMul" and w.scale.size == 1
    if node.op_type != "Conv" and weights.ndim != 2:
        return False
    if w.scale.size == 1:
        return True
    axis = axis_of(w.node, w.node.attrs.get("axis", 1), weights.ndim)
    first = node.op_type == "Conv" or node.attrs.get("transB", 0)
    output = 0 if first else weights.ndim - 1
    return axis == output and w.scale.size == weights.shape[output]


def _rounded_bias(
    rewriter: Rewriter, value: Value | None, x: Levels, w: Levels, y: Levels
) -> Value | None:
    """A bias of constant floats as levels of sums, where these are much finer than the result's."""
    floats = known_floats(rewriter, value)
    row = None if floats is None else floats.const
    if row is None or row.ndim != 1 or row.dtype != np.float32:
        return None
    steps = (x.scale.astype(np.float64) * w.scale).reshape(-1)
    if steps.size not in (1, row.size) or steps.min(initial=1) <= 0:
        return None
    levels = np.rint(row / steps)
    largest = np.abs(levels).max(initial=0)
    fine = steps.max(initial=0) <= _MOST_OF_A_LEVEL * float(y.scale.item())
    if not (fine and largest < _LARGEST_BIAS):  # so of infinity, and of what is no number
        return None
    return Value.constant(levels.astype(np.int32))


def bias_levels(rewriter: Rewriter, value: Value | None, x: Levels, w: Levels) -> Value | None:
    """The int32 levels of a bias that is quantized as sums of products are; ``None`` if it is not.

    Args:
        rewriter: Of the graph.
        value: The bias in floats.
        x: What is multiplied by the weights.
        w: The weights.
    """
    node = rewriter.maker(value, "DequantizeLinear")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    levels, scale, zero = node.inputs[0].const, node.inputs[1].const, node.input(2)
    if levels is None or scale is None or levels.dtype != np.int32 or levels.ndim != 1:
        return None
    if zero is not None and (zero.const is None or zero.const.any()):
        return None
    product = (x.scale * w.scale).reshape(-1)
    if not np.allclose(scale.reshape(-1), product, rtol=_BIAS_TOLERANCE, atol=0):
        return None
    return node.inputs[0]

"""Floats between DequantizeLinear and QuantizeLinear: products that integers compute as well."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.rewriting import Rewriter, origins
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_BIAS_TOLERANCE = 1e-3


def fuse_quantized(rewriter: Rewriter) -> None:
    """``Quantize(Conv(Dequantize(x), Dequantize(w)))`` becomes QLinearConv, MatMul QLinearMatMul.

    To be run before constants are folded, since dequantised weights are constants. Scales and zero
    points must be constants; those of the weights may differ between outputs. A Relu before
    QuantizeLinear is taken in where saturation does the same.
    """
    for node in rewriter.nodes():
        if node.kind in ("Conv", "MatMul"):
            _fuse(rewriter, node)


def _fuse(rewriter: Rewriter, node: Node) -> None:
    x = _Levels.of(rewriter, node.inputs[0])
    w = _Levels.of(rewriter, node.inputs[1])
    relu = rewriter.only_user(node.outputs[0], "Relu")
    last = node if relu is None else relu
    quantize = rewriter.only_user(last.outputs[0], "QuantizeLinear")
    if x is None or w is None or quantize is None or x.scale.size != 1:
        return
    y = _Levels.named(quantize, np.dtype(np.uint8))
    weights = w.levels.const
    if y is None or y.scale.size != 1 or weights is None or not _fits(node, w, weights):
        return
    if relu is not None and y.zero.item() != np.iinfo(y.zero.dtype).min:
        return
    parameters = [x.levels, *x.constants(), w.levels, *w.constants(), *y.constants()]
    inputs: list[Value | None] = [*parameters]
    if node.input(2) is not None:
        bias = _bias(rewriter, node.input(2), x, w)
        if bias is None:
            return
        inputs.append(bias)
    group = [node, *([] if relu is None else [relu]), quantize]
    if quantize.outputs[0] is None or not rewriter.inner(group, quantize.outputs[0]):
        return
    for source in {id(n): n for n in (x.node, w.node)}.values():
        if rewriter.inner([*group, source], quantize.outputs[0]):
            group.append(source)
    fused = Node(
        f"QLinear{node.op_type}",
        inputs,
        [quantize.outputs[0]],
        node.attrs,
        version=10,
        name=node.name,
        origins=origins(group),
    )
    rewriter.replace(group, fused)


class _Levels:
    """Quantised numbers: the levels, and the constants that make floats of them."""

    def __init__(self, node: Node, levels: Value, scale: Array, zero: Array) -> None:
        self.node, self.levels, self.scale, self.zero = node, levels, scale, zero

    @classmethod
    def of(cls, rewriter: Rewriter, value: Value | None) -> _Levels | None:
        """What a DequantizeLinear makes floats of, if it is bytes by constants."""
        node = rewriter.maker(value, "DequantizeLinear")
        if node is None or node.inputs[0] is None or node.inputs[0].dtype not in _BYTES:
            return None
        return cls.named(node, node.inputs[0].dtype)

    @classmethod
    def named(cls, node: Node, dtype: np.dtype[np.generic] | None) -> _Levels | None:
        """The constants of a node; a zero point that is left out is 0 of the type."""
        scale, zero = node.inputs[1], node.input(2)
        if scale is None or scale.const is None or node.inputs[0] is None:
            return None
        if scale.const.dtype != np.float32 or node.attrs.get("block_size"):
            return None
        kinds = (node.attrs.get("output_dtype"), node.attrs.get("precision"))
        if any(kinds) or (zero is not None and zero.const is None):
            return None
        zeros = np.zeros(scale.const.shape, dtype) if zero is None else zero.const
        if zeros is None or zeros.dtype not in _BYTES or zeros.size != scale.const.size:
            return None
        return cls(node, node.inputs[0], scale.const, zeros)

    def constants(self) -> list[Value]:
        """Scale and zero point, without dimensions or with one."""
        shape: tuple[int, ...] = () if self.scale.size == 1 else (-1,)
        return [Value.constant(array.reshape(shape)) for array in (self.scale, self.zero)]


def _fits(node: Node, w: _Levels, weights: Array) -> bool:
    """Whether scales of the weights are one, or one per output."""
    if node.op_type == "MatMul" and weights.ndim != 2:
        return False
    if w.scale.size == 1:
        return True
    axis = int(w.node.attrs.get("axis", 1)) % weights.ndim
    output = 0 if node.op_type == "Conv" else weights.ndim - 1
    return axis == output and w.scale.size == weights.shape[output]


def _bias(rewriter: Rewriter, value: Value | None, x: _Levels, w: _Levels) -> Value | None:
    """The int32 levels of a bias that is quantised as sums of products are."""
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

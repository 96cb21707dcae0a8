"""Channels that become squares of pixels are computed in the order in which they lie there."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.rewriting import Rewriter, fusion_pass
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array


@fusion_pass(92)
def order_shuffled_channels(rewriter: Rewriter) -> None:
    """A convolution before a DepthToSpace of mode CRD takes its channels' order upon itself.

    Outputs of the convolution are put in the order of mode DCR, by which all channels of a pixel
    lie together before and after: with channels last, runs of them are moved instead of single
    elements. PyTorch's pixel shuffle, behind which networks make larger images, is of mode CRD.
    """
    for node in rewriter.nodes():
        if node.kind == "DepthToSpace" and node.attrs.get("mode") == "CRD":
            _order(rewriter, node)


def _order(rewriter: Rewriter, shuffle: Node) -> None:
    conv = rewriter.maker(shuffle.inputs[0], "Conv", "partita::Conv")
    if conv is None or rewriter.only_user(conv.outputs[0]) is not shuffle:
        return
    weights, bias, rest = conv.inputs[1], conv.input(2), conv.inputs[3:]
    squares = int(shuffle.attrs["blocksize"]) ** 2
    if any(value is not None for value in rest) or conv.attrs.get("group", 1) != 1:
        return
    if weights is None or weights.const is None or weights.const.shape[0] % squares:
        return
    if bias is not None and (bias.const is None or bias.const.ndim != 1):
        return
    inputs = [conv.inputs[0], _ordered(weights, squares)]
    inputs += [None if bias is None else _ordered(bias, squares), *rest]
    if rewriter.replace([conv], conv.like(inputs)):
        rewriter.replace([shuffle], shuffle.like(attrs={"mode": "DCR"}))


def _ordered(value: Value, squares: int) -> Value:
    """Weights or a bias by places in a square, then by channels of a pixel."""
    array: Array = np.asarray(value.const)
    parts = array.reshape(-1, squares, *array.shape[1:]).swapaxes(0, 1)
    return Value.constant(np.ascontiguousarray(parts.reshape(array.shape)), value.name)

"""Zero padding moves into the convolution after it."""

from __future__ import annotations

from partita.lowering.fusion.rewriting import Rewriter, fusion_pass, is_scalar, origins
from partita.lowering.graph import Node


@fusion_pass(70)
def fuse_pads(rewriter: Rewriter) -> None:
    """A Pad with zeros along spatial axes, read by Convs alone, becomes their own padding.

    Exporters compute it of the image's shape where strides are to leave no rest ("SAME").
    """
    for node in rewriter.nodes():
        if node.kind == "Pad":
            _fuse(rewriter, node)


def _fuse(rewriter: Rewriter, pad: Node) -> None:
    convs, pads = rewriter.readers(pad.outputs[0]), _zero_pads(pad)
    if pads is None or not all(_takes(conv, pad, pads) for conv in convs):
        return
    for conv in convs[:-1]:
        if not rewriter.replace([conv], _padded(conv, pad, pads, [conv])):
            return
    for conv in convs[-1:]:
        rewriter.replace([pad, conv], _padded(conv, pad, pads, [pad, conv]))


def _takes(conv: Node, pad: Node, pads: list[int]) -> bool:
    """Whether a convolution can pad by itself what it reads padded."""
    if conv.kind not in ("Conv", "partita::Conv"):
        return False
    rank = len(pads) // 2
    channels = [*pads[:2], *pads[rank : rank + 2]]
    if rank < 3 or any(channels) or min(pads) < 0:
        return False
    if conv.inputs[0] is not pad.outputs[0] or conv.inputs.count(pad.outputs[0]) > 1:
        return False
    if conv.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    return len(conv.attrs.get("pads") or pads[4:]) == len(pads[4:])


def _padded(conv: Node, pad: Node, pads: list[int], replaced: list[Node]) -> Node:
    """The convolution with the padding as its own."""
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    own = conv.attrs.get("pads") or [0] * (2 * (rank - 2))
    attrs = {
        "auto_pad": "NOTSET",
        "pads": [a + b for a, b in zip(own, [*begins[2:], *ends[2:]], strict=True)],
    }
    inputs = [pad.inputs[0], *conv.inputs[1:]]
    return conv.like(inputs, attrs=attrs, origins=origins(replaced))


def _zero_pads(node: Node) -> list[int] | None:
    """All begins, then all ends, if the node pads every axis by constants with zeros."""
    if node.attrs.get("mode", "constant") != "constant" or node.input(3) is not None:
        return None
    if node.version < 11:
        pads = node.attrs.get("pads") or node.attrs.get("paddings")
        return None if node.attrs.get("value", 0.0) else pads
    amounts, value = node.input(1), node.input(2)
    if amounts is None or amounts.const is None or amounts.const.ndim != 1:
        return None
    if value is not None and not is_scalar(value, 0.0):
        return None
    return [int(amount) for amount in amounts.const]

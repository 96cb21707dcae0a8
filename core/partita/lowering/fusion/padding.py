"""Zero padding moves into the convolution after it."""

from __future__ import annotations

from partita.lowering.fusion.rewriting import Rewriter, fusion_pass, is_scalar, origins
from partita.lowering.graph import Node


@fusion_pass(70)
def fuse_pads(rewriter: Rewriter) -> None:
    """A Pad with zeros along spatial axes, read by one Conv, becomes the Conv's own padding."""
    for node in rewriter.nodes():
        if node.kind == "Pad":
            _fuse(rewriter, node)


def _fuse(rewriter: Rewriter, pad: Node) -> None:
    conv = rewriter.only_user(pad.outputs[0], "Conv")
    if conv is None or conv.inputs[0] is not pad.outputs[0]:
        return
    pads = _zero_pads(pad)
    if pads is None or conv.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    if rank < 3 or any(begins[:2]) or any(ends[:2]) or min(pads) < 0:
        return
    own = conv.attrs.get("pads") or [0] * (2 * (rank - 2))
    if len(own) != 2 * (rank - 2):
        return
    attrs = {key: value for key, value in conv.attrs.items() if key != "auto_pad"}
    attrs["pads"] = [a + b for a, b in zip(own, [*begins[2:], *ends[2:]], strict=True)]
    fused = Node(
        "Conv",
        [pad.inputs[0], *conv.inputs[1:]],
        conv.outputs,
        attrs,
        version=conv.version,
        name=conv.name,
        origins=origins([pad, conv]),
    )
    rewriter.replace([pad, conv], fused)


def _zero_pads(node: Node) -> list[int] | None:
    """All begins, then all ends, if the node pads every axis by constants with zeros."""
    if node.attrs.get("mode", "constant") != "constant" or node.input(3) is not None:
        return None
    if node.version < 11:
        pads = node.attrs.get("pads") or node.attrs.get("paddings")
        return None if node.attrs.get("value", 0.0) else pads
    amounts, value = node.input(1), node.input(2)
    if amounts is None or amounts.const is None:
        return None
    if value is not None and not is_scalar(value, 0.0):
        return None
    return [int(amount) for amount in amounts.const]

"""Pools that round up, for ONNX's inference: before opset 22 it counts windows that do not exist.

With ``ceil_mode`` a last window may reach beyond the padding, but must start before it; one that
would start in the padding behind is not computed. Inference counts it for operators older than
opset 22. So where sizes are known, the padding is made such that rounding down counts right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.model.inference.known_shapes import scopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

_POOLS = ("MaxPool", "AveragePool", "LpPool")


def settle_rounding(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Rewrites the pools of a model that is there for inference alone.

    Args:
        proto: The model; changed in place.
        inferred: The same with the shapes that are known by now.

    Returns:
        Whether there was something to rewrite, so that inference has more to find.
    """
    changed = False
    for scope in scopes(proto, inferred):
        for node in scope.graph.node:
            if node.op_type not in _POOLS or not _rounds_up(node):
                continue
            sizes = scope.shape(node.input[0]) if node.input else None
            if sizes is not None and len(sizes) > 2 and None not in sizes[2:]:
                changed |= _settle(node, sizes[2:])  # type: ignore[arg-type]  # none is None
    return changed


def _rounds_up(node: onnx.NodeProto) -> bool:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    rounds = "ceil_mode" in attributes and attributes["ceil_mode"].i == 1
    return rounds and ("auto_pad" not in attributes or attributes["auto_pad"].s == b"NOTSET")


def _settle(node: onnx.NodeProto, sizes: Sequence[int]) -> bool:
    rank = len(sizes)
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    kernel = given.get("kernel_shape", [])
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    pads = given.get("pads", [0] * 2 * rank)
    lists = (kernel, strides, dilations)
    if any(len(values) != rank for values in lists) or len(pads) != 2 * rank:
        return False
    if any(value < 1 for values in lists for value in values) or min(pads) < 0:
        return False
    for axis, (size, width, stride, apart) in enumerate(
        zip(sizes, kernel, strides, dilations, strict=True)
    ):
        low, high, reach = pads[axis], pads[axis + rank], (width - 1) * apart + 1
        room = size + low + high - reach
        if room < 0:
            return False
        last = -(-room // stride)
        if last * stride >= size + low:
            last -= 1
        if last != room // stride:
            pads[axis + rank] = last * stride + reach - size - low
    kept = [a for a in node.attribute if a.name not in ("ceil_mode", "pads")]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.add(name="pads", type=7, ints=pads)  # AttributeProto.INTS
    return True

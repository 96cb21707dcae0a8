"""Pools that round up, for ONNX's inference: before opset 22 it counts windows that do not exist.

With ``ceil_mode`` a last window may reach beyond the padding, but must start before it; one that
would start in the padding behind is not computed. Inference counts it for operators older than
opset 22. So inference gets a window that has as many places when it rounds down, for any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.model.inference.known_shapes import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx

    from partita.model.inference.known_shapes import Scope

_POOLS = ("MaxPool", "AveragePool", "LpPool")


def settle_rounding(scopes: Iterable[Scope]) -> bool:
    """Rewrites the pools of a model that is there for inference alone.

    Args:
        scopes: Its graphs, changed in place, with the shapes that are known by now.

    Returns:
        Whether there was something to rewrite, so that inference has more to find.
    """
    return settle(scopes, _POOLS, _settle)


def _settle(scope: Scope, place: int) -> bool:
    """Puts a window in the place of one that rounds up, unless there is something wrong with it.

    With ``SAME_UPPER`` and ``SAME_LOWER`` the number of windows does not depend on how it rounds.
    """
    node = scope.graph.node[place]
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if "ceil_mode" not in attributes or attributes["ceil_mode"].i != 1:
        return False
    padding = attributes["auto_pad"].s if "auto_pad" in attributes else b"NOTSET"
    if padding.startswith(b"SAME"):
        node.attribute.remove(attributes["ceil_mode"])
        return True
    shape = scope.shape(node.input[0]) if node.input else None
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    kernel = given.get("kernel_shape", [])
    rank = len(kernel)
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    pads = [0] * 2 * rank if padding == b"VALID" else given.get("pads", [0] * 2 * rank)
    lists = (kernel, strides, dilations)
    if any(len(values) != rank for values in lists) or len(pads) != 2 * rank:
        return False
    if any(value < 1 for values in lists for value in values) or min(pads) < 0:
        return False
    sizes = [] if shape is None else shape[2:]
    reaches = [(width - 1) * apart + 1 for width, apart in zip(kernel, dilations, strict=True)]
    low, high = pads[:rank], pads[rank:]
    if len(sizes) != rank:
        return False
    axes = list(zip(sizes, low, high, reaches, strides, strict=True))
    if any(
        size is not None and size + first + last - reach <= -2 * stride
        for size, first, last, reach, stride in axes
    ):
        return False  # devices refuse a number of windows that is negative
    widths = [_width(*axis) for axis in axes]
    kept = [a for a in node.attribute if a.name not in ("auto_pad", "ceil_mode", "dilations")]
    del node.attribute[:]
    node.attribute.extend(kept)
    _set(node, kernel_shape=widths, pads=[*low, *[0] * rank])
    return True


def _width(size: int | None, first: int, last: int, reach: int, stride: int) -> int:
    """The width of a window that has as many places when it rounds down, not padded behind.

    Places behind the first one are ceil((size + first + last - reach) / stride), and no more than
    ceil((size + first) / stride) - 1. That is floor((size + first - width) / stride) with the
    second width here. Inference rounds towards zero instead, and so counts one where there is none.

    Args:
        size: Of the input along this axis, if it is known.
        first: The padding in front.
        last: That behind.
        reach: From the first element of the window to the last.
        stride: Between windows.
    """
    if size is not None and size + first + last - reach <= -stride:
        return size + first + stride
    return 1 + max(reach - stride - last, 0)


def _set(node: onnx.NodeProto, **lists: Sequence[int]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name not in lists]
    del node.attribute[:]
    node.attribute.extend(kept)
    for name, values in lists.items():
        node.attribute.add(name=name, type=7, ints=values)  # AttributeProto.INTS

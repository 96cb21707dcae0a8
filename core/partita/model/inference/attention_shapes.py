"""Attention of tensors whose sizes vary, for ONNX's inference: it takes what it cannot know for 0.

Of tensors with three dimensions (batch, length, heads * size) the result is as wide as the heads of
values, and scores are as long as past and present keys together. Inference (onnx 1.23) multiplies
and adds these sizes without asking whether they are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.model.inference.pool_shapes import known_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

_KEYS, _VALUES, _PAST_KEYS = 1, 2, 4
_SCORES = 3


def settle_attention(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Rewrites the attention of a model that is there for inference alone.

    Args:
        proto: The model; changed in place.
        inferred: The same with the shapes that are known by now.

    Returns:
        Whether there was something to rewrite, so that inference has more to find.
    """
    if not any(map(_is_attention, proto.graph.node)):
        return False
    shapes = known_shapes(inferred.graph)
    changed = False
    for place, node in reversed(list(enumerate(proto.graph.node))):
        if not _is_attention(node):
            continue
        if _given(node.output, _SCORES) and not _knows_length(node, shapes):
            node.output[_SCORES] = ""
            changed = True
        made = _given(node.output, 0)
        if len(shapes.get(made, ())) == 3 and not _knows(shapes, _given(node.input, _VALUES), 2):
            node.output[0] = ""
            proto.graph.node.insert(place + 1, _of_some_width(proto.graph, node.input[0], made))
            changed = True
    return changed


def _is_attention(node: onnx.NodeProto) -> bool:
    return node.op_type == "Attention" and node.domain in ("", "ai.onnx")


def _given(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else ""


def _knows_length(node: onnx.NodeProto, shapes: dict[str, list[int | None]]) -> bool:
    """Whether inference can tell how many keys there are."""
    keys, past = _given(node.input, _KEYS), _given(node.input, _PAST_KEYS)
    length = len(shapes.get(keys, ())) - 2
    return _knows(shapes, keys, length) and (not past or _knows(shapes, past, 2))


def _knows(shapes: dict[str, list[int | None]], name: str, axis: int) -> bool:
    shape = shapes.get(name, ())
    return 0 <= axis < len(shape) and shape[axis] is not None


def _of_some_width(graph: onnx.GraphProto, source: str, made: str) -> onnx.NodeProto:
    """An operation whose result is like the source, with a last dimension that nobody knows."""
    import onnx

    matrix = f"{made}/of some columns"
    kind = graph.input.add(name=matrix).type.tensor_type
    kind.elem_type = 1
    for _ in range(2):
        kind.shape.dim.add()
    return onnx.helper.make_node("MatMul", [source, matrix], [made])

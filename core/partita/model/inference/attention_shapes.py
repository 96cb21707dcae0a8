"""Attention of tensors whose sizes vary, for ONNX's inference: it takes what it cannot know for 0.

Of tensors with three dimensions (batch, length, heads * size) the result is as wide as the heads of
values, and scores are as long as past and present keys together. Inference (onnx 1.23) multiplies
and adds these sizes without asking whether they are known.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from partita.model.inference.contrib_shapes import FLOAT, add_source
from partita.model.inference.known_shapes import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx

    from partita.model.inference.known_shapes import Scope

_KEYS, _VALUES, _PAST_KEYS = 1, 2, 4
_SCORES = 3


def settle_attention(proto: onnx.ModelProto, scopes: Iterable[Scope]) -> bool:
    """Rewrites the attention of a model that is there for inference alone.

    Args:
        proto: The model; changed in place.
        scopes: Its graphs, with the shapes that are known by now.

    Returns:
        Whether there was something to rewrite, so that inference has more to find.
    """
    return settle(scopes, {"Attention"}, partial(_settle, proto))


def _settle(proto: onnx.ModelProto, scope: Scope, place: int) -> bool:
    """Leaves out results of an attention that inference gets wrong; others tell what is known."""
    node = scope.graph.node[place]
    others = []
    scores, made = _given(node.output, _SCORES), _given(node.output, 0)
    if scores and not _knows_length(node, scope):
        node.output[_SCORES] = ""
        others.append(_of_some_sizes(proto.graph, node.input[0], scores))
    is_flat = len(scope.shape(made) or ()) == 3
    if is_flat and not _knows(scope, _given(node.input, _VALUES), 2):
        node.output[0] = ""
        others.append(_of_some_width(proto.graph, node.input[0], made))
    for other in others:
        scope.graph.node.insert(place + 1, other)
    return bool(others)


def _given(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else ""


def _knows_length(node: onnx.NodeProto, scope: Scope) -> bool:
    """Whether inference can tell how many keys there are."""
    keys, past = _given(node.input, _KEYS), _given(node.input, _PAST_KEYS)
    length = len(scope.shape(keys) or ()) - 2
    return _knows(scope, keys, length) and (not past or _knows(scope, past, 2))


def _knows(scope: Scope, name: str, axis: int) -> bool:
    shape = scope.shape(name) or ()
    return 0 <= axis < len(shape) and shape[axis] is not None


def _of_some_width(main: onnx.GraphProto, source: str, made: str) -> onnx.NodeProto:
    """An operation whose result is like the source, with a last dimension that nobody knows."""
    import onnx

    return onnx.helper.make_node("MatMul", [source, _unknown(main, made, 2)], [made])


def _of_some_sizes(main: onnx.GraphProto, source: str, made: str) -> onnx.NodeProto:
    """An operation whose result has the type of the source and four dimensions."""
    import onnx

    return onnx.helper.make_node("CastLike", [_unknown(main, made, 4), source], [made])


def _unknown(main: onnx.GraphProto, made: str, rank: int) -> str:
    """Adds an input of dimensions that nobody knows, for bodies as well; its name."""
    return add_source(main, made, FLOAT, (None,) * rank)

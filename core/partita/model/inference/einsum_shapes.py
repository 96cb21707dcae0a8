"""Einsum of labels whose sizes differ, for ONNX's inference: it goes by the first input of each.

A size of 1 broadcasts to what another input has for the same label, as in numpy and PyTorch. So a
result may be larger than inference (onnx 1.23) says, and of symbols that differ no one holds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from partita.model.einsum_labels import labels_of
from partita.model.inference.contrib_shapes import add_source
from partita.model.inference.known_shapes import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx

    from partita.model.inference.known_shapes import Scope
    from partita.model.port import Dim


def settle_einsum(proto: onnx.ModelProto, scopes: Iterable[Scope]) -> bool:
    """Rewrites the Einsum operations of a model that is there for inference alone.

    Args:
        proto: The model; changed in place.
        scopes: Its graphs, with the shapes that are known by now.

    Returns:
        Whether there was something to rewrite, so that inference has more to find.
    """
    return settle(scopes, {"Einsum"}, partial(_settle, proto))


def _settle(proto: onnx.ModelProto, scope: Scope, place: int) -> bool:
    """Puts a result of the right sizes in the place of one that inference gets wrong."""
    node = scope.graph.node[place]
    found = scope.dims(node.output[0])
    inputs = [scope.dims(name) for name in node.input]
    equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
    known = [dims for dims in inputs if dims is not None]
    if found is None or len(known) != len(inputs):
        return False
    due = result_dims(equation, known)
    if due is None or due == found:
        return False
    source = add_source(proto.graph, node.output[0], scope.element_type(node.output[0]), due)
    node.op_type = "Identity"
    del node.input[:], node.attribute[:]
    node.input.append(source)
    return True


def result_dims(equation: str, inputs: Sequence[Sequence[Dim]]) -> list[Dim] | None:
    """Sizes of the result of an equation, or ``None`` if it does not fit.

    Example:
        >>> result_dims("ab, cb -> abc", [["n", 1], [3, 4]])
        ['n', 4, 3]
    """
    try:
        terms, result = labels_of(equation, inputs)
    except ValueError:
        return None  # whoever computes it says why
    sizes: dict[str, list[Dim]] = {}
    for labels, dims in zip(terms, inputs, strict=True):
        for label, dim in zip(labels, dims, strict=True):
            sizes.setdefault(label, []).append(dim)
    return [_broadcast(sizes[label]) for label in result]


def _broadcast(sizes: Iterable[Dim]) -> Dim:
    """What sizes of one label come to; ``None`` if that is not known."""
    others = [size for size in dict.fromkeys(sizes) if size != 1]
    numbers = [size for size in others if isinstance(size, int)]
    if numbers:
        return numbers[0]
    return (others or [1])[0] if len(others) < 2 else None

"""Transposed convolutions of a given size, for ONNX's inference: one below the input's ends it.

Where ``output_shape`` names a size smaller than the input's, inference stops behind batch and
channels, and the result is left with two dimensions. Such an image is cut by padding, which ONNX
allows and onnxruntime computes. So inference gets a window of one element and pads that come to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.model.inference.known_shapes import settle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partita.model.inference.known_shapes import Scope


def settle_output_shapes(scopes: Iterable[Scope]) -> bool:
    """Rewrites the transposed convolutions of a model that is there for inference alone.

    Args:
        scopes: Its graphs, changed in place, with the shapes that are known by now.

    Returns:
        Whether there was something to rewrite, so that inference has more to find.
    """
    return settle(scopes, ("ConvTranspose",), _settle)


def _settle(scope: Scope, place: int) -> bool:
    """Says by pads what a size smaller than the input's says; sizes that are unknown stay so."""
    node = scope.graph.node[place]
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    wanted = given.get("output_shape", [])
    shape = scope.shape(node.input[0]) if node.input else None
    sizes = [] if shape is None else shape[2:]
    if not wanted or len(sizes) != len(wanted) or min(wanted) < 1:
        return False
    pairs = list(zip(sizes, wanted, strict=True))
    if not any(size is not None and due < size for size, due in pairs):
        return False
    grown = [0 if size is None else due - size for size, due in pairs]
    rank = len(wanted)
    kept = [attribute for attribute in node.attribute if attribute.name == "group"]
    del node.attribute[:]
    node.attribute.extend(kept)
    lists = {
        "kernel_shape": [1] * rank,
        "pads": [*(max(-n, 0) for n in grown), *[0] * rank],
        "output_padding": [max(n, 0) for n in grown],
    }
    for name, values in lists.items():
        node.attribute.add(name=name, type=7, ints=values)  # AttributeProto.INTS
    return True

"""The graphs of a model that is there for inference, with the shapes that are known in each."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from partita.model.inference.followed_values import WITH_BODIES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import onnx

    from partita.model.port import Dim


def scopes(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> list[Scope]:
    """The main graph, and the bodies of its If, Loop and Scan operations at any depth.

    Args:
        proto: The model.
        inferred: The same, operation by operation, with the shapes that are known by now.
    """
    return _within(Scope(proto.graph, inferred.graph, None))


def settle(
    scopes: Iterable[Scope], op_types: Collection[str], rewrite: Callable[[Scope, int], bool]
) -> bool:
    """Rewrites ONNX's operations of some types, the last ones first: some put others behind them.

    Args:
        scopes: The graphs of a model that is there for inference alone; changed in place.
        op_types: Which operations.
        rewrite: Takes a graph and an operation's place in it; says whether it changed something.

    Returns:
        Whether something was changed, so that inference has more to find.
    """
    changed = False
    for scope in scopes:
        for place, node in reversed(list(enumerate(scope.graph.node))):
            if node.op_type in op_types and node.domain in ("", "ai.onnx"):
                changed |= rewrite(scope, place)
    return changed


class Scope:
    """A graph, and what is known of all values that its operations may read.

    Args:
        graph: The graph.
        inferred: The same with shapes.
        outer: What is around it, if it is a body.
    """

    def __init__(
        self, graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: Scope | None
    ) -> None:
        self.graph = graph
        self.inferred = inferred
        self._outer = outer

    def shape(self, name: str) -> list[int | None] | None:
        """The dimensions of a value, unknown ones as ``None``; ``None`` without a known rank."""
        dims = self.dims(name)
        return None if dims is None else [dim if isinstance(dim, int) else None for dim in dims]

    def dims(self, name: str) -> list[Dim] | None:
        """The same, with symbols."""
        if name in self._own:
            return self._own[name]
        return None if self._outer is None else self._outer.dims(name)

    def element_type(self, name: str) -> int:
        """ONNX's number of the type of a value that this graph makes; 0 if it is not known."""
        infos = (*self.inferred.value_info, *self.inferred.output)
        return next((info.type.tensor_type.elem_type for info in infos if info.name == name), 0)

    @functools.cached_property
    def _own(self) -> dict[str, list[Dim] | None]:
        """Of the values of this graph alone, constants among them."""
        graph = self.inferred
        own: dict[str, list[Dim] | None] = dict.fromkeys(
            name for node in graph.node for name in node.output
        )
        own |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
        own |= {
            info.name: [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                for dim in kind.shape.dim
            ]
            for info in (*graph.input, *graph.value_info, *graph.output)
            if (kind := info.type.tensor_type).HasField("shape")
        }
        return own


def _within(scope: Scope) -> list[Scope]:
    found = [scope]
    for node, same in zip(scope.graph.node, scope.inferred.node, strict=True):
        if node.op_type not in WITH_BODIES:
            continue
        for one, other in zip(node.attribute, same.attribute, strict=True):
            if one.type == one.GRAPH:
                found += _within(Scope(one.g, other.g, scope))
    return found

"""The rewriter that fusion passes use: producers and readers of values, and replacing nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np

from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array

Accepts = Callable[[Node], bool]

Shapes = Mapping[Value, tuple[int, ...]]
"""Concrete shapes of values, where they are known better than the graph knows them."""


Pass = Callable[["Rewriter"], None]

PASSES: dict[Pass, int] = {}
"""Pass to its place in the order in which passes help one another."""


def fusion_pass(place: int) -> Callable[[Pass], Pass]:
    """Enters a pass among those that every graph goes through.

    Args:
        place: Passes of smaller numbers run before it.
    """

    def enter(run: Pass) -> Pass:
        PASSES[run] = place
        return run

    return enter


class Rewriter:
    """What passes see of a graph, kept up to date while they change it.

    Attributes:
        graph: The graph; its node list is brought up to date by :meth:`finish`.
    """

    def __init__(self, graph: Graph, accepts: Accepts, shapes: Shapes) -> None:
        self.graph = graph
        self._accepts = accepts
        self._shapes = shapes
        self._outputs = set(graph.outputs)
        self._uses = graph.uses()
        self._makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self._gone: set[Node] = set()
        self._new: dict[Node, Node] = {}
        self._current: list[Node] | None = graph.nodes

    def nodes(self) -> Sequence[Node]:
        """The nodes as they are now, in order; most passes find them as the one before did."""
        if self._current is None:
            self._current = []
            for node in self.graph.nodes:
                while node in self._new:
                    node = self._new[node]
                if node not in self._gone:
                    self._current.append(node)
        return self._current

    def maker(self, value: Value | None, *kinds: str) -> Node | None:
        """The node of this graph that computes a value, if it is of one of the kinds."""
        node = None if value is None else self._makers.get(value)
        return node if node is not None and (not kinds or node.kind in kinds) else None

    def only_user(self, value: Value | None, *kinds: str) -> Node | None:
        """The single node that reads a value, once, if nobody else does and it is no output."""
        if value is None or value in self._outputs:
            return None
        users = self._uses.get(value, ())
        if len(users) != 1 or users[0] in self._gone:
            return None
        return users[0] if not kinds or users[0].kind in kinds else None

    def users(self, value: Value | None, kind: str) -> list[Node]:
        """The nodes that read a value, if all are of a kind and it is no output; else none."""
        users = self.readers(value)
        return users if all(node.kind == kind for node in users) else []

    def readers(self, value: Value | None) -> list[Node]:
        """The nodes that read a value, each once; none if it is an output."""
        found = [] if value is None or value in self._outputs else self._uses.get(value, [])
        return list(dict.fromkeys(node for node in found if node not in self._gone))

    def is_read_by(self, value: Value | None, kinds: Container[str]) -> bool:
        """Whether a node of one of the kinds reads a value."""
        users = () if value is None else self._uses.get(value, ())
        return any(user.kind in kinds for user in users)

    def same_shape(self, first: Value, second: Value) -> bool:
        """Whether two values surely have one shape: numbers and symbols agree."""
        shape = self._shapes.get(first, first.shape)
        other = self._shapes.get(second, second.shape)
        return shape is not None and shape == other and all(dim is not None for dim in shape)

    def inner(self, nodes: Iterable[Node], result: Value) -> bool:
        """Whether nothing but these nodes reads what they compute, ``result`` excepted."""
        group = set(nodes)
        for node in group:
            for made in node.outputs:
                if made is None or made is result:
                    continue
                if made in self._outputs or not group.issuperset(self._uses.get(made, ())):
                    return False
        return True

    def replace(self, nodes: Iterable[Node], new: Node) -> bool:
        """Puts ``new`` where the maker of its output was, in place of ``nodes``.

        Returns:
            Whether it was done; not if the back-end refuses the new node. Its outputs must be
            outputs of ``nodes``.
        """
        old = list(dict.fromkeys(nodes))
        result = new.outputs[0]
        if result is None or not self._accepts(new):
            for node in old:
                for value in node.outputs:
                    if value is not None:
                        value.producer = node
            return False
        new.stand_for(old)
        last = self._makers[result]
        for node in old:
            self._forget(node)
        self._new[last] = new
        self._learn(new)
        return True

    def remove(self, node: Node, source: Value) -> bool:
        """Lets readers of the node's first output read ``source`` instead.

        Returns:
            Whether it was done; not if the output is the graph's, or a body reads it.
        """
        target = node.outputs[0]
        if target is None or target in self._outputs:
            return False
        users = list(self._uses.get(target, ()))
        if any(target in body.captures() for user in users for body in user.graphs()):
            return False
        self._forget(node)
        for user in users:
            if user not in self._gone:
                user.inputs = [source if value is target else value for value in user.inputs]
                self._uses.setdefault(source, []).append(user)
        self._uses.pop(target, None)
        return True

    def finish(self) -> None:
        """Writes the changes into the graph."""
        self.graph.nodes = list(self.nodes())

    def _forget(self, node: Node) -> None:
        self._gone.add(node)
        self._current = None
        for value in node.reads():
            users = self._uses.get(value)
            if users is not None and node in users:
                users.remove(node)

    def _learn(self, node: Node) -> None:
        for value in node.reads():
            self._uses.setdefault(value, []).append(node)
        self._makers.update((made, node) for made in node.outputs if made is not None)


def scalar(value: Value | None) -> float | None:
    """The number that a constant of one element holds, or ``None``."""
    if value is None or value.const is None or value.const.size != 1:
        return None
    if value.const.dtype.kind not in "fiu" and value.const.dtype.name != "bfloat16":
        return None
    return float(value.const.reshape(-1)[0])


def is_scalar(value: Value | None, number: float, tolerance: float = 1e-4) -> bool:
    """Whether a value is a constant scalar near a number; spellings round differently."""
    found = scalar(value)
    return found is not None and math.isclose(found, number, rel_tol=tolerance)


def other_input(node: Node, value: Value | None) -> Value | None:
    """The other of two inputs; ``None`` if ``value`` is neither or both."""
    if len(node.inputs) != 2 or (node.inputs[0] is value) == (node.inputs[1] is value):
        return None
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def scalar_input(node: Node) -> tuple[Value, float] | None:
    """Of a node with two inputs, one of them a constant scalar: the other one and the number.

    The scalar must not widen the result: its rank is at most that of the other input.
    """
    if len(node.inputs) != 2:
        return None
    for first, second in (node.inputs, node.inputs[::-1]):
        number = scalar(second)
        if first is None or second is None or number is None or first.const is not None:
            continue
        rank = 0 if second.const is None else second.const.ndim
        if rank == 0 or (first.shape is not None and rank <= len(first.shape)):
            return first, number
    return None


def per_channel(const: Array, channels: int, value: Value) -> Array | None:
    """A constant as one float64 per channel, if multiplying ``value`` by it is that.

    ``value`` has its channels on axis 1. ``None`` if the constant varies along other axes, or
    might widen the result.
    """
    if not is_float(const):
        return None
    rank = None if value.shape is None else len(value.shape)
    if const.size == 1 and (const.ndim <= 1 or (rank is not None and const.ndim <= rank)):
        return np.full(channels, float(const.reshape(-1)[0]))
    if rank is None or const.ndim > rank:
        return None
    axis = const.ndim - rank + 1
    if axis < 0 or const.shape[axis] != channels or const.size != channels:
        return None
    return const.reshape(channels).astype(np.float64)


def origins(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The origins of all nodes, in order, without repetition."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.origins))


def is_float(array: Array) -> bool:
    """Whether an array is of a type in which weights are folded: float32 or float64."""
    return array.dtype in (np.dtype(np.float32), np.dtype(np.float64))

"""Which operations of a graph stand so near to one another that one launch may compute them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from partita.lowering import Graph, Node, Value


def neighbourhoods(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes in groups: each node reads what another one of its group writes or reads.

    Constants do not count: nodes far from one another may read the same.
    """
    touching: dict[Value, list[Node]] = defaultdict(list)
    for node in nodes:
        for value in _computed(node):
            touching[value].append(node)
    groups: list[list[Node]] = []
    seen: set[Node] = set()
    for first in nodes:
        group, left = [], [first]
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            group.append(node)
            for value in _computed(node):
                left += touching.pop(value, ())
        if group:
            groups.append(group)
    return groups


def nodes_between(graph: Graph, members: Collection[Node]) -> list[Node]:
    """The other nodes of a graph on ways from one member to another."""
    below: set[Value | None] = set()
    after: set[Node] = set()
    for node in graph.nodes:
        if not below.isdisjoint(node.reads()):
            after.add(node)
        if node in after or node in members:
            below.update(node.outputs)
    above: set[Value | None] = set()
    found: list[Node] = []
    for node in reversed(graph.nodes):
        if node in members or not above.isdisjoint(node.outputs):
            above.update(node.reads())
            found.append(node)
    return [node for node in found[::-1] if node in after and node not in members]


def _computed(node: Node) -> set[Value]:
    """What a node reads and writes, but for constants."""
    values = (*node.reads(), *node.outputs)
    return {value for value in values if value is not None and value.const is None}

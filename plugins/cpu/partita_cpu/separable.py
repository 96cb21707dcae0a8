"""Depthwise convolutions joined with the 1x1 convolution that alone reads them.

Works on graphs with channels last; see `layout`. Whether both become one step, which hangs on their
sizes, is decided when the step is made.
"""

from __future__ import annotations

from partita.lowering import Graph, Node, Value
from partita.lowering.channels_last import DOMAIN
from partita_cpu.native.product import needs_pass

_CONV = f"{DOMAIN}::Conv"


def join_separable(graph: Graph) -> None:
    """Puts one node in the place of both, where the second one computes."""
    uses = graph.uses()
    outputs = set(graph.outputs)
    taken: dict[Node, Node] = {}
    for node in graph.nodes:
        value = node.outputs[0]
        readers = uses.get(value, []) if value is not None else []
        if len(readers) == 1 and value not in outputs and _is_depthwise(node):
            reader = readers[0]
            if reader.inputs[0] is value and _is_pointwise(reader):
                taken[reader] = node
    gone = set(taken.values())
    graph.nodes = [
        _joined(taken[node], node) if node in taken else node
        for node in graph.nodes
        if node not in gone
    ]


def _is_depthwise(node: Node) -> bool:
    w, groups = node.input(1), int(node.attrs.get("group", 1))
    if node.kind != _CONV or w is None or w.const is None or any(node.inputs[3:]):
        return False
    simple = not needs_pass(node.attrs.get("activation"))
    return simple and bool(1 < groups == w.const.shape[0] and w.const.shape[1] == 1)


def _is_pointwise(node: Node) -> bool:
    w, attrs = node.input(1), node.attrs
    if node.kind != _CONV or w is None or w.const is None or "scaled" in attrs:
        return False
    plain = set(attrs.get("strides") or [1]) == {1} and not any(attrs.get("pads") or [0])
    single = int(attrs.get("group", 1)) == 1 and "channels" not in attrs
    return plain and single and w.const.shape[2:] == (1, 1)


def _joined(first: Node, second: Node) -> Node:
    inputs: list[Value | None] = [first.inputs[0], first.inputs[1], first.input(2)]
    inputs += [second.inputs[1], second.input(2), second.input(3), second.input(6)]
    return Node(
        "SeparableConv",
        inputs,
        second.outputs,
        {"first": first, "second": second},
        domain=DOMAIN,
        version=second.version,
        name=second.name,
        origins=(*first.origins, *second.origins),
    )

"""Depthwise convolutions joined with the 1x1 convolutions behind and in front of them.

Works on graphs with channels last (:mod:`partita_cpu.passes.nhwc`). Whether they become one step
depends on their sizes, and is decided when the step is made.
"""

from __future__ import annotations

from collections.abc import Callable

from partita.lowering import Graph, Node, Value
from partita.lowering.nhwc.conversion import DOMAIN
from partita_cpu.gemm.fused_activation import needs_pass

_CONV = f"{DOMAIN}::Conv"
_SEPARABLE = f"{DOMAIN}::SeparableConv"


def join_separable(graph: Graph) -> None:
    """Puts one node in the place of both, where the second one computes."""
    _join(graph, _is_depthwise, _is_pointwise, _joined)


def join_bottlenecks(graph: Graph) -> None:
    """The same with the 1x1 convolution in front of both that they alone read."""
    _join(graph, _is_wide, lambda node: node.kind == _SEPARABLE, _joined_bottleneck)


def _join(
    graph: Graph,
    is_first: Callable[[Node], bool],
    is_second: Callable[[Node], bool],
    joined: Callable[[Node, Node], Node],
) -> None:
    """Joins nodes of one kind with those of another that alone read them."""
    uses = graph.uses()
    outputs = set(graph.outputs)
    taken: dict[Node, Node] = {}
    for node in graph.nodes:
        value = node.result
        readers = uses.get(value, []) if value is not None else []
        if len(readers) == 1 and value not in outputs and is_first(node):
            reader = readers[0]
            if reader.inputs[0] is value and is_second(reader):
                taken[reader] = node
    gone = set(taken.values())
    graph.nodes = [
        joined(taken[node], node) if node in taken else node
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


def _is_wide(node: Node) -> bool:
    simple = _is_pointwise(node) and not any(node.inputs[3:])
    return simple and not needs_pass(node.attrs.get("activation"))


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


def _joined_bottleneck(wide: Node, rest: Node) -> Node:
    inputs = [wide.inputs[0], wide.inputs[1], wide.input(2), *rest.inputs[1:]]
    return Node(
        "BottleneckConv",
        inputs,
        rest.outputs,
        {"wide": wide, "rest": rest},
        domain=DOMAIN,
        version=rest.version,
        name=rest.name,
        origins=(*wide.origins, *rest.origins),
    )

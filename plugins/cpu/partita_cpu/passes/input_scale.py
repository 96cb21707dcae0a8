"""Factors and summands per channel, applied while the input of a product is copied.

Works on graphs with channels last; see `passes.nhwc`.
"""

from __future__ import annotations

from partita.lowering import Graph, Node, Value
from partita.lowering.nhwc.conversion import DOMAIN
from partita_cpu.gemm.fused_activation import bounds_of

_SCALE, _CONV = f"{DOMAIN}::ScaleShift", f"{DOMAIN}::Conv"


def fuse_input_scale(graph: Graph) -> None:
    """Lets 1x1 convolutions that alone read a scaled image scale it while they lay it out."""
    uses = graph.uses()
    outputs = set(graph.outputs)
    taken: dict[Node, Node] = {}
    for node in graph.nodes:
        result = node.result
        readers = uses.get(result, []) if result is not None else []
        alone = node.kind == _SCALE and len(readers) == 1 and result not in outputs
        if alone and not bounds_of(node.attrs.get("activation"))[2].code:
            reader = readers[0]
            if _is_pointwise(reader) and reader.inputs.count(result) == 1:
                taken[reader] = node
    if not taken:
        return
    gone = set(taken.values())
    graph.nodes = [
        _scaled(node, taken[node]) if node in taken else node
        for node in graph.nodes
        if node not in gone
    ]


def _is_pointwise(node: Node) -> bool:
    w = node.input(1)
    if node.kind != _CONV or w is None or w.const is None or node.input(3) is not None:
        return False
    return w.const.shape[2:] == (1, 1) and int(node.attrs.get("group", 1)) == 1


def _scaled(conv: Node, scale: Node) -> Node:
    low, high, _ = bounds_of(scale.attrs.get("activation"))
    inputs: list[Value | None] = [scale.inputs[0], conv.inputs[1], conv.input(2), None]
    return Node(
        conv.op_type,
        [*inputs, *scale.inputs[1:3]],
        conv.outputs,
        {**conv.attrs, "scaled": (float(low), float(high))},
        domain=conv.domain,
        version=conv.version,
        name=conv.name,
        origins=(*scale.origins, *conv.origins),
    )

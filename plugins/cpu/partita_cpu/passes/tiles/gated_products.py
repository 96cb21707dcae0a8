"""Fuses a decoder's gated products with block-quantized weights: both products and the gate.

What a product of few bits makes of an activation times another value it reads as tiles where AMX
computes. Both products before it, the activation and what multiplies them are one node then, whose
result nobody else can read.
"""

from __future__ import annotations

from itertools import pairwise

from partita.lowering import Graph, Node, Value
from partita_cpu.gemm.tile_fields import STEP

_PRODUCT = "com.microsoft::MatMulNBits"


def join_gated_products(graph: Graph) -> None:
    """Makes one node of gates and products that they alone read, where one of few bits comes next.

    It must be the very next: between the two no program can end, and hand on what is in memory.
    """
    uses, outputs = graph.uses(), set(graph.outputs)
    made = {node.outputs[0]: node for node in graph.nodes if is_whole_product(node)}

    def alone(value: Value | None, reader: Node) -> bool:
        return value is not None and value not in outputs and uses.get(value, []) == [reader]

    gone: set[Node] = set()
    joined: dict[Node, Node] = {}
    for node, reader in pairwise(graph.nodes):
        if node.kind != "partita::Gated" or len(set(node.inputs)) != 2:
            continue
        sides = [made.get(value) for value in node.inputs]
        gate, other = sides
        if gate is None or other is None or not is_whole_product(reader):
            continue
        fits = reader.inputs[0] is node.outputs[0] and alone(node.outputs[0], reader)
        fits = fits and reader.inputs.count(node.outputs[0]) == 1
        if fits and _are_alike(gate, other) and all(map(alone, node.inputs, (node, node))):
            joined[node] = _joined(gate, other, node)
            gone |= {gate, other}
    graph.nodes = [joined.get(node, node) for node in graph.nodes if node not in gone]


def is_whole_product(node: Node) -> bool:
    """Whether a node is a product of whole steps, in order, with a constant bias or none."""
    if node.kind != _PRODUCT or node.input(4) is not None:
        return False
    bias, size = node.input(5), node.attrs["block_size"]
    whole = -(-node.attrs["K"] // size) * size % STEP == 0
    return whole and (bias is None or bias.const is not None)


def _are_alike(gate: Node, other: Node) -> bool:
    """Whether two products have the same left side, and results of one size."""
    same = all(gate.attrs[name] == other.attrs[name] for name in ("K", "N"))
    return same and gate.inputs[0] is other.inputs[0]


def _joined(gate: Node, other: Node, node: Node) -> Node:
    weights = [side.input(place) for side in (gate, other) for place in (1, 2, 3, 5)]
    return Node(
        "GatedMatMulNBits",
        [gate.inputs[0], *weights],
        node.outputs,
        {
            "activation": node.attrs["activation"],
            "approximate": node.attrs.get("approximate", "none"),
            "gate": gate.attrs,
            "other": other.attrs,
        },
        domain="partita",
        version=1,
        name=node.name,
        origins=(*gate.origins, *other.origins, *node.origins),
    )

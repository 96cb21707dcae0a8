"""Chooses normalized rows that are written as AMX tiles for block-quantized products."""

from __future__ import annotations

import numpy as np

from partita.lowering import Graph, Node, Value
from partita_cpu.passes.tiles.gated_products import is_whole_product

NORMALIZATIONS = (
    "LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "com.microsoft::SimplifiedLayerNormalization",
    "com.microsoft::SkipLayerNormalization",
    "com.microsoft::SkipSimplifiedLayerNormalization",
)
"""Operations that normalize rows or sums of such, from their axis on if they have one."""


def normalize_to_tiles(graph: Graph) -> None:
    """Marks normalizations whose rows the next nodes alone read, all of them products of few bits.

    They must be the very next: before them no program can end, and hand on what is in memory.
    """
    uses, outputs = graph.uses(), set(graph.outputs)
    marked = set()
    for place, node in enumerate(graph.nodes):
        value = node.outputs[0] if node.kind in NORMALIZATIONS else None
        if value is None or value in outputs or value.dtype != np.float32:
            continue
        readers = uses.get(value, [])
        next_ones = graph.nodes[place + 1 : place + 1 + len(readers)]
        if (
            readers
            and set(readers) == set(next_ones)
            and all(_multiplies(r, value) for r in readers)
        ):
            marked.add(node)
    graph.nodes = [
        node.like(attrs={"tiles": True}) if node in marked else node for node in graph.nodes
    ]


def _multiplies(node: Node, value: Value) -> bool:
    """Whether a node reads a value as the rows that it multiplies, and as nothing else."""
    if node.inputs[0] is not value or node.inputs.count(value) > 1:
        return False
    gated = node.kind == "partita::GatedMatMulNBits"
    if not gated and not is_whole_product(node):
        return False
    weights = [node.inputs[place] for place in ((1, 5) if gated else (1,))]
    return all(w is not None and w.const is not None and w.const.size for w in weights)

"""Chooses results of matrix products that are written as the next product reads them best.

As AMX tiles where that multiplies, and with gaps behind rows that would collide in a cache.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from partita.lowering import Graph, Node
from partita.lowering.nhwc.conversion import Shapes
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles
from partita_cpu.gemm.blocking.padded_rows import padded_pitch
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import reads_stored


def keep_tiles(graph: Graph, shapes: Shapes, policy: PrecisionPolicy) -> None:
    """Marks products whose result the next node alone reads, a product in the same arithmetic.

    It must be the very next: between the two no program can end, and hand on what is in memory.
    """
    uses, outputs = graph.uses(), set(graph.outputs)
    marked = {}
    for node, reader in pairwise(graph.nodes):
        value = node.result
        if value is None or value in outputs or node.input(3) is not None:
            continue
        alone = uses.get(value, []) == [reader] and reader.inputs.count(value) == 1
        if not alone or reader.inputs[0] is not value:
            continue
        found = _arithmetic(node, shapes, policy)
        if found is None or found is not _arithmetic(reader, shapes, policy):
            continue
        if on_tiles(policy.level, found):
            marked[node] = "tiles"
        elif found is Arithmetic.F32 and padded_pitch(policy.machine, shapes[value][-1]):
            marked[node] = "gaps"
    graph.nodes = [
        node.like(attrs={marked[node]: True}) if node in marked else node for node in graph.nodes
    ]


def _arithmetic(node: Node, shapes: Shapes, policy: PrecisionPolicy) -> Arithmetic | None:
    """What a product is computed in, if it is one that is laid out as tiles."""
    x, w, bias = node.input(0), node.input(1), node.input(2)
    if node.op_type != "MatMul" or x is None or w is None or w.const is None:
        return None
    stored = w.const.dtype == np.float32 or reads_stored(policy, w.const)
    if w.const.ndim != 2 or not stored or x.dtype != np.float32:
        return None
    shape, (depth, columns) = shapes.get(x), w.const.shape
    if shape is None or len(shape) < 2 or shape[-1] != depth or not math.prod(shape) or not columns:
        return None
    if bias is not None and (bias.const is None or bias.const.size != columns):
        return None
    residual = node.input(3)
    if residual is not None and shapes.get(residual) != (*shape[:-1], columns):
        return None
    rows = math.prod(shape[:-1])
    return policy.matrix_arithmetic(Images.matrix(rows, depth, columns), w.const)

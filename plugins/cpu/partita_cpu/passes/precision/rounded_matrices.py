"""Large matrices of weights rounded to bfloat16, for products in float32 that wait for memory.

Where a processor multiplies bfloat16 more slowly than float32, a model that asks for bfloat16 is
computed in float32. But a matrix that few rows are multiplied by is read as a whole for them, and
half as many bytes take half as long: a language model makes its tokens so. Products read such a
matrix as they do one that a model has stored in bfloat16.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from partita.lowering import Array, Graph, Node, Value
from partita.lowering.fusion.stored_weights import graphs_of
from partita.system.memory_map import give_back, spilled
from partita_cpu.gemm.packing.weights import rounds_to_infinity
from partita_cpu.gemm.precision_policy import PrecisionPolicy

MANY_ROWS = 32
"""Products of so many rows take as long by weights of either type: they wait for no memory.

One thread of an Emerald Rapids, 768 terms and 3072 columns, by weights of bfloat16 in parts of the
time by float32: 1 row 0.71, 8 rows 0.61, 16 rows 0.72, 32 rows 0.86, 64 rows 1.02, 512 rows 1.00
(`benchmarks/cpu_stored_weights.py`).
"""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT32 = np.dtype(np.float32)
_PRODUCTS = frozenset({"MatMul", "partita::MatMul"})
_WEIGHTS = 1


def round_matrices(graph: Graph, policy: PrecisionPolicy) -> int:
    """Has products of float32 read large matrices in bfloat16, where they may have few rows.

    Args:
        graph: Folded and fused; it is changed, and bodies in it.
        policy: How the program computes.

    Returns:
        How many matrices are rounded. One that others read too stays there as it is, besides.
    """
    rounded: dict[int, Value | None] = {}
    for one in graphs_of(graph):
        for node in one.nodes:
            array = _large_matrix(node, policy.stored_elements)
            if array is None:
                continue
            if id(array) not in rounded:
                rounded[id(array)] = _rounded(array, policy.threads)
            node.inputs[_WEIGHTS] = rounded[id(array)] or node.inputs[_WEIGHTS]
    return sum(value is not None for value in rounded.values())


def _large_matrix(node: Node, fewest: int) -> Array | None:
    """The matrix of so many elements that a product of few rows reads, if there is one."""
    weights = node.inputs[_WEIGHTS] if node.kind in _PRODUCTS else None
    array = None if weights is None else weights.const
    if array is None or array.dtype != _FLOAT32 or array.ndim != 2 or array.size < fewest:
        return None
    return array if _rows(node) < MANY_ROWS else None


def _rounded(array: Array, threads: int) -> Value | None:
    """Its numbers in bfloat16; ``None`` if some would not be finite."""
    if rounds_to_infinity(array, threads):
        return None
    made = spilled(array.astype(_BFLOAT16))
    give_back(array)
    return Value.constant(made)


def _rows(node: Node) -> int:
    """Rows that a matrix is multiplied by; 0 if that is not known before the shapes are."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if shape is None:
        return 0
    known = [size for size in shape[:-1] if isinstance(size, int)]
    return math.prod(known) if len(known) == len(shape) - 1 else 0

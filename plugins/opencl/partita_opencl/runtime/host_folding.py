"""Computes nodes of constants on the host: small integers at once, all others by ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.lowering import Array, Node, Operand, reference_fold
from partita.lowering.shapes.shape_arithmetic import small_result


def fold(node: Node, arrays: Sequence[Array | None]) -> Sequence[Array]:
    """The outputs of a node for constant inputs."""
    operands = [None if x is None else Operand(x.shape, x.dtype, x) for x in arrays]
    small = small_result(node, operands)
    if small is not None:
        return [small]
    if node.kind == "GatherElements":  # for large ones the evaluator takes minutes
        x, indices = arrays
        if x is not None and indices is not None:
            return [_gather_elements(node, x, indices)]
    return reference_fold(node, arrays)


def _gather_elements(node: Node, x: Array, indices: Array) -> Array:
    """Indices may be fewer than the data beside the axis: they are of the first elements then."""
    axis = node.attrs.get("axis", 0) % x.ndim
    near = tuple(
        slice(None) if dim == axis else slice(count) for dim, count in enumerate(indices.shape)
    )
    places = np.where(indices < 0, indices + x.shape[axis], indices)
    return np.take_along_axis(x[near], places, axis)

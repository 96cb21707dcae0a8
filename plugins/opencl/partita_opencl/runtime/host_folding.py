"""Computes nodes of constants on the host: small integers at once, all others by ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from partita.lowering import Array, Node, Operand, reference_fold
from partita.lowering.geometry.axes import axis_of
from partita.lowering.shapes.shape_arithmetic import small_result
from partita.system.array_conversion import converted

_FLOAT = 1
"""ONNX's number of float32."""


def fold(node: Node, arrays: Sequence[Array | None]) -> Sequence[Array]:
    """The outputs of a node for constant inputs."""
    operands = [None if x is None else Operand(x.shape, x.dtype, x) for x in arrays]
    small = small_result(node, operands)
    if small is not None:
        return [small]
    first = arrays[0] if arrays else None
    if node.kind == "Cast" and node.attrs.get("to") == _FLOAT and _is_half(first):
        return [converted(first, np.float32)]
    if node.kind == "GatherElements":  # for large ones the evaluator takes minutes
        x, indices = arrays
        if x is not None and indices is not None:
            return [_gather_elements(node, x, indices)]
    return reference_fold(node, arrays)


def _is_half(array: Array | None) -> TypeGuard[Array]:
    """Whether an array is one of halves, as weights of gigabytes often are."""
    return array is not None and array.dtype == np.float16


def _gather_elements(node: Node, x: Array, indices: Array) -> Array:
    """Indices may be fewer than the data beside the axis: they are of the first elements then."""
    axis = axis_of(node, node.attrs.get("axis", 0), x.ndim)
    near = tuple(
        slice(None) if dim == axis else slice(count) for dim, count in enumerate(indices.shape)
    )
    places = np.where(indices < 0, indices + x.shape[axis], indices)
    return np.take_along_axis(x[near], places, axis)

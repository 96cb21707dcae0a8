"""Computes nodes of constants on the host: the frequent ones by numpy, all others by ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.lowering import Array, Node, reference_fold
from partita_opencl.emitters.elementwise import cast_target

Fold = Callable[..., Array | None]


def fold(node: Node, arrays: Sequence[Array | None]) -> Sequence[Array]:
    """The outputs of a node for constant inputs."""
    quick = None if node.domain else _QUICK.get(node.op_type)
    if quick is not None and all(array is not None for array in arrays):
        result = quick(node, *arrays)
        if result is not None:
            return [np.asarray(result)]
    return reference_fold(node, arrays)


def _constant_of_shape(node: Node, shape: Array) -> Array:
    value = np.asarray(node.attrs.get("value", np.zeros(1, np.float32)))
    return np.full(tuple(int(n) for n in shape.reshape(-1)), value.reshape(-1)[0], value.dtype)


def _shape(node: Node, x: Array) -> Array:
    return np.array(x.shape[node.attrs.get("start", 0) : node.attrs.get("end")], np.int64)


def _axes(node: Node, axes: Array | None) -> tuple[int, ...] | None:
    given = node.attrs.get("axes") if axes is None else axes.reshape(-1)
    return None if given is None else tuple(int(axis) for axis in given)


def _unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, _axes(node, axes) or ())


def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, _axes(node, axes))


def _concat(node: Node, *arrays: Array) -> Array:
    return np.concatenate(arrays, node.attrs.get("axis", 1))


def _gather(node: Node, x: Array, indices: Array) -> Array:
    return np.take(x, indices.astype(np.int64), node.attrs.get("axis", 0))


def _cast(node: Node, x: Array) -> Array | None:
    target = cast_target(node)
    return None if target is None or x.dtype.kind not in "fiub" else x.astype(target)


def _transpose(node: Node, x: Array) -> Array:
    return np.ascontiguousarray(np.transpose(x, node.attrs.get("perm")))


def _arithmetic(function: Callable[[Any, Any], Any]) -> Fold:
    def compute(node: Node, a: Array, b: Array) -> Array | None:
        # Before opset 7, operands broadcast by other rules.
        return np.asarray(function(a, b)) if node.version >= 7 else None

    return compute


_QUICK: dict[str, Fold] = {
    "Add": _arithmetic(np.add),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Gather": _gather,
    "Mul": _arithmetic(np.multiply),
    "Shape": _shape,
    "Squeeze": _squeeze,
    "Sub": _arithmetic(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

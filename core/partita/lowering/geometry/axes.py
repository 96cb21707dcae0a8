"""Dimensions that a model names, counted from the front; one rule for all devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from partita.errors import OperandError
from partita.lowering.graph import Node
from partita.lowering.shapes.symbolic_size import (
    Number,
    always_equal,
    evaluated,
    has_varied,
    present,
)


def axis_of(node: Node, axis: int, rank: int) -> int:
    """`axis` counted from 0.

    A scalar has no dimension that could be named. ArgMax and ArgMin take it for a row of one
    element, as onnxruntime does, and ask with rank 1.

    Args:
        node: The operation, for the message.
        axis: As the model has it, from ``-rank`` to ``rank - 1``.
        rank: Dimensions of its tensor.

    Raises:
        OperandError: It is not a dimension of the tensor.
    """
    if not -rank <= axis < rank:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has axis {axis}, "
            f"but its tensor has {rank} dimensions."
        )
    return int(axis) % rank


def reduced_axes(node: Node, axes: Iterable[int], rank: int) -> list[int]:
    """The axes that a reduction names, counted from 0, each once and in order.

    Of a scalar any axis may be named, as in onnxruntime; none of it is left to reduce.

    Args:
        node: The operation, for the message.
        axes: As the model has them, from ``-rank`` to ``rank - 1``.
        rank: Dimensions of its tensor.

    Raises:
        OperandError: One is not a dimension of the tensor.
    """
    return sorted({axis_of(node, axis, rank) for axis in axes}) if rank else []


def distinct_axes(node: Node, axes: Iterable[int], rank: int) -> list[int]:
    """`axes` counted from 0, for operators that give each of them an amount of its own.

    ONNX leaves open what Slice, Pad and Resize do to an axis that is named twice: one device would
    take the last amount, another one all of them.

    Args:
        node: The operation, for the message.
        axes: As the model has them, from ``-rank`` to ``rank - 1``.
        rank: Dimensions of its tensor.

    Raises:
        OperandError: One is not a dimension of the tensor, or is named twice.
    """
    given = list(axes)
    found = [axis_of(node, axis, rank) for axis in given]
    if len(set(found)) < len(found):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) names an axis twice: axes {given} of a "
            f"tensor of {rank} dimensions."
        )
    return found


def copied_if_0(size: Number, shape: Sequence[Number], axis: int) -> Number:
    """A size that a Reshape gives an axis, where 0 copies that of the input.

    Args:
        size: What it is given; it may stand for others, some of them 0.
        shape: Of the input.
        axis: The axis.
    """
    if axis < len(shape) and always_equal(size, shape[axis]):
        return size
    if has_varied([size]) and axis < len(shape) and present(size) == 0:
        return evaluated(_copied_if_0, size, shape[axis])
    return shape[axis] if size == 0 else size


def _copied_if_0(size: int, own: int) -> int:
    return size or own


def rest_of_reshape(dims: Sequence[Number], shape: Sequence[Number]) -> Number | None:
    """What -1 stands for where a Reshape gives it; ``None`` if any size would do.

    First axes that stay as they are do not count, so that a batch of 0 leaves the others known.

    Args:
        dims: All that it gives, one of them -1, none of them a 0 that copies.
        shape: Of the input.
    """
    most = min(dims.index(-1), len(shape))
    same = next((n for n in range(most) if not always_equal(dims[n], shape[n])), most)
    known = -math.prod(dims[same:])
    return math.prod(shape[same:]) // known if known else None

"""A dimension that a model names, counted from the front; one rule for all devices."""

from __future__ import annotations

from partita.errors import OperandError
from partita.lowering.graph import Node


def axis_of(node: Node, axis: int, rank: int) -> int:
    """`axis` counted from 0.

    A scalar has no dimension that could be named. Operators that take it for a row of one element,
    as onnxruntime does in ArgMax, ask with rank 1.

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

"""Boxes of a tensor's elements, which operators that move elements read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from partita.errors import OperandError
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.symbolic_size import Number, Size, evaluated, has_varied, highest


def strides_of(shape: Sequence[int]) -> list[int]:
    """Elements from one to the next along each dimension of a contiguous tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


class Box(NamedTuple):
    """Where a box of elements lies in a tensor; its sizes are passed separately.

    Attributes:
        tensor: The tensor.
        strides: Along each dimension of the box, elements from one to the next; 0 repeats one,
            below 0 they come in reverse.
        start: The element where it starts.
    """

    tensor: Operand
    strides: Sequence[int]
    start: int = 0

    def check(self, node: Node, sizes: Sequence[int]) -> None:
        """Refuses a box that reaches beyond its tensor.

        Args:
            node: Whose box it is.
            sizes: Of the box, at least 1, or sizes that stand for others, some of them 0.

        Raises:
            OperandError: It does.
        """
        numbers = self.tensor.size, self.start, *sizes, *self.strides
        if has_varied(numbers):
            beyond = _room_beside(self.tensor.size, self.start, sizes, self.strides) < 0
        else:
            ends = [(n - 1) * step for n, step in zip(sizes, self.strides, strict=True)]
            # An end of 0 adds nothing to either: whether it is that is no decision by sizes.
            first = self.start - sum(highest(-end, 0) for end in ends)
            last = self.start + sum(highest(end, 0) for end in ends)
            beyond = first < 0 or last >= self.tensor.size
        if beyond:
            raise OperandError(
                f"Operation '{node.name}' ({node.model_kind}) would copy elements beyond a tensor "
                f"of shape {list(self.tensor.shape)}; check the shapes and attributes that lead to "
                "it."
            )


def _room_beside(
    elements: Number, start: Number, sizes: Sequence[Number], strides: Sequence[Number]
) -> Number:
    """How many elements a tensor has beside a box, before or behind it; -1 if it reaches beyond.

    One number, of which one thing is decided, whatever sizes and strides are: a box of no elements
    has room anywhere.

    Args:
        elements: Of the tensor.
        start: The element where the box starts.
        sizes: Of the box.
        strides: Of the box.
    """
    first = last = start
    for n, step in zip(sizes, strides, strict=True):
        end = (n - 1) * step
        if type(step) is Size or step < 0:
            first = first + evaluated(min, end, 0)
        if type(step) is Size or step > 0:
            last = last + evaluated(max, end, 0)
    inside = evaluated(min, first, elements - 1 - last)
    return evaluated(max, inside, 0 - evaluated(min, 1, 1, *sizes))

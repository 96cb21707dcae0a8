"""Limits of constant folding: bytes that it may create and operations that it may take.

Folding pays for what a model stores: weights that are converted, scaled or moved, tables of masks
and positions. But a model of a few hundred bytes can ask for a constant of gigabytes by its shape
alone, and one of a few megabytes for a convolution of minutes with a small result. What exceeds the
limits is computed in each run instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from partita.errors import CompileError
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Operand
from partita.lowering.shapes.fold_work import operations
from partita.lowering.shapes.result_shapes import predicted
from partita.model.model import is_static

FLOOR_BYTES = 5 << 27
"""What any model may make, in 2 s at most: networks without weights, which are published to show an
architecture, make theirs by ConstantOfShape, and those of VGG-19 are 575 MB."""

BYTES_PER_WEIGHT_BYTE = 16
"""What may be made of each byte of weights: a number that is cast, shifted, scaled and turned."""

FLOOR_OPERATIONS = 1 << 33
"""What any model may have computed: as many multiplications as a product of 2048x2048 matrices."""

OPERATIONS_PER_WEIGHT_BYTE = 64
"""What may be computed for each byte of weights: products of thin matrices are added to some."""

MUST_FOLD_FACTOR = 4
"""How many times as much a program may make and compute that cannot do without."""


class TooMuchToFold(Exception):  # noqa: N818 - a signal to who folds, not an error
    """What folding would make is more than is left."""


class FoldAllowance:
    """The bytes that folding may make and the operations it may take, counted down.

    Args:
        left: So many bytes; infinitely many if nothing is given.
        operations: So many operations, as :mod:`~partita.lowering.shapes.fold_work` estimates them.
        interpreted: Whether ONNX's reference evaluator computes, which takes longer.

    Attributes:
        left: How many bytes are left.
        operations: How many operations are left.
    """

    def __init__(
        self,
        left: float = math.inf,
        operations: float = math.inf,
        interpreted: bool = False,
    ) -> None:
        self.left = left
        self.operations = operations
        self._interpreted = interpreted

    def take(self, nbytes: int) -> None:
        """Counts what is about to be made.

        Raises:
            TooMuchToFold: It is more than is left; nothing is counted.
        """
        if nbytes > self.left:
            raise TooMuchToFold
        self.left -= nbytes

    def begin(self, node: Node, operands: Sequence[Operand | None]) -> bool:
        """Counts the operations of a node that is about to be computed; its bytes count when made.

        Returns:
            Whether it may be computed, as far as sizes of results are told before; if not, nothing
            is counted.
        """
        try:
            found = predicted(node, operands)
        except CompileError:
            return True  # it does not fit, as its emitter will say
        sizes = _declared(node) if found is None else [(one.size, one.nbytes) for one in found]
        elements = sum(size for size, _ in sizes)
        work = operations(node, operands, elements, self._interpreted)
        if sum(nbytes for _, nbytes in sizes) > self.left or work > self.operations:
            return False
        self.operations -= work
        return True


def foldable(graph: Graph) -> tuple[int, int]:
    """How many bytes folding may make for a graph, and how many operations it may take.

    Both go by the weights that it and its bodies read.
    """
    weights = _weight_bytes(graph)
    return (
        FLOOR_BYTES + BYTES_PER_WEIGHT_BYTE * weights,
        FLOOR_OPERATIONS + OPERATIONS_PER_WEIGHT_BYTE * weights,
    )


def _weight_bytes(graph: Graph) -> int:
    arrays = {id(v.const): v.const for v in _read(graph) if v.const is not None}
    return sum(array.nbytes for array in arrays.values())


def _read(graph: Graph) -> Iterator[Value]:
    for node in graph.nodes:
        yield from (value for value in node.inputs if value is not None)
        for body in node.graphs():
            yield from _read(body)


def _declared(node: Node) -> list[tuple[int, int]]:
    """Elements and bytes of the results whose shapes the model tells."""
    return [
        (math.prod(value.shape), math.prod(value.shape) * value.dtype.itemsize)
        for value in node.outputs
        if value is not None and value.dtype is not None and is_static(value.shape)
    ]

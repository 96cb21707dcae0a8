"""How much constant folding may make; what would be more is computed by each run instead.

Folding pays for what a model stores: weights that are converted, scaled or moved, tables of masks
and positions. A model of a few hundred bytes can also ask for a tensor of gigabytes by its shape
alone, which compiling must not take the time and the memory for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from partita.errors import CompileError
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Operand
from partita.lowering.shapes.result_shapes import predicted
from partita.model.model import is_static

FLOOR_BYTES = 5 << 27
"""What any model may make, in 2 s at most: networks without weights, which are published to show an
architecture, make theirs by ConstantOfShape, and those of VGG-19 are 575 MB."""

BYTES_PER_WEIGHT_BYTE = 16
"""What may be made of each byte of weights: a number that is cast, shifted, scaled and turned."""

MUST_FOLD_FACTOR = 4
"""How many times as much a program may make that cannot do without."""


class TooMuchToFold(Exception):  # noqa: N818 - a signal to who folds, not an error
    """What folding would make is more than is left."""


class FoldAllowance:
    """The bytes that folding may make, counted down as they are made.

    Args:
        left: So many; infinitely many if nothing is given.

    Attributes:
        left: How many are left.
    """

    def __init__(self, left: float = math.inf) -> None:
        self.left = left

    def take(self, nbytes: int) -> None:
        """Counts what is about to be made.

        Raises:
            TooMuchToFold: It is more than is left; nothing is counted.
        """
        if nbytes > self.left:
            raise TooMuchToFold
        self.left -= nbytes

    def covers(self, node: Node, operands: Sequence[Operand | None]) -> bool:
        """Whether the results of a node may be made, as far as their sizes are told before."""
        try:
            found = predicted(node, operands)
            sizes = _declared(node) if found is None else [one.nbytes for one in found]
        except CompileError:
            return True  # it does not fit, as its emitter will say
        return sum(sizes) <= self.left


def allowed_bytes(graph: Graph) -> int:
    """What folding may make for a graph, by the weights that it and its bodies read."""
    arrays = {id(v.const): v.const for v in _read(graph) if v.const is not None}
    return FLOOR_BYTES + BYTES_PER_WEIGHT_BYTE * sum(a.nbytes for a in arrays.values())


def _read(graph: Graph) -> Iterator[Value]:
    for node in graph.nodes:
        yield from (value for value in node.inputs if value is not None)
        for body in node.graphs():
            yield from _read(body)


def _declared(node: Node) -> list[int]:
    """Bytes of the results whose shapes the model tells."""
    return [
        math.prod(value.shape) * value.dtype.itemsize
        for value in node.outputs
        if value is not None and value.dtype is not None and is_static(value.shape)
    ]

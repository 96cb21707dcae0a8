"""How an operator's demands on the shapes of its inputs are written down.

A demand is a generator of faults: sentences that say what does not fit. The first one is raised by
:func:`partita.lowering.shapes.shape_rules.check_demands`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from partita.lowering.graph import Node

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
"""By input its shape; ``None`` for one that is left out."""

Demand = Callable[[Node, Shapes], Iterable[str]]
"""Yields what does not fit, the worst first."""


def is_of_shape(name: str, shape: Shape | None, *allowed: Shape) -> Iterable[str]:
    """A fault unless an input has one of these shapes, or is left out."""
    if shape is not None and shape not in allowed:
        yield f"{name} is to be of shape {' or '.join(str(list(one)) for one in allowed)}"


def holds(name: str, shape: Shape | None, *sizes: int) -> Iterable[str]:
    """A fault unless an input has one of these numbers of elements, or is left out."""
    if shape is not None and math.prod(shape) not in sizes:
        counts = " or ".join(map(str, dict.fromkeys(sizes)))
        yield f"{name} is to hold {counts} element{'s' if sizes != (1,) else ''}"


def first_of(shapes: Shapes) -> Shape:
    """The shape of the first input.

    Raises:
        IndexError: It is left out.
    """
    if shapes[0] is None:
        raise IndexError("no first input")
    return shapes[0]


def pair_of(shapes: Shapes, second: int = 1) -> tuple[Shape, Shape]:
    """The shapes of the first input and of another one.

    Raises:
        IndexError: One of them is left out.
    """
    other = shapes[second]
    if other is None:
        raise IndexError(f"no input {second}")
    return first_of(shapes), other

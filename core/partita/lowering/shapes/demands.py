"""How demands on the shapes of inputs are written down; see `shape_rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from partita.lowering.graph import Node

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Demand = Callable[[Node, Shapes], Iterable[str]]
"""Tells what does not fit, worst first."""


def demands_in(table: dict[str, Demand]) -> Callable[..., Callable[[Demand], Demand]]:
    """A decorator that puts a demand into a table, for the kinds of operators that it names."""

    def of(*kinds: str) -> Callable[[Demand], Demand]:
        def register(demand: Demand) -> Demand:
            table.update(dict.fromkeys(kinds, demand))
            return demand

        return register

    return of


def is_of_shape(name: str, shape: Shape | None, *wanted: Shape) -> Iterable[str]:
    """A fault unless a shape is one of those wanted, or left out."""
    if shape is not None and shape not in wanted:
        yield f"{name} is to be of shape {' or '.join(str(list(one)) for one in wanted)}"

"""How many places a cache of keys or values has behind an operation that puts tokens into it."""

from __future__ import annotations

from partita.lowering.graph import Node
from partita.lowering.shapes.symbolic_size import Number, evaluated


def present_places(past: Number, queries: Number, total: Number) -> Number:
    """As many as before, or as there are tokens then, if these are more.

    Args:
        past: Places before.
        queries: New tokens.
        total: All tokens, by the caller's account; more than past and new ones are none.
    """
    return evaluated(max, past, evaluated(min, total, past + queries))


def grows(node: Node) -> bool:
    """Whether a model says of a GroupQueryAttention that present has another length than past.

    Then the total length decides, and has to be known when a program is made.
    """
    past, present = node.input(3), node.outputs[1] if len(node.outputs) > 1 else None
    shapes = [None if value is None else value.shape for value in (past, present)]
    lengths = [None if shape is None or len(shape) != 4 else shape[2] for shape in shapes]
    return None not in lengths and lengths[0] != lengths[1]

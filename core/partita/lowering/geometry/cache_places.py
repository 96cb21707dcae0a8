"""The capacity of a key or value cache after an operation has appended tokens to it."""

from __future__ import annotations

from partita.lowering.graph import Node, Value
from partita.lowering.shapes.symbolic_size import Number, evaluated
from partita.shapes.cache_length import may_grow


def present_places(past: Number, queries: Number, total: Number) -> Number:
    """As many as before, or as there are tokens then, if these are more.

    Args:
        past: Places before.
        queries: New tokens.
        total: All tokens, by the caller's account; more than past and new ones are none.
    """
    return evaluated(max, past, evaluated(min, total, past + queries))


def grows(node: Node) -> bool:
    """Whether present may be longer than past by what a model says of a GroupQueryAttention.

    Then the total length decides, and has to be known when a program is made.
    """
    outputs = [*node.outputs, None, None]
    pairs = (node.input(3), outputs[1]), (node.input(4), outputs[2])
    return may_grow(*((_length(past), _length(present)) for past, present in pairs))


def _length(cache: Value | None) -> int | str | None:
    shape = None if cache is None else cache.shape
    return shape[2] if shape is not None and len(shape) == 4 else None

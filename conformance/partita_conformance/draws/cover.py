"""The order in which an operator's draws are tried: each covers most that was not covered yet."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator, Sequence, Set

import numpy as np

from partita_conformance.draws.draw import Draw
from partita_conformance.draws.operators import draw

ATTEMPTS = 60
"""Draws of which the order is made."""
_LEAST = 6
_MOST_OF_A_NUMBER = 3  # above it, attributes are sizes rather than choices


@functools.cache
def order(op_type: str) -> Sequence[int]:
    """Attempts at draw 0, each time the one of most pairs of traits not yet seen.

    Those that show nothing new are left out, but for the first few.
    """
    drawn = [draw(op_type, 0, attempt) for attempt in range(ATTEMPTS)]
    names = {name for one in drawn for name in one.attributes}
    left = {attempt: _pairs(one, names) for attempt, one in enumerate(drawn)}
    found: list[int] = []
    seen: set[Hashable] = set()
    while left:
        best = max(left, key=lambda attempt: len(left[attempt] - seen))
        if len(found) >= _LEAST and not left[best] - seen:
            break
        found.append(best)
        seen |= left.pop(best)
    return found


def nth(op_type: str, number: int) -> Draw:
    """The draw of a number in that order; beyond its end any other."""
    attempts = order(op_type)
    known = number < len(attempts)
    return draw(op_type, 0, attempts[number]) if known else draw(op_type, number)


@functools.cache
def newest_opset(op_type: str) -> int:
    """The newest opset that draws of an operator are written in."""
    return max(draw(op_type, 0, attempt).opset for attempt in order(op_type))


def _pairs(one: Draw, names: Set[str]) -> frozenset[Hashable]:
    return frozenset(itertools.combinations_with_replacement(sorted(_traits(one, names)), 2))


def _traits(one: Draw, names: Set[str]) -> Iterator[str]:
    """What kind of a draw it is: ranks, orders, attributes' choices, and what is left out of it.

    Args:
        one: The draw.
        names: The attributes that draws of the operator have.
    """
    yield f"opset {one.opset}"
    yield f"{len(one.inputs)} inputs"
    yield from (f"no {name}" for name in names - one.attributes.keys())
    for i, array in enumerate(one.inputs):
        yield f"input {i} {None if array is None else array.ndim}"
        for axis in () if array is None else [k for k, n in enumerate(array.shape) if n == 1]:
            yield f"input {i} is 1 along {axis}"
    for i, array in enumerate(one.inputs):
        if i not in one.constant or array is None:
            continue
        if array.dtype.kind == "i" and array.ndim == 1:  # axes, say
            yield f"input {i} rises {bool(np.all(np.diff(array) > 0))}"
            yield f"input {i} is below zero {bool(np.any(array < 0))}"
    for name, value in one.attributes.items():
        yield f"{name} {_choice(value)}"


def _choice(value: object) -> object:
    """The value of an attribute that is a choice, or of what kind its value is."""
    if isinstance(value, str) or (isinstance(value, int) and abs(value) <= _MOST_OF_A_NUMBER):
        return value
    if isinstance(value, (list, tuple)):
        return {min(v, 2) for v in value} if _all_numbers(value) else tuple(value)
    return type(value).__name__


def _all_numbers(values: Sequence[object]) -> bool:
    """Whether a list holds numbers alone."""
    return all(isinstance(value, (int, float)) for value in values)

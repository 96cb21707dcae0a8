"""Draws of an operator between others: behind producers of its inputs, and ahead of a reader.

Pairs choose an operator for a value that there is; here values are made for the operator. So each
attribute, each optional input and each choice of axes that draws have stands between others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import onnx

from partita_conformance.draws.choices.every import CHOICES
from partita_conformance.draws.cover import ATTEMPTS, order
from partita_conformance.draws.draw import Draw, one_of
from partita_conformance.draws.graphs.ahead import ahead
from partita_conformance.draws.graphs.builder import GraphDraw, Value
from partita_conformance.draws.graphs.onto import OPERATORS
from partita_conformance.draws.graphs.pairs import behind, rng_of
from partita_conformance.draws.operators import GENERATORS, draw
from partita_conformance.draws.vary import schema_of

_ERAS = ((18, 21, 23), (13, 11, 13, 9))
"""Opsets of models of even and of odd numbers."""
_KINDS, _CHOICES = 7, 8
"""How many kinds of random draws stand in a model, and how many of an operator's choices."""
_MOST_ELEMENTS = 2000
_TRIED = 4


def around(op: str, number: int) -> GraphDraw:
    """A model of draws of an operator, each behind another operator and ahead of one."""
    rng = rng_of("around", op, number)
    drawn = [*draws_of(op, number)]
    newest = max((one.opset for one in drawn), default=0)
    era = [
        opset
        for opset in _ERAS[number % 2]
        if schema_of(op, opset) and (number % 2 or opset >= newest)
    ]
    turn = zlib.crc32(op.encode()) + number // 2
    graph = GraphDraw(era[turn % len(era)] if era else newest, rng, one_of(rng, 0.0, 0.0, 0.4))
    for one in drawn:
        _insert_draw(graph, op, one)
    return graph


def draws_of(op: str, number: int) -> Iterator[Draw]:
    """Draws of an operator: of each kind in which random ones differ, and of its choices."""
    kinds = order(op)
    start = number // 2 * _KINDS % len(kinds)
    for attempt in [*kinds[start:], *kinds[:start]][:_KINDS]:
        one = draw(op, 0, attempt)
        if _plain(one):
            yield one
    choices = [*filter(_plain, CHOICES[op]())] if op in CHOICES else []
    step = max(1, -(-len(choices) // _CHOICES))
    yield from choices[number % step :: step]


def _plain(one: Draw) -> bool:
    """Whether a draw is of numbers that are not all known, not many of them, and of no bodies."""
    bodies = any(isinstance(value, onnx.GraphProto) for value in one.attributes.values())
    arrays = [array for array in one.inputs if array is not None]
    numbers = all(array.dtype.kind in "fiub" for array in arrays)
    few = sum(array.size for array in arrays) <= _MOST_ELEMENTS
    return numbers and not bodies and few and len(arrays) > len(one.constant)


def _insert_draw(graph: GraphDraw, op: str, one: Draw) -> None:
    """A draw of which one or two inputs are made, and whose result is read."""
    rng = graph.rng
    places = [
        i for i, array in enumerate(one.inputs) if array is not None and i not in one.constant
    ]
    taken = {}
    for place in rng.permutation(places)[: one_of(rng, 1, 1, 2)]:
        value = _made(graph, one, int(place))
        if value is not None:
            taken[int(place)] = value
    results = graph.add(op, one, taken)
    if results is None:
        return
    result = results[int(rng.integers(len(results)))]
    ends: Sequence[Value] | None = None
    for _ in range(_TRIED if rng.random() < 0.7 else 0):
        ends = ends or behind(graph, one_of(rng, *OPERATORS), result)
    for value in ends or results:
        graph.give(value)
    if rng.random() < 0.15:
        graph.give(result)


def _made(graph: GraphDraw, one: Draw, place: int) -> Value | None:
    """What makes an input of a draw."""
    array = one.inputs[place]
    assert array is not None  # noqa: S101  # a place of an input that there is
    for _ in range(_TRIED):
        found = ahead(graph.rng, array)
        results = None if found is None else graph.add(*found, {})
        if results and results[0].shape == array.shape and results[0].dtype == array.dtype:
            return results[0]
    return None


AROUND = tuple(op for op in GENERATORS if any(_plain(draw(op, 0, a)) for a in range(ATTEMPTS)))
"""The operators that have draws of numbers; their order, which takes seconds, is not asked for."""

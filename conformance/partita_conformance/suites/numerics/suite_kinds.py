"""Suites ``random/*/rest`` and ``shapes``: all kinds of draws, and other shapes in one request.

What ``random`` draws is some kinds of each operator; ``rest`` makes all others, which are quick, in
one check. ``shapes`` compiles a draw with dimensions that are not known, and runs one request with
the draw's own sizes and with longer ones in turn.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.cover import order
from partita_conformance.draws.draw import Array, Draw
from partita_conformance.draws.operators import GENERATORS, draw, model_of
from partita_conformance.judging.requirements import DeclinedError, NotApplicableError
from partita_conformance.suites.numerics.drawn import compare_all, draw_check
from partita_conformance.suites.numerics.suite_operators import claimed_compiles, kinds_taken

_MORE = 3
"""By how much a dimension gets longer: no multiple of a vector becomes another."""
_TRIED = 3
_FOUND = 2
"""Draws of which some dimension can be longer, and of how many they are looked for."""
_SIZED = frozenset(("Split", "Compress", "GridSample", "RoiAlign", "NonMaxSuppression", "Scan"))
"""Operators some of whose sizes are fixed, or go with elements, at which no judge looks."""
CHANCE = frozenset(("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"))
"""Operators whose results are no function of their inputs."""


def rest_checks(count: int, operators: Iterable[str]) -> list[Check]:
    """The checks of the kinds of draws that have none of their own.

    Args:
        count: Random models per operator that have a check of their own.
        operators: Whose.
    """
    return [
        draw_check(
            f"random/{op}/rest",
            op,
            functools.partial(_rest, op, count),
            f"{op} of all other kinds, of which some stand in a branch too",
            bodies=True,
        )
        for op in operators
        if len(order(op)) > kinds_taken(op, count)
    ]


def shape_checks() -> list[Check]:
    """The checks of shapes that change from run to run."""
    return [
        Check(
            f"shapes/{op}",
            functools.partial(_run_shapes, op),
            True,
            f"{op} of one shape and another in the same request",
            op,
            "float",
        )
        for op in GENERATORS
        if op not in CHANCE | _SIZED
    ]


def _rest(op: str, count: int, _: Bench) -> list[tuple[str, Draw]]:
    return [("", draw(op, 0, attempt)) for attempt in order(op)[kinds_taken(op, count) :]]


def longer(one: Draw) -> Iterator[tuple[int, Draw]]:
    """Each length that only inputs have, and the draw with all dimensions of it longer."""
    given = {i: a for i, a in enumerate(one.inputs) if a is not None}
    fixed = {n for i, a in given.items() if i in one.constant for n in a.shape}
    lengths = {n for i, a in given.items() if i not in one.constant for n in a.shape} - fixed - {0}
    for length in sorted(lengths - {1}, reverse=True):
        inputs = [
            a if a is None or i in one.constant else _stretched(a, length)
            for i, a in enumerate(one.inputs)
        ]
        yield length, dataclasses.replace(one, inputs=inputs)


def _stretched(array: Array, length: int) -> Array:
    """The array with its first elements again behind the last along axes of a length."""
    for axis, n in enumerate(array.shape):
        if n == length:
            array = np.take(array, np.arange(n + _MORE) % n, axis)
    return np.ascontiguousarray(array)


def free_model(op: str, one: Draw, lengths: Collection[int]) -> Any:
    """The draw's model, whose inputs may be of any size along dimensions of some lengths."""
    proto, _ = model_of(op, one)
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value in lengths:
                dim.dim_param = f"{value.name}_{axis}"
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    return proto


def _run_shapes(op: str, bench: Bench) -> None:
    found = 0
    declined: DeclinedError | None = None
    for attempt in order(op)[:_TRIED]:
        one = draw(op, 0, attempt)
        if not all(isinstance(a, np.ndarray) for a in one.inputs if a is not None):
            continue
        turns = _turns(op, one, bench)
        if 0 not in turns or len(turns) < 2:
            continue
        try:
            proto = free_model(op, one, turns.keys() - {0})
            request = claimed_compiles(bench, proto).create_infer_request()
        except DeclinedError as reason:
            declined = reason
            continue
        for changed, feeds, expected in (*turns.values(), turns[0]):
            compare_all(op, changed, request, feeds, expected)
        found += 1
        if found == _FOUND:
            return
    if not found:
        raise declined or NotApplicableError(f"no draw of {op} can be of other sizes")


def _turns(op: str, one: Draw, bench: Bench) -> dict[int, tuple[Draw, dict[str, Array], Any]]:
    """The draw and longer ones that a judge can compute, with inputs and right outputs, by length.

    The draw's own has the number 0.
    """
    turns = {}
    for length, changed in ((0, one), *longer(one)):
        proto, feeds = model_of(op, changed)
        try:
            with np.errstate(all="ignore"):
                turns[length] = changed, feeds, bench.expected(proto, feeds)
        except PartitaError:
            continue
    return turns

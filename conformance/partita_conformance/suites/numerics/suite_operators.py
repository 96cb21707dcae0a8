"""Suites ``operators`` (ONNX's node cases) and ``random`` (random shapes against REFERENCE)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.errors import PartitaError
from partita.tensors.sequence_values import boxed, unboxed
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.cover import nth, order
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.operators import draw, model_of
from partita_conformance.inputs.cases_file import NodeCase
from partita_conformance.judging.compare import TWO_STEPS, compare
from partita_conformance.judging.exact import exact_answers
from partita_conformance.judging.requirements import ConformanceError
from partita_conformance.judging.tolerances import EXACT

_MANY_KINDS = 20


def operator_checks(cases: Mapping[str, NodeCase]) -> list[Check]:
    """One check per node case."""
    return [
        Check(
            f"operators/{case.name}",
            functools.partial(_run_case, case),
            case.values,
            f"ONNX's node case test_{case.name}",
            case.op,
            case.dtype,
        )
        for case in cases.values()
    ]


def random_checks(count: int, operators: Iterable[str]) -> list[Check]:
    """Checks of random models, some per operator; twice as many where there are many kinds."""
    return [
        Check(
            f"random/{op}/{number}",
            functools.partial(_run_random, op, number),
            True,
            f"random model {number} of {op} against the reference",
            op,
            nth(op, number).element_type,
        )
        for op in operators
        for number in range(kinds_taken(op, count))
    ]


def kinds_taken(op: str, count: int) -> int:
    """How many kinds of draws of an operator have a check of their own."""
    return count if len(order(op)) < _MANY_KINDS else 2 * count


def claimed_compiles(bench: Bench, proto: Any) -> Any:
    """Compiles what the device takes; what it refuses must be refused by the query already.

    Raises:
        DeclinedError: The device does not take it, and says so.
        ConformanceError: It says that it takes it, and does not compile it.
    """
    bench.decline_unless_taken(proto)
    try:
        return bench.compile(proto)
    except PartitaError as error:
        raise ConformanceError(f"query_model takes it, compile_model does not: {error}") from error


def _run_case(case: NodeCase, bench: Bench) -> None:
    proto = case.proto()
    compiled = claimed_compiles(bench, proto)
    wanted = {port.name for port in compiled.inputs}
    names = [value.name for value in proto.graph.input]
    for inputs, expected in case.runs:
        given = zip(names, inputs, strict=False)
        feeds = {name: boxed(value) for name, value in given if name in wanted}
        with np.errstate(all="ignore"):
            result = compiled(feeds).to_tuple()
        have = [unboxed(array) for array in result]
        rtol = _rtol(case, expected)
        try:
            compare(have, expected, case.name, rtol, case.atol, case.form_only)
        except ConformanceError:
            exact = exact_answers(proto, feeds) if case.op in _ROUNDED_INSIDE else None
            if exact is None:
                raise
            compare(have, exact, case.name, rtol, case.atol)


_ROUNDED_INSIDE = frozenset(("Attention",))
"""Operators of which ONNX's answers are rounded on the way: the exact one is right as well."""


def _rtol(case: NodeCase, expected: Sequence[Any]) -> float:
    """The case's relative tolerance, or what rounding to half precision on the way costs.

    ONNX allows less than two steps of float16, which models of several operations come to; and all
    of bfloat16.
    """
    alone = len(case.proto().graph.node) == 1
    if alone and case.op in EXACT:
        return case.rtol
    kinds = {one.dtype.name for one in expected if isinstance(one, np.ndarray)}
    rounded = kinds & ({"bfloat16"} if alone else TWO_STEPS.keys())
    return max(case.rtol, *(TWO_STEPS[kind] for kind in rounded)) if rounded else case.rtol


def telling_draw(op: str, number: int, bench: Bench) -> tuple[Draw, Any, Any, list[Any]]:
    """A draw whose right answer is not all zeros, with its model, inputs and outputs.

    Raises:
        DeclinedError: The device does not take a draw; what is right is then not computed.
    """
    for attempt in range(8):
        drawn = draw(op, number, attempt) if attempt else nth(op, number)
        proto, feeds = model_of(op, drawn)
        bench.decline_unless_taken(proto)
        with np.errstate(all="ignore"):
            expected = bench.expected(proto, feeds)
        if any(np.any(array) for array in expected):
            break
    return drawn, proto, feeds, expected


def _run_random(op: str, number: int, bench: Bench) -> None:
    drawn, proto, feeds, expected = telling_draw(op, number, bench)
    compiled = claimed_compiles(bench, proto)
    with np.errstate(all="ignore"):
        have = compiled(feeds).to_tuple()
    shapes = [None if a is None else a.shape for a in drawn.inputs]
    compare(have, expected, f"{op} {drawn.attributes} of {shapes}", 1e-4)

"""Comparison of a device's results of draws with the expected ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.graphs.inside import inside
from partita_conformance.draws.operators import model_of
from partita_conformance.judging.compare import compare, largest
from partita_conformance.judging.requirements import (
    ConformanceError,
    DeclinedError,
    NotApplicableError,
)
from partita_conformance.judging.tolerances import tolerance
from partita_conformance.suites.numerics.suite_operators import claimed_compiles

Make = Callable[[Bench], Sequence[tuple[str, Draw]]]
"""Gives the draws of a check, each with a word for messages; draws of one model beside another."""

_SIGNED = frozenset(("Neg", "Abs", "Identity", "Transpose", "Reshape", "Concat", "Gather", "Slice"))
"""Operators that keep or change the sign of zero, as IEEE 754 has it."""


_TOGETHER = 6
"""How many draws stand in a branch at most."""


def draw_check(
    name: str, op: str, make: Make, summary: str, element: str = "", bodies: bool = False
) -> Check:
    """A check of draws of one operator.

    Args:
        name: ``suite/...``.
        op: The operator.
        make: Makes the draws when the check is made.
        summary: What the check requires.
        element: The element type that is tried.
        bodies: Whether to try some of them in a branch of a choice as well.
    """
    run = functools.partial(_run, op, make, bodies)
    return Check(name, run, False, summary, op, element or "float")


def _run(op: str, make: Make, bodies: bool, bench: Bench) -> None:
    """Compares what the device makes of each draw with what is right.

    Raises:
        NotApplicableError: There is no such draw, or nobody can say what is right of any.
        DeclinedError: The device takes none of them.
        ConformanceError: The answers to some are wrong.
    """
    drawn = make(bench)
    if not drawn:
        raise NotApplicableError(f"no draw of {op} is of this kind")
    wrong: list[str] = []
    not_made: list[DeclinedError | NotApplicableError] = []
    compiled: tuple[bytes, Any] = (b"", None)
    made: list[tuple[Draw, list[Any]]] = []
    for word, one in drawn:
        proto, feeds = model_of(op, one)
        try:
            model = proto.SerializeToString(deterministic=True)
            if model != compiled[0]:
                request = claimed_compiles(bench, proto).create_infer_request()
                compiled = model, request
            expected = _expected(bench, proto, feeds)
            compare_all(op, one, compiled[1], feeds, expected)
            made.append((one, expected))
        except ConformanceError as error:
            wrong.append(f"{word}: {error}" if word else str(error))
        except (DeclinedError, NotApplicableError) as reason:
            not_made.append(reason)
    if wrong:
        raise ConformanceError("; ".join(wrong))
    if bodies and made:
        _compare_inside(op, made, bench)
    if len(not_made) == len(drawn):
        skipped = [reason for reason in not_made if isinstance(reason, NotApplicableError)]
        raise (skipped or not_made)[0]


def _compare_inside(op: str, made: Sequence[tuple[Draw, list[Any]]], bench: Bench) -> None:
    """Compares what a device makes of draws in a branch with what is right, if it takes that.

    Raises:
        ConformanceError: It is something else.
    """
    opset = made[0][0].opset
    fit = [(one, due) for one, due in made if one.opset == opset and _of_arrays(due)]
    some = fit[:: -(-len(fit) // _TOGETHER)] if fit else []
    if not some:
        return
    proto, feeds, due = inside(op, *zip(*some, strict=True))
    if bench.refusals(proto):
        return
    with np.errstate(all="ignore"):
        have = claimed_compiles(bench, proto)(feeds).to_tuple()
    for given, (one, place, right) in zip(have, due, strict=True):
        what = f"{op} {one.attributes} of opset {opset} in a branch, output {place}"
        compare([given], [right], what, *_allowed(op, right))


def _of_arrays(outputs: Sequence[Any]) -> bool:
    return all(isinstance(array, np.ndarray) for array in outputs)


def _expected(bench: Bench, proto: Any, feeds: Any) -> list[Any]:
    """The right outputs.

    Raises:
        NotApplicableError: Nobody can say.
    """
    try:
        with np.errstate(all="ignore"):
            return bench.expected(proto, feeds)
    except PartitaError as error:
        raise NotApplicableError(f"no judge can compute it: {error}") from error


def compare_all(op: str, one: Draw, request: Any, feeds: Any, expected: Sequence[Any]) -> None:
    """Runs a request, and compares what it gives for a draw with what is right.

    Raises:
        ConformanceError: It is something else, or an input is not what it was to the last bit.
    """
    held = {name: array.tobytes() for name, array in feeds.items()}
    with np.errstate(all="ignore"):
        have = request.infer(feeds).to_tuple()
    compare_results(op, one, have, expected)
    changed = [name for name, array in feeds.items() if array.tobytes() != held[name]]
    if changed:
        raise ConformanceError(f"{op} {one.attributes}: a run changes input {', '.join(changed)}.")


def compare_results(op: str, one: Draw, have: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compares what a device gives for a draw with what is right.

    Args:
        op: The operator, by which the tolerance goes.
        one: The draw, for the error.
        have: The device's outputs, in order.
        expected: What they should be.

    Raises:
        ConformanceError: It is something else.
    """
    shapes = [None if a is None else (str(a.dtype), a.shape) for a in one.inputs]
    what = f"{op} {one.attributes} of {shapes}"
    for index, (given, due) in enumerate(zip(have, expected, strict=True)):
        place = f"{what}, output {index}"
        dtype = np.asarray(due).dtype
        compare([given], [due], place, *_allowed(op, due))
        if op in _SIGNED and dtype.kind == "f":
            other = np.signbit(given) != np.signbit(due)
            wrong = other & (np.asarray(due) == 0)
            if np.any(wrong):
                raise ConformanceError(f"{place}: {int(wrong.sum())} zeros have another sign.")


def _allowed(op: str, due: Any) -> tuple[float, float]:
    """Relative and absolute tolerance of an output."""
    allowed = tolerance(op, np.asarray(due).dtype)
    more = allowed.of_largest * largest(np.asarray(due)) if allowed.of_largest else 0.0
    return allowed.rtol, allowed.atol + more


def answers(bench: Bench, op: str, drawn: Draw) -> Any:
    """The right outputs, or the name of the error where there are none."""
    proto, feeds = model_of(op, drawn)
    try:
        with np.errstate(all="ignore"):
            return bench.expected(proto, feeds)
    except PartitaError as error:
        return type(error).__name__


def differ(op: str, one: Any, other: Any) -> bool:
    """Whether a check would find a difference between two answers."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) != isinstance(other, str)
    try:
        for have, due in zip(other, one, strict=True):
            compare([have], [due], "", *_allowed(op, due))
    except (ConformanceError, ValueError):
        return True
    return False

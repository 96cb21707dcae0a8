"""Suite ``passes``: random operators behind and beside each other compute what each of them says.

Every operator that compilers like to rewrite stands ahead of every other one that takes what it
makes, and beside others of its kind; see :mod:`partita_conformance.draws.graphs`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.draw import Array, Rng
from partita_conformance.draws.graphs.around import AROUND, around
from partita_conformance.draws.graphs.bodies import FAMILIES, drawn, turns
from partita_conformance.draws.graphs.builder import GraphDraw, Value
from partita_conformance.draws.graphs.onto import OPERATORS
from partita_conformance.draws.graphs.pairs import pairs_of, readers_of
from partita_conformance.draws.graphs.patterns.every import PATTERNS
from partita_conformance.draws.graphs.variants import pattern
from partita_conformance.inputs.models import Sample
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    DeclinedError,
    NotApplicableError,
)
from partita_conformance.judging.tolerances import EXACT
from partita_conformance.suites.numerics.suite_operators import claimed_compiles

_ERAS = 2
"""Models of each number: one of an old opset, and one of a new one."""
_WEIGHING = frozenset(("Resize", "Conv", "ConvTranspose", "Cast"))
"""Operators that may weigh an infinite neighbour by zero or leave it out, or have no answer."""
_ROOTS = frozenset(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "Pow"))
"""Operators of which ONNX does not say what they make of whole numbers on the way."""
_SIGNED = frozenset(("Div", "Reciprocal", "Pow"))
"""Operators whose results depend on the sign of a zero, which those before them need not keep."""
_STEP = 1e-6
"""By which share inputs are moved to see which results are a matter of rounding."""
_UNORDERED_NAMES = "ArgMax TopK Max Min MaxPool ReduceMax ReduceMin QuantizeLinear"
_UNORDERED = frozenset(_UNORDERED_NAMES.split())
"""Operators that have no answer to what is no number, or as many as there are libraries."""


def pass_checks(count: int) -> list[Check]:
    """The checks.

    Args:
        count: Random models per operator of other suites; here a quarter as many of each kind.
    """
    rounds = max(1, count // 4)
    checks = []
    for operators, word, make, what in (
        (OPERATORS, "and_then", pairs_of, "and each other operator behind it"),
        (OPERATORS, "beside", readers_of, "beside itself, and joined"),
        (AROUND, "between", around, "behind another operator and ahead of one"),
    ):
        for op in operators:
            run = functools.partial(_run, op, make, _ERAS * rounds)
            checks.append(Check(f"passes/{op}_{word}", run, True, f"{op} {what}, drawn"))
    for name in PATTERNS:
        run = functools.partial(_run_pattern, name, rounds)
        what = f"{name}, and what differs from it in a constant, an axis or an order"
        checks.append(Check(f"passes/{name.replace(' ', '_')}", run, True, what))
    for family in FAMILIES:
        run = functools.partial(_run_bodies, family, count)
        what = f"drawn {family}, and what is read behind them"
        checks.append(Check(f"passes/drawn_{family}", run, True, what))
    return checks


def _run(op: str, make: Callable[[str, int], GraphDraw], count: int, bench: Bench) -> None:
    wrong: list[str] = []
    made = 0
    refused = ""
    unjudged: NotApplicableError | None = None
    for number in range(count):
        graph = make(op, number)
        outputs, refused = taken(graph, bench)
        if outputs:
            try:
                wrong += judged(graph, outputs, bench, make is not around and number % 2 == 0)
                made += len(outputs)
            except NotApplicableError as reason:
                unjudged = reason
    if wrong:
        raise ConformanceError("; ".join(wrong))
    if not made and unjudged:
        raise unjudged
    if not made:
        raise DeclinedError(refused) if refused else NotApplicableError(f"no draw of {op}")


def taken(graph: GraphDraw, bench: Bench) -> tuple[Sequence[Value], str]:
    """The outputs whose operations the device takes all, and why it refuses another one."""
    kept, reason = list(graph.outputs), ""
    lost: set[str] = set()
    while kept:
        refused = bench.refused(graph.model(kept))
        if not refused:
            break
        reason = reason or next(iter(refused.values()))
        lost |= refused.keys()
        left = graph.without(lost)
        if len(left) == len(kept):  # what it refuses is no node of the graph, but of a body
            left = [value for value in kept if not bench.refused(graph.model([value]))]
        kept = left
    return kept, reason


def judged(graph: GraphDraw, outputs: Sequence[Value], bench: Bench, special: bool) -> list[str]:
    """What is wrong of what the device makes of a model, by the operations that lead to it.

    Args:
        graph: The model.
        outputs: Those of its outputs that the device makes.
        bench: The device.
        special: Whether to try numbers that break things, too.
    """
    model = graph.model(outputs)
    compiled = bench.compile(model)
    feeds = graph.feeds_of(model)
    wrong = _wrong_of(graph, outputs, compiled, feeds, bench)
    if special and not wrong:
        wrong = _wrong_of(graph, outputs, compiled, _special(feeds, graph.rng), bench)
    return wrong


def _wrong_of(
    graph: GraphDraw,
    outputs: Sequence[Value],
    compiled: Any,
    feeds: Mapping[str, Array],
    bench: Bench,
) -> list[str]:
    """What is wrong of what the device makes of some inputs.

    Raises:
        NotApplicableError: Nobody can say what is right.
    """
    made = {name for node in graph.model(outputs).graph.node for name in node.output}
    everything = [value for name, value in graph.values.items() if name in made]
    proto = graph.model(everything)

    def answers(given: Mapping[str, Array]) -> dict[str, Array]:
        try:
            with np.errstate(all="ignore"):
                return dict(zip(_names(everything), bench.expected(proto, given), strict=True))
        except PartitaError as error:
            raise NotApplicableError(f"no judge can compute it: {error}") from error

    right = answers(feeds)
    with np.errstate(all="ignore"):
        have = compiled(dict(feeds)).to_tuple()
    right.update({name: np.asarray(array) for name, array in feeds.items()})
    wrong = []
    for value, array in zip(outputs, have, strict=True):
        what = f"{', then '.join(value.path)} (opset {graph.opset}, {value.name})"
        found = _wrong(array, right[value.name], what) if _is_defined(value, right) else []
        if found and (
            _exact(value) or not _differ(answers(_moved(feeds))[value.name], right[value.name])
        ):
            wrong += found
    return wrong


def _run_pattern(name: str, rounds: int, bench: Bench) -> None:
    """Compares each variant of a pattern that is no matter of rounding with what is right."""
    wrong = []
    for number in range(rounds):
        sample, words = pattern(name, number)
        compiled = claimed_compiles(bench, sample.proto)
        feeds = sample.feeds(number)
        runs = [feeds]
        if PATTERNS[name].numbers:
            runs.append(_special(feeds, np.random.default_rng(number), PATTERNS[name].numbers))
        for given in runs:
            wrong += _wrong_variants(bench, sample, words, compiled, given)
    if wrong:
        raise ConformanceError("; ".join(wrong))


def _wrong_variants(
    bench: Bench, sample: Sample, words: Sequence[str], compiled: Any, feeds: Mapping[str, Array]
) -> list[str]:
    """What is wrong of what the device makes of the variants of a pattern."""
    with np.errstate(all="ignore"):
        right = bench.expected(sample.proto, feeds)
        have = compiled(dict(feeds)).to_tuple()
        wrong = []
        for place, (word, given, due) in enumerate(zip(words, have, right, strict=True)):
            found = _wrong(given, due, word)
            if found and not _differ(bench.expected(sample.proto, _moved(feeds))[place], due):
                wrong += found
    return wrong


def _run_bodies(family: str, count: int, bench: Bench) -> None:
    """Compares each of several runs of a request of a family's models with what is right."""
    wrong = []
    for number in range(count):
        sample = drawn(family, number)
        request = claimed_compiles(bench, sample.proto).create_infer_request()
        for turn, feeds in enumerate(turns(sample)):
            with np.errstate(all="ignore"):
                right = bench.expected(sample.proto, feeds)
                have = request.infer(feeds).to_tuple()
            for value, given, due in zip(sample.proto.graph.output, have, right, strict=True):
                wrong += _wrong(given, due, f"{sample.name}, run {turn + 1}, {value.name}")
    if wrong:
        raise ConformanceError("; ".join(wrong))


def _wrong(given: Any, due: Any, what: str) -> list[str]:
    """What is wrong of an output, if anything is."""
    try:
        compare([given], [due], what)
    except ConformanceError as error:
        return [str(error)]
    return []


def _names(values: Sequence[Value]) -> list[str]:
    return [value.name for value in values]


def _moved(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs a little beside those given."""
    found = {}
    for name, array in feeds.items():
        signs = np.resize(np.array([1, -1, -1, 1, -1]), array.shape)
        floats = array.dtype.kind == "f"
        found[name] = np.asarray(array * (1 + _STEP * signs), array.dtype) if floats else array
    return found


_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5, -0.5)


def _special(
    feeds: Mapping[str, Array], rng: Rng, special: Sequence[float] = _SPECIAL
) -> dict[str, Array]:
    """Inputs of which some numbers are those that rewriting forgets."""
    found = {}
    for name, array in feeds.items():
        if array.dtype.kind in "iu" and array.dtype.itemsize == 1:  # codes
            limits = np.iinfo(array.dtype)
            numbers = rng.choice([limits.min, limits.max, 0, 1], array.shape)
        elif array.dtype.kind == "f":
            numbers = rng.choice(special, array.shape)
        else:
            numbers = array
        kept = rng.random(array.shape) < 0.6
        found[name] = np.asarray(np.where(kept, array, numbers), array.dtype)
    return found


def _exact(value: Value) -> bool:
    """Whether all operators but the last one give their inputs' elements, or choose among them."""
    return all(op in EXACT for op in value.path[:-1])


def _differ(one: Array, other: Array) -> bool:
    return bool(_wrong(one, other, ""))


def _is_defined(value: Value, right: Mapping[str, Array]) -> bool:
    """Whether ONNX says what each operator makes of what it reads."""
    read = [right[name] for name in value.read if name in right]
    floats = [array for array in read if array.dtype.kind == "f"]
    if _SIGNED & set(value.path[1:]) and any((array == 0).any() for array in floats):
        return False
    if _ROOTS & set(value.path) and any(array.dtype.kind in "iu" for array in read):
        return False
    if _WEIGHING & set(value.path):
        return all(np.isfinite(array).all() for array in floats)
    return not (_UNORDERED & set(value.path) and any(np.isnan(array).any() for array in floats))

"""Suite ``outputs``: what is left of an operator's outputs is right, whichever are left out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
from onnx import defs

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.cover import newest_opset, order
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.operators import GENERATORS, draw, model_of
from partita_conformance.draws.vary import schema_of
from partita_conformance.judging.requirements import NotApplicableError
from partita_conformance.suites.numerics.drawn import compare_results
from partita_conformance.suites.numerics.suite_operators import claimed_compiles

_ADDED = {"LayerNormalization": 3, "Dropout": 2, "SoftmaxCrossEntropyLoss": 2}
"""Outputs of operators whose draws have the first one only; of others, draws have what there is."""


def output_checks() -> list[Check]:
    """A check per operator that has optional outputs, and draws of several."""
    return [
        Check(
            f"outputs/{op}",
            functools.partial(_run, op),
            True,
            f"{op} of which some outputs are left out, also before one that is there",
            op,
            "float",
        )
        for op in GENERATORS
        if _of_all(op) is not None
    ]


@functools.cache
def _of_all(op: str) -> Draw | None:
    """A draw of an operator with all outputs; ``None`` if it has one, or none are optional."""
    schema = schema_of(op, newest_opset(op))
    if schema is None or len(schema.outputs) < 2:
        return None
    drawn = [draw(op, 0, attempt) for attempt in order(op)]
    one = max(drawn, key=lambda each: each.outputs)
    one.outputs = max(one.outputs, _ADDED.get(op, 1))
    return one if one.outputs > 1 and any(gaps_of(op, one)) else None


def gaps_of(op: str, one: Draw) -> Iterator[tuple[int, ...]]:
    """Each choice of outputs that may be left out, of which one at least is there."""
    schema = schema_of(op, one.opset)
    assert schema is not None  # noqa: S101  # a draw is of an operator that its opset has
    optional = [
        place
        for place, formal in enumerate(schema.outputs[: one.outputs])
        if formal.option == defs.OpSchema.FormalParameterOption.Optional
    ]
    for count in range(1, len(optional) + 1):
        for places in itertools.combinations(optional, count):
            if len(places) < one.outputs:
                yield places


def _run(op: str, bench: Bench) -> None:
    one = _of_all(op)
    if one is None:
        raise NotApplicableError(f"{op} has no outputs that may be left out")
    proto, feeds = model_of(op, one)
    with np.errstate(all="ignore"):
        right = bench.expected(proto, feeds)
    for places in gaps_of(op, one):
        kept = [place for place in range(one.outputs) if place not in places]
        model, _ = model_of(op, one)
        node = model.graph.node[0]
        left = [value for place, value in enumerate(model.graph.output) if place in kept]
        for place in places:
            node.output[place] = ""
        while not node.output[-1]:
            node.output.pop()
        del model.graph.output[:]
        model.graph.output.extend(left)
        with np.errstate(all="ignore"):
            have = claimed_compiles(bench, model)(feeds).to_tuple()
        compare_results(f"{op}", one, have, [right[place] for place in kept])

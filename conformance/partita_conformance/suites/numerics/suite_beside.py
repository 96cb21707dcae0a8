"""Suite ``beside``: operations that differ in one thing are told apart in one model.

A compiler computes operations only once that do the same. Here they do not: one lacks an attribute,
or reads the inputs in another order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.cover import newest_opset, nth
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.operators import GENERATORS, model_of
from partita_conformance.draws.vary import without
from partita_conformance.judging.requirements import DeclinedError, NotApplicableError
from partita_conformance.suites.numerics.drawn import compare_results
from partita_conformance.suites.numerics.suite_kinds import CHANCE
from partita_conformance.suites.numerics.suite_operators import claimed_compiles
from partita_conformance.suites.numerics.suite_sweep import attributes_of, telling


def beside_checks() -> list[Check]:
    """A check per operator."""
    return [
        Check(
            f"beside/{op}",
            functools.partial(_run, op),
            True,
            f"two of {op} in one model, that differ in an attribute or the order of their inputs",
            op,
            "float",
        )
        for op in GENERATORS
        if op not in CHANCE
    ]


def _run(op: str, bench: Bench) -> None:
    declined: DeclinedError | None = None
    tried = 0
    for one, other in _unlike(op):
        for pair in ((one, other), (other, one)):
            proto, feeds = _both(op, *pair)
            try:
                with np.errstate(all="ignore"):
                    expected = bench.expected(proto, feeds)
            except PartitaError:
                continue  # nobody can say what is right
            try:
                compiled = claimed_compiles(bench, proto)
            except DeclinedError as reason:
                declined = reason
                continue
            tried += 1
            with np.errstate(all="ignore"):
                have = compiled(feeds).to_tuple()
            compare_results(op, one, have, expected)
    if not tried:
        raise declined or NotApplicableError(f"no two draws of {op} differ in one thing")


_ASKED_FOR = {
    "CenterCropPad": ("axes",),
    "ConvTranspose": ("group",),
    "ReverseSequence": ("batch_axis", "time_axis"),
    "STFT": ("onesided",),
    "Split": ("axis",),
    "TfIdfVectorizer": ("pool_int64s", "pool_strings"),
}
"""Attributes without which the inputs of their draws do not fit, or judges do not agree."""


def with_and_without(op: str) -> Iterator[tuple[Draw, Draw]]:
    """Draws that have an attribute, and the same ones without it, by which their results differ."""
    for attribute in attributes_of(op, newest_opset(op)):
        one = telling(op, attribute)
        if one is not None and attribute not in _ASKED_FOR.get(op, ()):
            yield one, without(one, attribute)


def _unlike(op: str) -> Iterator[tuple[Draw, Draw]]:
    """Draws that differ in one thing, by which their results differ."""
    yield from with_and_without(op)
    one = nth(op, 0)
    turned = _turned(one.inputs)
    if turned is not None:
        yield one, dataclasses.replace(one, inputs=turned)


def _turned(inputs: Sequence[Any]) -> list[Any] | None:
    """The inputs with the first two of one type and shape in turn; ``None`` if there are none."""
    forms = [
        (array.shape, array.dtype) if isinstance(array, np.ndarray) else None for array in inputs
    ]
    for place, (one, other) in enumerate(itertools.pairwise(forms)):
        if one is not None and one == other:
            return [*inputs[:place], inputs[place + 1], inputs[place], *inputs[place + 2 :]]
    return None


def _both(op: str, one: Draw, other: Draw) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of two draws of which the second reads the values of the first."""
    proto, feeds = model_of(op, one)
    second, _ = model_of(op, other)
    (node,) = second.graph.node
    node.name += "_beside"
    if other.inputs is not one.inputs:
        names = list(proto.graph.node[0].input)
        places = [next(i for i, a in enumerate(one.inputs) if a is b) for b in other.inputs]
        node.input[:] = [names[place] for place in places]
    node.output[:] = [f"{name}_beside" if name else "" for name in node.output]
    for value in second.graph.output:
        value.name += "_beside"
    proto.graph.node.append(node)
    proto.graph.output.extend(second.graph.output)
    return proto, feeds

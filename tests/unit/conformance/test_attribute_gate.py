"""No attribute of any operator that a device may leave unread without a check that notices."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from onnx import defs

import partita
from partita.errors import PartitaError
from partita.tensors.sequence_values import boxed, unboxed
from partita_conformance.draws.cover import newest_opset
from partita_conformance.draws.operators import GENERATORS
from partita_conformance.inputs.node_cases import node_cases
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import ConformanceError
from partita_conformance.suites.contract.suite_sequences import SEQUENCES
from partita_conformance.suites.contract.suite_weights import CONSTANTS
from partita_conformance.suites.numerics.suite_chance import ASKED
from partita_conformance.suites.numerics.suite_sweep import UNREAD, attributes_of, telling

OPERATORS = sorted({s.name for s in defs.get_all_schemas() if not s.domain and not s.deprecated})


def optional(op):
    """Attributes of the newest version of an operator that may be left out, but for exceptions."""
    skipped = UNREAD.get(op, {}).keys() | UNREAD["*"].keys()
    found = defs.get_schema(op).attributes
    return {name for name, one in found.items() if not one.required} - skipped


def told_elsewhere(op):
    """Attributes that checks of several operators set."""
    if op == "Constant":
        return set(CONSTANTS)
    if op == "ConcatFromSequence":
        return {"new_axis"} if any("new_axis = 1" in text for text in SEQUENCES) else set()
    return set(ASKED[op][0]) if op in ASKED else set()


@functools.cache
def core():
    return partita.Core()


def is_right(case, proto):
    """Whether the judge's answers to a model are those of a case."""
    compiled = core().compile_model(core().read_model(proto), "REFERENCE")
    names = [value.name for value in proto.graph.input]
    wanted = {port.name for port in compiled.inputs}
    for inputs, expected in case.runs:
        given = zip(names, inputs, strict=False)
        feeds = {name: boxed(value) for name, value in given if name in wanted}
        with np.errstate(all="ignore"):
            have = [unboxed(array) for array in compiled(feeds).to_tuple()]
        try:
            compare(have, expected, case.name, case.rtol, case.atol, case.form_only)
        except ConformanceError:
            return False
    return True


def told_by(case, op, attribute):
    """Whether a case has the attribute, is right with it and wrong without it."""
    proto = case.proto()
    found = False
    for node in proto.graph.node:
        kept = [one for one in node.attribute if one.name != attribute]
        if node.op_type == op and len(kept) < len(node.attribute):
            found = True
            del node.attribute[:]
            node.attribute.extend(kept)
    if not found:
        return False
    try:
        if not is_right(case, case.proto()):
            return False
    except PartitaError:
        return True  # no judge but the case, which has the attribute
    try:
        return not is_right(case, proto)
    except PartitaError:
        return True


@functools.cache
def cases_of():
    """Node cases by the operators of their nodes."""
    found = {}
    for case in node_cases().values():
        for op in {node.op_type for node in case.proto().graph.node if not node.domain}:
            found.setdefault(op, []).append(case)
    return found


@pytest.mark.parametrize("op", OPERATORS)
def test_every_attribute_is_told_by_some_check(op):
    left = optional(op) - told_elsewhere(op)
    if op in GENERATORS:
        drawn = set(attributes_of(op, newest_opset(op)))
        left -= {name for name in drawn if telling(op, name) is not None}
    cases = cases_of().get(op, ())
    left -= {name for name in left if any(told_by(case, op, name) for case in cases)}
    assert left == set()

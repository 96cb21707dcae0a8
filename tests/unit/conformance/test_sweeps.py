"""The sweeps: no attribute without a draw that shows its loss, and variations that are valid."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import defs

from partita_conformance.bench.bench import Bench, Target
from partita_conformance.draws.operators import GENERATORS, draw
from partita_conformance.draws.vary import aged, converted, element_types, revalued, typed, without
from partita_conformance.judging.tolerances import tolerance
from partita_conformance.suites.numerics.suite_sweep import (
    UNREAD,
    answers,
    attributes_of,
    differ,
    telling,
)

ATTRIBUTES = [(op, name) for op in GENERATORS for name in attributes_of(op, draw(op, 0).opset)]


@pytest.fixture(scope="module")
def judge():
    return Bench(Target("REFERENCE"))


def test_loss_of_every_attribute_is_noticed():
    assert len(ATTRIBUTES) > 150
    holes = [f"{op}.{name}" for op, name in ATTRIBUTES if telling(op, name) is None]
    assert holes == []


def test_exceptions_have_reasons_and_name_attributes_that_exist():
    for op, names in UNREAD.items():
        assert all(len(reason) > 10 for reason in names.values())
        if op != "*":
            assert set(names) <= set(defs.get_schema(op).attributes)


def test_dilations_are_told_where_the_kernel_has_taps(judge):
    drawn = telling("Conv", "dilations")
    right = answers(judge, "Conv", drawn)
    assert differ("Conv", right, answers(judge, "Conv", without(drawn, "dilations")))
    assert not differ("Conv", right, answers(judge, "Conv", drawn))


def test_every_draw_has_a_right_answer(judge):
    silent = {op for op in GENERATORS if isinstance(answers(judge, op, draw(op, 0)), str)}
    assert silent == set()


@pytest.mark.parametrize("op", ["Add", "Gather", "MatMul", "Where", "Concat"])
def test_types_change_together(op):
    drawn = draw(op, 0)
    for element in element_types(op, drawn):
        other = typed(op, drawn, element)
        shapes = [None if a is None else a.shape for a in other.inputs]
        assert shapes == [None if a is None else a.shape for a in drawn.inputs]
    if op == "Add":
        assert {a.dtype for a in typed("Add", drawn, "int8").inputs} == {np.dtype(np.int8)}
    if op == "Gather":
        assert typed("Gather", drawn, "string").inputs[1].dtype == np.int64


def test_numbers_stay_apart_in_other_types():
    x = np.array([-1.0, 0.25, 0.5, 2.0], np.float32)
    assert converted(x, np.int32).tolist() == [-5, 1, 2, 10]
    assert converted(x, np.uint8).tolist() == [5, 1, 2, 10]
    assert converted(x, bool).tolist() == [False, False, True, True]
    assert len(set(converted(x, object))) == 4


def test_old_opsets_have_attributes_where_new_ones_have_inputs():
    old = next(o for n in range(60) if (o := aged("ReduceSum", draw("ReduceSum", n), 11)))
    assert len(old.inputs) == 1
    assert old.opset == 11
    axes = [aged("ReduceSum", draw("ReduceSum", n), 11) for n in range(30)]
    assert any(o and "axes" in o.attributes for o in axes)
    assert aged("Gelu", draw("Gelu", 0), 13) is None
    assert aged("LayerNormalization", draw("LayerNormalization", 0), 13) is None


def test_values_that_break_things_are_in():
    special = revalued("Relu", draw("Relu", 0, wide=True), "special", 0).inputs[0]
    assert np.isnan(special).any()
    assert np.isposinf(special).any()
    whole = revalued("Add", typed("Add", draw("Add", 0, wide=True), "int64"), "int64", 0)
    assert 2**53 + 1 in whole.inputs[0]
    divided = revalued("Div", typed("Div", draw("Div", 0, wide=True), "int8"), "int8", 0)
    assert not np.isin(divided.inputs[1], (0, -1)).any() or 1 in draw("Div", 0).constant


def test_wide_draws_end_in_sizes_that_no_vector_divides():
    for number in range(5):
        assert draw("Relu", number, wide=True).inputs[0].shape[-1] % 8


def test_exact_operators_have_no_tolerance():
    assert tolerance("Transpose", np.float32) == (0, np.finfo(np.float32).tiny, 0)
    assert tolerance("Add", np.float64).rtol < 1e-15
    assert tolerance("MatMul", np.float64).rtol == 1e-12
    assert tolerance("MatMul", np.int64) == (0, 0, 0)

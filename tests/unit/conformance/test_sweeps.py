"""The sweeps: no attribute without a draw that shows its loss, and variations that are valid."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from onnx import defs

from partita_conformance.bench.bench import Bench, Target
from partita_conformance.draws.choices.meet import meetings, meetings_of_three
from partita_conformance.draws.cover import ATTEMPTS, newest_opset, nth, order
from partita_conformance.draws.draw import Draw
from partita_conformance.draws.operators import GENERATORS, draw, model_of
from partita_conformance.draws.shapes import broadcast, without_dimensions
from partita_conformance.draws.values import groups_of, revalued
from partita_conformance.draws.vary import aged, converted, element_types, typed, variables, without
from partita_conformance.judging.exact import exact_answers
from partita_conformance.judging.tolerances import tolerance
from partita_conformance.suites.numerics.drawn import answers, differ
from partita_conformance.suites.numerics.suite_sweep import (
    UNREAD,
    attributes_of,
    sweep_checks,
    telling,
)


@pytest.fixture(scope="module")
def judge():
    return Bench(Target("REFERENCE"))


def test_loss_of_every_attribute_is_noticed():
    attributes = [(op, name) for op in GENERATORS for name in attributes_of(op, newest_opset(op))]
    assert len(attributes) > 150
    holes = [f"{op}.{name}" for op, name in attributes if telling(op, name) is None]
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


def valued(op, element, group):
    return revalued(op, typed(op, draw(op, 0, wide=True), element), group).inputs


def test_values_that_break_things_are_in():
    (special,) = valued("Relu", "float", "special")
    assert np.isnan(special).any()
    assert np.isposinf(special).any()
    assert 2**53 + 1 in valued("Add", "int64", "limits")[0]
    assert not np.isin(valued("Div", "int8", "limits")[1], (0, -1)).any()
    (fine,) = valued("Exp", "double", "ties")
    assert (fine.astype(np.float32) != fine).any()
    assert max(len(text) for text in valued("Identity", "string", "long texts")[0].flat) > 40


@pytest.mark.parametrize("group", ["special", "infinite"])
@pytest.mark.parametrize("opset", [6, 13])
def test_what_infinity_is_past_a_limit_that_is_left_out_is_not_asked(judge, opset, group):
    """The right answer of an engine that has the largest number there is right, too."""
    for number in range(12):
        newest = typed("Clip", draw("Clip", number), "float")
        one = newest if opset == 13 else aged("Clip", newest, opset)
        (right,) = answers(judge, "Clip", revalued("Clip", one, group))
        assert not np.isinf(right).any()
        assert np.isin(right, np.float32([-0.5, 0.8])).any()


@pytest.mark.parametrize("op", ["ReduceSum", "CumSum", "MatMul", "ReduceProd", "ReduceL1"])
@pytest.mark.parametrize("element", ["int32", "int64", "uint64"])
def test_sums_of_integers_fit_their_type_and_no_float(judge, op, element):
    inputs = typed(op, draw(op, 0), element)
    (right,) = answers(judge, op, revalued(op, inputs, "sums"))
    floats = np.float32 if element == "int32" else np.float64
    assert (np.abs(right.astype(np.longdouble)) > 2 ** (24 if element == "int32" else 53)).any()
    assert (right.astype(floats).astype(np.longdouble) != right.astype(np.longdouble)).any()


def test_every_family_of_operators_has_values_in_every_numeric_type():
    checks = sweep_checks(4)
    tried = {(check.op, check.dtype) for check in checks if check.suite == "values"}
    for op in ("ReduceSum", "MatMul", "CumSum", "Softmax", "Add", "Transpose", "Pow", "Cast"):
        types = set(element_types(op, draw(op, 0))) - {"bool", "string"}
        assert types <= {element for one, element in tried if one == op}, op


def test_types_are_changed_of_all_inputs_that_may_have_several():
    assert ("T3", "double") in variables("OneHot", draw("OneHot", 0))
    assert ("Tind", "int32") in variables("Gather", draw("Gather", 0))
    chosen = typed("Where", draw("Where", 0), "int64")
    assert [array.dtype.name for array in chosen.inputs] == ["bool", "int64", "int64"]


def test_newer_opsets_are_asked_for_types_that_came_with_them():
    assert typed("Conv", draw("Conv", 0), "bfloat16").opset == 22
    assert typed("Conv", draw("Conv", 0), "double").opset == draw("Conv", 0).opset


def test_doubles_have_digits_that_float32_does_not_hold():
    x = typed("MatMul", draw("MatMul", 0), "double").inputs[0]
    assert (x.astype(np.float32).astype(np.float64) != x).all()


ORACLES = {
    "Erf": (0.5, 0.520499877813046537682746653892),
    "Softplus": (-40.0, 4.24835425529158899e-18),
    "Gelu": (1.0, 0.841344746068542948585232545632),
    "HardSwish": (1.0, 2 / 3),
    "Mish": (1.0, ((1 + math.e) ** 2 - 1) / ((1 + math.e) ** 2 + 1)),
    "Elu": (-1e-10, -9.9999999995e-11),
    "Celu": (-1e-10, -9.9999999995e-11),
}
"""Operator to an argument and its value, of tables and closed forms, to fifteen digits."""


@pytest.mark.parametrize("op", ORACLES)
def test_exact_answers_are_those_of_tables(op):
    argument, value = ORACLES[op]
    drawn = typed(op, draw(op, 0), "double")
    drawn.attributes.clear()
    drawn.inputs[0] = np.array([argument])
    (have,) = exact_answers(*model_of(op, drawn))
    assert have[0] == pytest.approx(value, rel=1e-14)


def test_exact_answers_follow_the_bodies_of_functions():
    slopes = np.array([np.inf, np.inf, -2.0], np.float32)
    drawn = draw("PRelu", 0)
    drawn.inputs = [np.array([0.0, -1.0, -3.0], np.float32), slopes]
    assert exact_answers(*model_of("PRelu", drawn))[0].tolist() == [0.0, -np.inf, 6.0]
    whole = typed("Shrink", draw("Shrink", 0), "int64")
    whole.inputs = [np.array([2**53 + 1, 1, -(2**53) - 1, 0])]
    due = [2**53 - 1, 0, -(2**53) + 1, 0]
    assert exact_answers(*model_of("Shrink", whole))[0].tolist() == due


def test_nobody_has_special_values_for_sizes_and_none_are_lost():
    assert groups_of("Range", "float") == []
    assert "special" in groups_of("PRelu", "float")
    assert "limits" in groups_of("OneHot", "int64")
    assert "infinite" in groups_of("MaxPool", "float")


def test_wide_draws_end_in_sizes_that_no_vector_divides():
    for number in range(5):
        assert draw("Relu", number, wide=True).inputs[0].shape[-1] % 8


def test_exact_operators_have_no_tolerance():
    assert tolerance("Transpose", np.float32) == (0, 0, 0)
    assert tolerance("Relu", np.float32) == (0, np.finfo(np.float32).tiny, 0)
    assert tolerance("Add", np.float64).rtol < 1e-15
    assert tolerance("MatMul", np.float64).rtol == 1e-12
    assert tolerance("MatMul", np.int64) == (0, 0, 0)


def test_types_take_turns_in_the_kinds_of_draws():
    kinds = {nth("Pad", number).attributes["mode"] for number in range(4)}
    assert kinds == {"constant", "edge", "reflect"}
    assert len({len(draw("Pad", 0, attempt).inputs) for attempt in order("Pad")}) == 3


def test_every_pair_of_traits_is_in_the_order():
    how = {(d.attributes["reduction"], d.inputs[0].ndim) for d in map(scatter, order(SCATTER))}
    every = {(d.attributes["reduction"], d.inputs[0].ndim) for d in map(scatter, range(ATTEMPTS))}
    assert how == every
    assert ("add", 1) in how
    assert len(order(SCATTER)) < ATTEMPTS / 2


SCATTER = "ScatterElements"


def scatter(attempt):
    return draw(SCATTER, 0, attempt)


@pytest.mark.parametrize("op", ["Add", "Where", "Sum", "And", "NonZero", "Reshape"])
def test_rare_shapes_have_right_answers(judge, op):
    drawn = [*without_dimensions(op), *broadcast(op)]
    assert drawn
    assert not any(isinstance(answers(judge, op, one), str) for one in drawn)
    assert drawn[0].inputs[-1 if op in ("Add", "Where", "Sum", "And") else 0].shape == ()


def test_each_input_is_broadcast_in_each_way():
    shapes = [tuple(a.shape for a in one.inputs) for one in broadcast("Where")]
    assert len(set(shapes)) == len(shapes) == 42
    assert max(len(shape) for each in shapes for shape in each) == 5
    assert ((3, 1), (2, 3, 4), (2, 3, 4)) in shapes


@pytest.mark.parametrize("element", ["int16", "int32", "int64", "uint64"])
def test_neighbours_are_one_number_in_a_float(element):
    drawn = revalued("Greater", typed("Greater", draw("Greater", 0), element), "neighbours")
    values = np.unique(np.concatenate([a.ravel() for a in drawn.inputs]))
    narrow = {2: np.float16, 4: np.float32, 8: np.float64}[values.dtype.itemsize]
    with np.errstate(over="ignore"):
        assert len(np.unique(values.astype(narrow))) < len(values)


def test_upsampling_is_judged_in_fractions():
    x = np.array([[[[0, 3]]]], np.int32)
    drawn = Draw([x, np.array([1, 1, 1, 3], np.float32)], {"mode": "linear"}, [1], opset=9)
    proto, feeds = model_of("Upsample", drawn)
    assert exact_answers(proto, feeds)[0].ravel().tolist() == [0, 1, 2, 3, 3, 3]


@pytest.mark.parametrize(("draw_rows", "count"), [(meetings, 2), (meetings_of_three, 3)])
def test_any_few_choices_meet(draw_rows, count):
    kinds = {"a": (0, 1, 2), "b": (0, 1), "c": "xyz", "d": (None, 7)}
    rows = list(draw_rows(**kinds))
    for names in itertools.combinations(kinds, count):
        met = {tuple(row[name] for name in names) for row in rows}
        assert met == set(itertools.product(*(kinds[name] for name in names)))
    assert len(rows) < 36  # fewer than all there are


def test_three_of_two_kinds_are_both():
    assert len(list(meetings_of_three(a=(0, 1), b=(0, 1, 2)))) == 6

"""Node cases survive the file that hands them to worker processes, whatever they hold."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx.backend.test import loader

from partita_conformance.inputs.cases_file import NodeCase, load, save
from partita_conformance.inputs.node_cases import node_cases
from partita_conformance.suites.numerics.suite_sweep import case_checks

VALUES = {
    "float": np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 3), np.int64),
    "bool": np.array([True, False]),
    "bfloat16": np.array([1.5, -2], ml_dtypes.bfloat16),
    "int4": np.array([-8, 7, 1], ml_dtypes.int4),
    "float8": np.array([0.5, 4], ml_dtypes.float8_e4m3fn),
    "text": np.array(["", "größer", "x" * 100], object),
}


def case_of(name, inputs, outputs):
    model = helper.make_model(helper.make_graph([], name, [], [])).SerializeToString()
    runs = [(inputs, outputs), (outputs, inputs)]
    return NodeCase(name, model, runs, 1e-3, 0.0, "Relu", "float", False, True)


def back(tmp_path, *cases):
    save(tmp_path / "cases", {case.name: case for case in cases})
    return load(tmp_path / "cases")


@pytest.mark.parametrize("kind", VALUES)
def test_tensors(tmp_path, kind):
    given = case_of("one", [VALUES[kind]], [VALUES[kind]])
    (have,) = back(tmp_path, given).values()
    for inputs, outputs in have.runs:
        for value in (*inputs, *outputs):
            assert (value.dtype, value.shape) == (VALUES[kind].dtype, VALUES[kind].shape)
            assert value.tolist() == VALUES[kind].tolist() or kind == "float"
            assert kind == "text" or value.tobytes() == VALUES[kind].tobytes()


def test_sequences_and_absent_optionals(tmp_path):
    one, two = VALUES["float"], VALUES["bool"]
    (have,) = back(tmp_path, case_of("one", [[one, two], None], [[], [[two]], [None]])).values()
    (sequence, nothing), (empty, nested, of_nothing) = have.runs[0]
    np.testing.assert_array_equal(sequence[0], one)
    np.testing.assert_array_equal(sequence[1], two)
    assert (nothing, empty, of_nothing) == (None, [], [None])
    np.testing.assert_array_equal(nested[0][0], two)


def test_all_else(tmp_path):
    given = [case_of("b", [], []), case_of("a", [VALUES["float"]], [])]
    have = back(tmp_path, *given)
    assert list(have) == ["b", "a"]
    for before, after in zip(given, have.values(), strict=True):
        assert (before.model, before.op, before.rtol) == (after.model, after.op, after.rtol)
        assert (before.form_only, before.values) == (after.form_only, after.values)


def test_workers_make_the_same_checks_of_cases(tmp_path):
    """Scalars of a case are arrays in the file: checks made of them must be known here too."""
    save(tmp_path / "cases", node_cases())
    there, here = load(tmp_path / "cases"), node_cases()
    assert [c.name for c in case_checks(there)] == [c.name for c in case_checks(here)]


@pytest.fixture
def times_made(monkeypatch):
    """How often ONNX was asked to make its cases, of which there is one here."""
    asked = []
    x = helper.make_tensor_value_info("x", 1, [])
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", 1, [])])
    sets = [([np.float32(2.5)], [np.float32(2.5)])]
    model = helper.make_model(graph)
    one = SimpleNamespace(name="test_one", model=model, data_sets=sets, rtol=1e-3, atol=0.0)
    monkeypatch.setattr(loader, "load_model_tests", lambda kind: asked.append(kind) or [one])
    return asked


def test_another_process_reads_what_was_made(tmp_path, monkeypatch, times_made):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    first, second = node_cases.__wrapped__(), node_cases.__wrapped__()
    assert len(times_made) == 1
    assert list(first) == list(second) == ["one"]
    assert first["one"].model == second["one"].model
    for cases in (first, second):
        ((value,), _) = cases["one"].runs[0]
        assert (type(value), value.shape, value.tolist()) == (np.ndarray, (), 2.5)


def test_a_damaged_file_is_made_anew(tmp_path, monkeypatch, times_made):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    node_cases.__wrapped__()
    (kept,) = tmp_path.rglob("*.zip")
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    for _ in range(2):
        assert list(node_cases.__wrapped__()) == ["one"]
        assert len(times_made) == 2


def test_nothing_is_kept_where_nothing_may_be(monkeypatch, times_made):
    monkeypatch.setenv("PARTITA_CACHE_DIR", "")
    for turn in range(2):
        assert list(node_cases.__wrapped__()) == ["one"]
        assert len(times_made) == turn + 1

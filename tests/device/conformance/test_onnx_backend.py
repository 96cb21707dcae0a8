"""ONNX's backend interface over Partita, under ONNX's own test runner and by hand."""

from __future__ import annotations

import importlib
import unittest

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import partita
from partita import onnx_backend
from partita.errors import CompileError, InputError
from partita.onnx_backend import PartitaBackend, backend_for
from partita_conformance.inputs.node_cases import node_cases

MODEL = parser.parse_model(
    """
    <ir_version: 8, opset_import: ["" : 16]>
    g (float[2,3] x, float[3] w) => (float[2,3] y, float[2,3] z) <float[3] w = {1, 2, 3}> {
      y = Mul(x, w)
      z = Neg(x)
    }
    """
)
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


NODE_MODULES = "conv", "convinteger", "convtranspose", "if_", "sequenceinsert"
NODE_MODULES += "optionalhaselement", "topk", "adam"
"""Of ONNX's modules that make node cases as they are imported; all take ten seconds."""


def test_onnx_runner_passes_node_cases(monkeypatch):
    from onnx.backend.test import BackendTest, loader

    def import_some(package):
        for name in NODE_MODULES:
            importlib.import_module(f"{package.__name__}.{name}")

    node_cases()  # ahead of those, for whoever makes them keeps them in ONNX's order
    monkeypatch.setattr(loader, "import_recursive", import_some)
    cases = BackendTest(backend_for("HETERO:CPU,REFERENCE"), __name__)
    cases.include("test_(conv|sequence_insert|if_seq|optional_has|top_k|adam|basic_conv).*_cpu$")
    result = unittest.TestResult()
    cases.test_suite.run(result)
    assert not result.errors
    assert not result.failures
    assert result.testsRun - len(result.skipped) >= 25


@pytest.mark.parametrize("device", ["CPU", "REFERENCE", "HETERO:CPU,REFERENCE"])
def test_values_by_order_and_by_name(device):
    rep = onnx_backend.prepare(MODEL, device)
    by_order, by_name = rep.run([X]), rep.run({"x": X})
    for outputs in (by_order, by_name):
        np.testing.assert_array_equal(outputs.y, X * np.array([1, 2, 3], np.float32))
        np.testing.assert_array_equal(outputs[1], -X)


def test_one_array_needs_no_list():
    np.testing.assert_array_equal(onnx_backend.run_model(MODEL, X)[1], -X)


def test_keyword_arguments_are_properties():
    rep = onnx_backend.prepare(MODEL, "CPU", PERF_COUNT=True)
    assert rep.compiled.get_property("PERF_COUNT") is True


def test_run_node_infers_its_outputs():
    node = helper.make_node("Concat", ["a", "a"], ["y"], axis=0)
    (y,) = onnx_backend.run_node(node, {"a": X})
    np.testing.assert_array_equal(y, np.concatenate([X, X]))


def test_run_node_leaves_absent_inputs_out():
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = onnx_backend.run_node(node, [X, np.array(2, np.float32)], opset_version=13)
    np.testing.assert_array_equal(y, np.minimum(X, 2))


def test_run_node_with_outputs_info():
    node = helper.make_node("Neg", ["x"], ["y"])
    (y,) = onnx_backend.run_node(node, [X], outputs_info=[(np.float32, (2, 3))])
    np.testing.assert_array_equal(y, -X)


def test_devices():
    assert PartitaBackend.supports_device("CPU")
    assert PartitaBackend.supports_device("HETERO:CPU,REFERENCE")
    assert not PartitaBackend.supports_device("CUDA")
    assert not backend_for("CPU").supports_device("CUDA")


def test_the_device_where_none_is_named():
    assert onnx_backend.prepare(MODEL).compiled.device == partita.Core().default_device
    assert backend_for("REFERENCE").prepare(MODEL).compiled.device == "REFERENCE"
    assert backend_for("REFERENCE").prepare(MODEL, "CPU").compiled.device == "REFERENCE"


def test_compatible_means_that_all_is_taken():
    assert PartitaBackend.is_compatible(MODEL, "CPU")
    graph = helper.make_graph(
        [helper.make_node("Nothing", ["x"], ["y"], domain="com.example")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    imports = [helper.make_opsetid("", 16), helper.make_opsetid("com.example", 1)]
    strange = helper.make_model(graph, opset_imports=imports, ir_version=8)
    assert not PartitaBackend.is_compatible(strange, "CPU")
    with pytest.raises((CompileError, partita.errors.UnsupportedOpError)):
        onnx_backend.prepare(strange, "CPU")


def test_too_many_values_are_refused():
    with pytest.raises(InputError, match="2 inputs"):
        onnx_backend.prepare(MODEL).run([X, X, X])


def test_unknown_argument_of_run_is_refused():
    with pytest.raises(InputError, match="'batch'"):
        onnx_backend.prepare(MODEL).run([X], batch=2)


def test_an_initializer_that_is_an_input_may_be_given_and_keeps_its_value():
    given = onnx_backend.prepare(MODEL).run([X, np.zeros(3, np.float32)])
    np.testing.assert_array_equal(given[0], X * np.array([1, 2, 3], np.float32))


def test_sequences_come_and_go_as_lists():
    node = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 16]>
        g (seq(float[2]) s, float[2] x) => (seq(float[2]) t) { t = SequenceInsert(s, x) }
        """
    )
    given = [np.zeros(2, np.float32)]
    (t,) = onnx_backend.run_model(node, [given, np.ones(2, np.float32)], "REFERENCE")
    assert [list(one) for one in t] == [[0, 0], [1, 1]]

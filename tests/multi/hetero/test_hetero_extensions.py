"""Operators of an application's own in the middle of a network that several devices share."""

from __future__ import annotations

import numpy as np
import pytest
from models import model_of, node, value, weight
from onnx import helper

import partita as ov
from partita.errors import InferError, UnsupportedOpError

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def network(batch="N"):
    """y = relu(softsort(x @ w) @ w.T), with an operator in the middle that ONNX does not have."""
    nodes = [
        node("MatMul", ["x", "w"], "a", "up"),
        node("Order", ["a"], "b", "order", domain="my.ops", descending=1),
        node("MatMul", ["b", "wt"], "c", "down"),
        node("Relu", ["c"], "y", "relu"),
    ]
    model = model_of(nodes, [value("x", [batch, 3])], ["y"], [weight("w", W), weight("wt", W.T)])
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    return model


def order(x, descending=0):
    return np.sort(x, axis=-1)[:, ::-1] if descending else np.sort(x, axis=-1)


def due(x):
    """The same in float64."""
    wide = -np.sort(-(x.astype(np.float64) @ W), axis=-1)
    return np.maximum(wide @ W.T, 0)


@pytest.fixture
def core():
    made = ov.Core()
    made.add_extension(ov.CustomOperator("Order", "my.ops", order, infer=lambda x, **_: x))
    return made


@pytest.mark.parametrize("device", ["HETERO:CPU,REFERENCE", "HETERO:REFERENCE,CPU", "REFERENCE"])
@pytest.mark.parametrize("batch", ["N", 2])
def test_a_network_runs_round_an_operator_of_ones_own(core, device, batch):
    found = core.compile_model(network(batch), device)(X)["y"]
    np.testing.assert_allclose(found, due(X), rtol=1e-5, atol=1e-6)


def test_the_operator_alone_is_placed_where_python_runs(core):
    answer = core.query_model(network(), "HETERO:CPU,REFERENCE")
    assert answer == {"up": "CPU", "order": "REFERENCE", "down": "CPU", "relu": "CPU"}
    placed = core.compile_model(network(), "HETERO:CPU,REFERENCE").explain()["order"]
    assert placed.device == "REFERENCE"
    assert "order computes it, in Python" in placed.why
    assert "not CPU: UNSUPPORTED_OP: no kernel for my.ops::Order" in placed.why


def test_files_and_caches_need_the_operator_again(core, tmp_path):
    folder = {"CACHE_DIR": str(tmp_path)}
    compiled = core.compile_model(network(), "HETERO:CPU,REFERENCE")
    blob = compiled.export_model()
    for again in (
        core.import_model(blob, "HETERO"),
        core.compile_model(network(), "HETERO:CPU,REFERENCE", folder),
        core.compile_model(network(), "HETERO:CPU,REFERENCE", folder),
    ):
        np.testing.assert_allclose(again(X)["y"], due(X), rtol=1e-5, atol=1e-6)
    with pytest.raises(UnsupportedOpError, match=r"Core\.add_extension"):
        ov.Core().import_model(blob, "HETERO")


def test_nobody_without_it_is_told_what_to_do():
    with pytest.raises(UnsupportedOpError) as caught:
        ov.Core().compile_model(network(), "HETERO:CPU,REFERENCE")
    assert "No operators of ONNX: 'my.ops::Order'. Core.add_extension" in str(caught.value)
    with pytest.raises(UnsupportedOpError) as caught:
        ov.Core().compile_model(network(), "AUTO:CPU")
    assert "\nCPU: No operators of ONNX: 'my.ops::Order'. Core.add_ext" in str(caught.value)


def test_faults_inside_end_the_request_and_not_the_next_one(core):
    failing = [True]

    def sometimes(x, **_):
        if failing[0]:
            raise RuntimeError("not today")
        return order(x, 1)

    core.add_extension(ov.CustomOperator("Order", "my.ops", sometimes, infer=lambda x, **_: x))
    compiled = core.compile_model(network(), "HETERO:CPU,REFERENCE")
    with pytest.raises(InferError, match=r"'my.ops::Order', which computes operation 'order'.*not"):
        compiled(X)
    failing[0] = False
    np.testing.assert_allclose(compiled(X)["y"], due(X), rtol=1e-5, atol=1e-6)


def test_auto_takes_the_device_that_has_it(core):
    compiled = core.compile_model(network(), "AUTO:CPU,REFERENCE")
    np.testing.assert_allclose(compiled(X)["y"], due(X), rtol=1e-5, atol=1e-6)

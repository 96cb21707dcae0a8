"""NaN out of finite inputs is told once, with the submodel that made it; REJECT_NAN rejects it."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN, X, devices_of, model_of, node

EXECUTORS = ["LINEAR", "DATAFLOW", "PARALLEL"]


def compiled_on(places, proto=CHAIN, **config):
    """B returns NaN once its fault is set."""
    broken = FakeDevice("B")
    core = core_with(FakeDevice("A"), broken)
    model = core.read_model(proto)
    for op in model.ops:
        op.affinity = places.get(op.name, "A")
    return core.compile_model(model, "HETERO:A,B", config), broken


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("ops", ["abcd", "b", "bd"])
def test_the_submodel_is_named_once(ops, executor, caplog):
    compiled, broken = compiled_on(dict.fromkeys(ops, "B"), HETERO_EXECUTOR=executor)
    request = compiled.create_infer_request()
    for _ in range(3):
        request.infer({"x": X})
    assert not compiled.explain().notes
    broken.fault = "nan"
    with caplog.at_level(logging.WARNING, "partita.hetero"):
        for _ in range(13):
            assert np.isnan(request.infer({"x": X})[0]).all()
    (note,) = compiled.explain().notes
    last = "d" if ops == "abcd" else "b"
    assert f"B returned NaN in '{last}' for finite inputs (submodel" in note
    assert f"operations from '{ops[0]}'). If the model does not mean that, REJECT_NAN=YES" in note
    assert caplog.text.count("returned NaN") == 1
    assert devices_of(compiled)[ops[0]] == "B"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_of_inputs_that_are_not_finite_is_theirs(bad):
    proto = model_of([node("Sub", ["x", "x"], "a"), node("Neg", ["a"], "b")], ["b"])
    compiled, _ = compiled_on({"a": "B"}, proto)
    x = X.copy()
    x[0, 0] = bad
    for _ in range(8):
        assert np.isnan(compiled({"x": x})[0]).any()
    assert not compiled.explain().notes


def test_rejected_nan_is_computed_elsewhere():
    compiled, broken = compiled_on({"b": "B"}, REJECT_NAN=True)
    broken.fault = "nan"
    assert not np.isnan(compiled({"x": X})[0]).any()
    assert devices_of(compiled)["b"] == "A"

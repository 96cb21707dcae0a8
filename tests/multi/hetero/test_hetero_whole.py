"""One submodel that is the whole model: its device does everything, as if HETERO were not there."""

from __future__ import annotations

import numpy as np
import pytest

from partita.contract.bound_call import BoundCall
from partita.errors import InferError
from partita.model.model import Model

from ..fakes import FakeCompiled, FakeDevice, FakeRunner, core_with, evaluate
from ..graphs import CHAIN, X, devices_of


class Again(BoundCall):
    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        plugin = self.runner.plugin
        plugin.calls += 1
        if plugin.calls == plugin.fails_at_call:
            raise InferError("the bound call fell over")
        for result, output in zip(self.runner.run(self.inputs), self.outputs, strict=True):
            output.numpy()[...] = result.numpy()


class BindingRunner(FakeRunner):
    def bind(self, inputs, outputs, scratch=None):
        return Again(self, inputs, outputs)


class BindingCompiled(FakeCompiled):
    def create_runner(self):
        return BindingRunner(self)


class BindingDevice(FakeDevice):
    calls = 0
    fails_at_call = 0

    def compile_model(self, model, properties):
        super().compile_model(model, properties)
        return BindingCompiled(model, properties, self.device_name, self)


def infer_often(compiled, feeds, times=20):
    request = compiled.create_infer_request()
    for _ in range(times):
        got = request.infer(feeds)
        np.testing.assert_allclose(got[0], evaluate(CHAIN, feeds)[0], rtol=1e-5)


def test_a_device_binds_its_calls_as_it_does_alone():
    device = BindingDevice("A")
    compiled = core_with(device).compile_model(CHAIN, "HETERO:A")
    infer_often(compiled, {"x": X})
    assert device.calls > 10


def test_with_counters_every_step_is_seen():
    device = BindingDevice("A")
    compiled = core_with(device).compile_model(CHAIN, "HETERO:A", {"PERF_COUNT": True})
    infer_often(compiled, {"x": X})
    assert device.calls == 0


def test_nan_of_a_bound_call_is_told_of_as_that_of_a_run():
    device = BindingDevice("A")
    compiled = core_with(device).compile_model(CHAIN, "HETERO:A")
    request = compiled.create_infer_request()
    while device.calls < 2:
        request.infer({"x": X})
    device.fault = "nan"
    before = device.calls
    for _ in range(16):
        assert np.isnan(request.infer({"x": X})[0]).all()
    assert device.calls > before + 10
    (note,) = compiled.explain().notes
    assert "A returned NaN in 'd' for finite inputs" in note


@pytest.mark.parametrize("again", ["works", "fails too"])
def test_a_bound_call_that_fails_is_run_anew_and_moves_if_that_fails(again):
    device, other = BindingDevice("A"), FakeDevice("B")
    device.fails_at_call = 3
    compiled = core_with(device, other).compile_model(CHAIN, "HETERO:A,B")
    request = compiled.create_infer_request()
    while device.calls < 2:
        request.infer({"x": X})
    if again == "fails too":
        device.fails_at_run = range(device.runs + 1, device.runs + 100)
    for _ in range(3):
        got = request.infer({"x": X})
        np.testing.assert_allclose(got[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-5)
    assert set(devices_of(compiled).values()) == {"A" if again == "works" else "B"}
    assert other.runs == (0 if again == "works" else 3)


def test_a_device_of_its_own_memory_brings_inputs_there_by_itself():
    class Careless(FakeDevice):
        """Its runners take host tensors, as all must."""

        def can_share(self, memory, device_id=""):
            return True

    device = Careless("A", memory="A's")
    compiled = core_with(device).compile_model(CHAIN, "HETERO:A")
    infer_often(compiled, {"x": X}, 3)
    assert device.uploads == 0
    assert isinstance(compiled({"x": X})[0], np.ndarray)


@pytest.mark.parametrize(("leaves", "copies"), [(True, 1), (False, 2)])
def test_who_leaves_models_alone_is_handed_no_copy(monkeypatch, leaves, copies):
    device = FakeDevice("A")
    device.leaves_models_alone = leaves
    core, made, clone = core_with(device), [], Model.clone
    model = core.read_model(CHAIN)
    monkeypatch.setattr(Model, "clone", lambda self: made.append(self) or clone(self))
    compiled = core.compile_model(model, "HETERO:A")
    assert len(made) == copies  # the first is of the application's, which may change its model
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-5)

"""Devices that become slow, in virtual time: noticed, told, and left where that pays."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from partita import BoundCall, ReasonCode
from partita_hetero.runtime.drift import ENOUGH, FIRST, WARM_UP, Pace, Paces, Running

from .. import virtual_time
from ..fakes import FakeDevice, FakeRunner, core_with, evaluate
from ..graphs import CHAIN, X, devices_of, model_of

SETTLED = WARM_UP + FIRST + 5
PLACES = {"whole": {}, "cut": {"a": "C"}, "cut twice": {"a": "C", "c": "C"}}


@pytest.fixture(autouse=True)
def virtual(monkeypatch):
    virtual_time.install(monkeypatch)


def prepared(places="cut", config=None, b_seconds=2e-3, proto=CHAIN, device=FakeDevice):
    """A request on A, of a millisecond, that has run for a while; B is slower than A."""
    a, b = device("A", delay_s=1e-3), FakeDevice("B", delay_s=b_seconds)
    core = core_with(a, b, device("C", delay_s=1e-4))
    model = core.read_model(proto)
    for op in model.ops:
        op.affinity = PLACES[places].get(op.name)
    compiled = core.compile_model(model, "HETERO:A,B", config)
    request = compiled.create_infer_request()
    infer(request, SETTLED)
    assert "A" in devices_of(compiled).values()
    assert not compiled.explain().notes
    return request, compiled, a, b


def infer(request, count, x=X):
    for _ in range(count):
        np.testing.assert_allclose(request.infer({"x": x})[0], evaluate(CHAIN, {"x": x})[0])


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
@pytest.mark.parametrize("places", PLACES)
def test_what_becomes_slow_moves_where_it_is_faster(places, executor, caplog):
    request, compiled, a, _ = prepared(places, {"HETERO_EXECUTOR": executor})
    a.delay_s = 10e-3
    with caplog.at_level(logging.WARNING, "partita.hetero"):
        infer(request, 25)
    assert set(devices_of(compiled).values()) == {"B"} | set(PLACES[places].values())
    said = compiled.explain().notes
    assert "A has drifted: what runs its " in said[0]
    assert "took 10.0 ms, and usually takes 1.0 ms; elsewhere the model is faster." in said[0]
    assert said[0] in caplog.text
    refused = compiled.explain()["b"].refused["A"]
    assert refused.code is ReasonCode.DRIFTED
    runs = a.runs
    infer(request, 5)
    assert a.runs == runs


def test_it_stays_where_nothing_is_faster():
    request, compiled, a, b = prepared(b_seconds=9e-3)
    a.delay_s = 10e-3
    infer(request, 25)
    assert "A" in devices_of(compiled).values()
    (note,) = compiled.explain().notes
    assert "A has drifted" in note
    assert "elsewhere the model would take" in note
    runs = b.runs
    infer(request, 60)
    assert b.runs == runs  # one race is enough
    assert len(compiled.explain().notes) == 1


def test_it_stays_where_no_other_device_takes_it():
    a = FakeDevice("A", delay_s=1e-3)
    core = core_with(a, FakeDevice("B", refuses=["Exp"]))
    compiled = core.compile_model(CHAIN, "HETERO:A,B")
    request = compiled.create_infer_request()
    infer(request, SETTLED)
    a.delay_s = 10e-3
    infer(request, 25)
    (note,) = compiled.explain().notes
    assert "no other device can take them: No device takes 1 of 4" in note


def test_strict_only_tells():
    request, compiled, a, b = prepared(config={"STRICT": True})
    a.delay_s = 10e-3
    infer(request, 25)
    assert "A" in devices_of(compiled).values()
    assert "STRICT keeps them there" in compiled.explain().notes[0]
    assert b.runs == 0


def test_it_can_be_turned_off():
    request, compiled, a, _ = prepared(config={"HETERO_DRIFT_FACTOR": 0})
    a.delay_s = 10e-3
    infer(request, 60)
    assert not compiled.explain().notes


@pytest.mark.parametrize("slow_s", [3.9e-3, 1.9e-3])
def test_less_than_the_factor_is_no_drift(slow_s):
    request, compiled, a, _ = prepared()
    a.delay_s = slow_s
    infer(request, 60)
    assert not compiled.explain().notes


def test_slow_runs_now_and_then_are_no_drift():
    request, compiled, a, _ = prepared()
    for number in range(120):
        a.delay_s = 50e-3 if number % 3 == 0 else 1e-3
        infer(request, 1)
    assert not compiled.explain().notes


def test_nothing_moves_back():
    request, compiled, a, b = prepared()
    a.delay_s = 10e-3
    infer(request, 25)
    assert "B" in devices_of(compiled).values()
    a.delay_s = 1e-3
    infer(request, SETTLED)
    b.delay_s = 50e-3
    infer(request, 60)
    assert "A" not in devices_of(compiled).values()
    compiled.device_model.enable_device("A")
    infer(request, 3)
    assert "A" in devices_of(compiled).values()
    assert not any(note.startswith("A ") for note in compiled.explain().notes)


class Binding(FakeDevice):
    """Hands out bound calls."""

    bound = 0

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.create_runner = lambda: BindingRunner(compiled)
        return compiled


class BindingRunner(FakeRunner):
    def run(self, inputs, outputs=None):
        results = super().run(inputs)
        if outputs is None or None in outputs:
            return results
        for output, result in zip(outputs, results, strict=True):
            output.numpy()[...] = result.numpy()
        return list(outputs)

    def bind(self, inputs, outputs, scratch=None):
        return BoundCall([(self, inputs, outputs)])


class BoundCall(BoundCall):
    def __init__(self, parts):
        self.parts = parts

    def __call__(self):
        for runner, inputs, outputs in self.parts:
            runner.run(inputs, outputs)
            runner.plugin.bound += 1

    def followed_by(self, other):
        return BoundCall([*self.parts, *other.parts]) if isinstance(other, BoundCall) else None


@pytest.mark.parametrize("places", PLACES)
def test_bound_calls_are_looked_at_too(places):
    request, compiled, a, _ = prepared(places, device=Binding)
    assert a.bound
    a.delay_s = 10e-3
    infer(request, 25)
    assert set(devices_of(compiled).values()) == {"B"} | set(PLACES[places].values())


def test_of_joined_calls_the_slowest_part_is_found():
    a, d = Binding("A", delay_s=1e-3), Binding("D", delay_s=1e-3)
    core = core_with(a, d, FakeDevice("B", delay_s=2e-3))
    model = core.read_model(CHAIN)
    for op, place in zip(model.ops, ["B", "A", "D", "B"], strict=True):
        op.affinity = place
    compiled = core.compile_model(model, "HETERO:A,D,B")
    request = compiled.create_infer_request()
    infer(request, SETTLED)
    d.delay_s = 20e-3
    infer(request, 25)
    assert devices_of(compiled)["b"] == "A"
    assert devices_of(compiled)["c"] != "D"


class Sized(FakeDevice):
    """Takes a millisecond for each row."""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        plugin = self

        class Runner(FakeRunner):
            def run(self, inputs, outputs=None):
                plugin.delay_s = 1e-3 * inputs[0].shape[0]
                return super().run(inputs, outputs)

        compiled.create_runner = lambda: Runner(compiled)
        return compiled


def test_larger_inputs_are_no_drift():
    proto = model_of(CHAIN.graph.node, ["d"], shape=("N", 3))
    request, compiled, *_ = prepared(proto=proto, device=Sized)
    infer(request, 40, np.ones((50, 3), np.float32))
    infer(request, 10)
    assert not compiled.explain().notes


@pytest.mark.parametrize("usual_s", [1e-6, 1e-3, 0.1])
def test_a_pace(usual_s):
    pace = Pace(4.0)
    slow_s = max(4 * usual_s, usual_s + 1e-3)
    assert not any(pace.note(usual_s) for _ in range(100))
    assert not any(pace.note(0.99 * slow_s) for _ in range(100))
    assert [pace.note(1.01 * slow_s) for _ in range(ENOUGH)] == [False] * (ENOUGH - 1) + [True]
    pace.rest()
    assert not any(pace.note(100.0) for _ in range(100))


def run(paces, seconds, times=1):
    for _ in range(times):
        paces.begin(())
        paces.note(1, seconds)
        paces.end()


def test_requests_that_wait_for_one_another_have_not_drifted():
    running = Running()
    paces = Paces(4.0, running)
    run(paces, 1e-3, WARM_UP + FIRST)
    for _ in range(7):
        running.enter()
    run(paces, 8e-3, 50)
    assert paces.drifted is None
    for _ in range(20):  # the last one of eight that begin together ends behind the others
        paces.begin(())
        for _ in range(7):
            running.leave()
        paces.note(1, 8e-3)
        paces.end()
        for _ in range(7):
            running.enter()
    assert paces.drifted is None
    run(paces, 40e-3, ENOUGH)
    assert paces.drifted == 1


def test_a_run_that_fails_runs_no_more():
    request, compiled, a, _ = prepared("whole")
    running = compiled.device_model.failover.running
    a.fails_at_run = [a.runs + 1]
    infer(request, 3)
    assert len(running) == 0

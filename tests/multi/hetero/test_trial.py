"""Placements run for real: requests in flight, errors, counters of time."""

from __future__ import annotations

import threading

import pytest

from partita.errors import InferError
from partita_hetero.cost import clock
from partita_hetero.tuning.sample_inputs import Samples
from partita_hetero.tuning.trial_run import WARM_RUNS, Trial

from ..fakes import FakeDevice, FakeRunner, core_with
from ..graphs import CHAIN


def trial_of(device):
    compiled = core_with(device).compile_model(CHAIN, f"HETERO:{device.device_name}")
    samples = Samples(compiled.model, "")
    return Trial(
        compiled.device_model.compilation, compiled.device_model.assembly, samples.tensors()
    )


def test_so_many_requests_run_at_the_same_time():
    device = FakeDevice("A", meet=threading.Barrier(3, timeout=60))  # each run waits for two more
    trial = trial_of(device)
    assert trial.seconds_per_request(12, 3) > 0
    assert device.runs == WARM_RUNS * 3 + 12  # each request runs some times before
    assert trial.seconds_per_request(12, 3) > 0
    assert device.runs == WARM_RUNS * 3 + 12 + 12
    trial.close()


class SlowToStart(FakeDevice):
    """A device that binds much in the first run of each request, on a clock of its own."""

    def __init__(self, name):
        super().__init__(name)
        self.now, self.lock = 0.0, threading.Lock()

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.create_runner = lambda: SlowToStartRunner(compiled)
        return compiled


class SlowToStartRunner(FakeRunner):
    started = False

    def run(self, inputs, outputs=None):
        with self.plugin.lock:
            self.plugin.now += 1.0 if self.started else 1000.0
        self.started = True
        return super().run(inputs, outputs)


def test_first_runs_of_requests_are_not_timed(monkeypatch):
    device = SlowToStart("A")
    monkeypatch.setattr(clock, "seconds", lambda: device.now)
    trial = trial_of(device)
    assert trial.seconds_per_request(4, 2) == 1.0
    trial.close()


def test_the_first_error_of_requests_in_flight_is_raised():
    device = FakeDevice("A", fails_at_run=[5])
    trial = trial_of(device)
    with pytest.raises(InferError, match="fell over"):
        trial.seconds_per_request(40, 2)
    assert device.runs < 40


def test_each_submodel_is_timed():
    trial = trial_of(FakeDevice("A", delay_s=0.002))
    run = trial.measure()
    assert run.seconds >= 0.002
    assert run.submodel_seconds.keys() == {1}
    assert run.submodel_seconds[1] > 0
    assert len(run.timeline.spans) == 1


def test_runs_that_something_else_holds_up_are_watched_again(monkeypatch):
    device = SlowToStart("A")
    monkeypatch.setattr(clock, "seconds", lambda: device.now)
    trial = trial_of(device)
    run_watched, held = trial.run_watched, iter([100.0, 100.0, 100.0])

    def held_up():
        more = next(held, 0.0)
        device.now += more
        return run_watched() + more

    monkeypatch.setattr(trial, "run_watched", held_up)
    assert trial.measure().submodel_seconds[1] == pytest.approx(1.0)
    trial.close()

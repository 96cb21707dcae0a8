"""Suite ``lives`` on broken devices: it finds what meets, and tells by how few steps."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from broken_form import Broken
from test_broken_devices import runs_of

from partita_conformance.runs.running import FAILED


class ForgetsTheTailBehindOddAddresses(Broken):
    """Only where an input begins at an odd multiple of 4 bytes, and has more than 24 elements."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        odd = any(a.size > 24 and a.dtype == np.float32 and a.ctypes.data % 8 for a in arrays)
        if odd and results[0].ndim:
            results[0][..., -1:] = 0
        return results


class CountsToFortyOne(Broken):
    """The forty-first request of a model has the buffers of the first."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        numbers = vars(runner.compiled).setdefault("numbers", {})
        number = numbers.setdefault(id(runner), len(numbers))
        vars(runner.compiled).setdefault("runners", []).append(runner)
        if number >= 41:
            results = [np.zeros_like(array) for array in results]
        return results


class SleepsAfterAnHour(Broken):
    """What an hour lies between is taken for the run before."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        last, kept = vars(runner.compiled).get("last", (time.monotonic(), None))
        alike = kept is not None and [a.shape for a in kept] == [a.shape for a in results]
        late = time.monotonic() - last > 1800
        vars(runner.compiled)["last"] = time.monotonic(), results
        return [np.array(a) for a in kept] if late and alike else results


class AddsToWhatAGivenOutputHeld(Broken):
    """Zero times what an output held is added to it, which is zero unless that was no number."""

    def deliver(self, runner, arrays, outputs):
        sums = [
            a if given is None or a.dtype.kind != "f" else (a + 0 * given.numpy()).astype(a.dtype)
            for a, given in zip(arrays, outputs or [None] * len(arrays), strict=True)
        ]
        return super().deliver(runner, sums, outputs)


class ForgetsItsFirstShape(Broken):
    """A request has plans of thirty shapes; behind those, that of the first one is another's."""

    def compute(self, runner, arrays):
        shapes = vars(runner).setdefault("shapes", {})
        number = shapes.setdefault(tuple(a.shape for a in arrays), len(shapes))
        results = super().compute(runner, arrays)
        gone = number == 0 and len(shapes) > 30
        return [np.zeros_like(a) for a in results] if gone else results


@pytest.mark.parametrize(
    ("fault", "pattern", "most"),
    [
        (ForgetsTheTailBehindOddAddresses, "lives/[!t]*", 1),
        (CountsToFortyOne, "lives/there_may*", 0),
        (AddsToWhatAGivenOutputHeld, "lives/known_sizes", 1),
        (ForgetsItsFirstShape, "lives/there_may*", 0),
        (SleepsAfterAnHour, "lives/known_sizes", 1),
    ],
)
def test_the_message_has_the_fewest_steps(fault, pattern, most):
    outcomes = runs_of(fault.__name__, __name__, (pattern,))
    outcome = next(one for one in outcomes if one.status == FAILED)
    assert f"{most + 1}. " not in outcome.detail.partition(": Output")[0]
    assert not most or f"{most}. " in outcome.detail


def test_what_others_write_beside_is_not_the_devices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if done.wait(0.05):
                return
            Path(tmp_path, str(number)).touch()

    other = threading.Thread(target=write)
    other.start()
    try:
        (outcome,) = runs_of("Good", "good_device", ("lives/known_sizes",), device="GOOD")
    finally:
        done.set()
        other.join()
    assert not outcome.bad, outcome.detail

"""What the trial of CUDA says, and when it is made; the process that tries is a scripted one."""

import os
from dataclasses import replace

import pytest
from patience import patiently

from partita_opencl.cuda import trial
from partita_opencl.device.device import Device, find_device
from partita_opencl.drivers import cuda_trial, driver_trial
from partita_opencl.drivers.cuda_trial import CudaTrialResult

ALL = trial.IMPORTS[-1]


class Scripted:
    """Answers as it is told; counts how many there were."""

    made = 0
    answering: tuple = ()
    fault, advice, is_transient, hangs = "", "", False, False

    def __init__(self, *_, **__) -> None:
        type(self).made += 1

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def answers(self):
        return iter(self.answering)


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """A driver of its own, whose trial answers so."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Scripted, "made", 0)
    monkeypatch.setattr(cuda_trial, "TrialProcess", Scripted)
    driver = find_device("").driver

    def anew(*answers, is_transient=False):
        monkeypatch.setattr(Scripted, "answering", answers)
        monkeypatch.setattr(Scripted, "is_transient", is_transient)
        cuda_trial.forget()
        return cuda_trial.of_cuda(replace(driver, name=f"driver {os.getpid()}"))

    yield anew
    cuda_trial.forget()


BEGUN = {"outcome": "its trial ended early", "imports": 0}


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ([{"outcome": "", "imports": 0}], CudaTrialResult("", 0)),
        ([BEGUN], CudaTrialResult("its trial ended early", 0)),
        ([BEGUN, {"outcome": "no"}], CudaTrialResult("no", 0)),
        (
            [BEGUN, {"outcome": "passed"}, {"imports": 256 << 20}],
            CudaTrialResult("passed", 256 << 20),
        ),
        (
            [BEGUN, {"outcome": "passed"}, {"imports": 256 << 20}, {"imports": ALL}],
            CudaTrialResult("passed"),
        ),
        ([], CudaTrialResult("its trial ended early", 0)),
    ],
)
def test_the_last_answers_hold_and_are_kept(scripted, answers, wanted) -> None:
    assert scripted(*answers) == wanted
    assert scripted({"outcome": "another"}) == wanted
    assert Scripted.made == 1


def test_what_may_go_well_another_time_is_not_kept(scripted) -> None:
    assert scripted(BEGUN, is_transient=True).outcome == "its trial ended early"
    assert scripted({"outcome": "passed", "imports": ALL}) == CudaTrialResult("passed")


def test_whoever_waits_hears_what_was_raised(scripted, monkeypatch) -> None:
    def broken(*_):
        raise KeyError("no such thing")

    monkeypatch.setattr(cuda_trial.verdicts, "read", broken)
    with pytest.raises(KeyError, match="no such thing"):
        scripted()


def test_it_begins_beside_the_trial_of_a_driver_that_says_cuda(monkeypatch) -> None:
    begun = []

    class Listing(Scripted):
        answering = (
            {"stage": "load"},
            {"stage": "list", "facts": {"versions": ["OpenCL 3.0 CUDA 13.0"]}},
            {"stage": "compute"},
        )

    monkeypatch.setattr(driver_trial, "TrialProcess", Listing)
    monkeypatch.setattr(cuda_trial, "begin", begun.append)
    driver = find_device("").driver
    verdict, lasts = driver_trial.try_driver(driver, vectors=True)
    assert verdict.good
    assert lasts
    assert set(begun) == {driver}
    monkeypatch.setattr(Listing, "answering", ({"stage": "load"}, {"stage": "list", "facts": {}}))
    begun.clear()
    driver_trial.try_driver(driver, vectors=True)
    assert not begun


def test_devices_of_other_platforms_have_no_trial(monkeypatch) -> None:
    known = find_device("")
    monkeypatch.setattr(trial, "PLATFORM", f"not {known.handle.platform.name}")
    monkeypatch.setattr(cuda_trial, "begin", None)
    assert Device(0, known.handle, known.driver).cuda is None


def test_a_trial_for_which_no_thread_can_be_started_is_begun_again(scripted, monkeypatch):
    """Nobody waits for one that never began."""

    def refused(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(cuda_trial, "SystemThread", refused)
        scripted({"outcome": "", "imports": 0})
    driver = replace(find_device("").driver, name=f"driver {os.getpid()}")
    assert patiently(lambda: cuda_trial.of_cuda(driver)) == CudaTrialResult("", 0)

"""Processes that open a graphics card beside its driver's trial are those of the trials behind."""

import threading
from dataclasses import replace
from typing import ClassVar

import pytest

from partita_opencl.device.device import find_device
from partita_opencl.drivers import early_processes
from partita_opencl.trials import standing_processes

CARD_BYTES = 1 << 40


class Opened:
    """A process that has opened the card when the test says so."""

    made: ClassVar[list] = []
    may_open = threading.Event()

    def __init__(self, module, request, seconds, *, lasting, doing):
        self.is_closed = False
        self.request = request
        self.made.append(self)

    def ask(self, request, doing=""):
        pass

    def answers(self):
        assert self.may_open.wait(60)
        yield {"ready": True}

    def close(self):
        self.is_closed = True


@pytest.fixture
def card(monkeypatch):
    """A device taken for a graphics card, of a machine with sixteen processors."""
    device = find_device("")
    standing_processes.end_all()
    monkeypatch.setattr(device, "limits", replace(device.limits, is_cpu=False, memory_bytes=2**38))
    monkeypatch.setattr(early_processes, "usable_processors", lambda: 16)
    monkeypatch.setattr(standing_processes, "usable_processors", lambda: 16)
    monkeypatch.setattr(early_processes, "TrialProcess", Opened)
    monkeypatch.setattr(standing_processes, "TrialProcess", None)  # no further one is opened
    monkeypatch.setattr(Opened, "made", [])
    monkeypatch.setattr(Opened, "may_open", threading.Event())
    yield device
    Opened.may_open.set()
    standing_processes.end_all()


@pytest.mark.parametrize("is_opened", [True, False])
def test_they_make_the_trials_behind(card, is_opened):
    early_processes.begin(card.driver, ["OpenCL"], CARD_BYTES)
    if is_opened:
        Opened.may_open.set()
    assert standing_processes.best_count(card, 23) == 12
    Opened.may_open.set()
    lent = [standing_processes.lend(card) for _ in range(12)]
    assert {id(one) for one in lent} == {id(one) for one in Opened.made}
    assert lent[0].request["drivers"] == [{"driver": vars(card.driver), "versions": ["OpenCL"]}]


def test_they_are_ended_when_the_trial_fails(card):
    early_processes.begin(card.driver, ["OpenCL"], CARD_BYTES)
    early_processes.end(card.driver)
    Opened.may_open.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "open" in thread.name:
            thread.join(60)
    assert all(process.is_closed for process in Opened.made)
    assert standing_processes.best_count(card, 23) == 7


def test_as_many_are_opened_as_the_card_has_memory_for(card):
    early_processes.begin(card.driver, ["OpenCL"], 3 * early_processes.PROCESS_BYTES)
    assert standing_processes.best_count(card, 4) == 3

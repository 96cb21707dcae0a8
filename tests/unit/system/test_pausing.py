"""Collections are rare while models are read, and as they were before afterwards."""

from __future__ import annotations

import gc
import os
import threading

import pytest

import partita
from partita.runtime.plugin_core import PluginCore
from partita.system.gc_pause import few_collections


@pytest.fixture(autouse=True)
def settings():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_nested_and_after_errors():
    with few_collections():
        outer = gc.get_threshold()
        assert outer[0] > 100_000
        assert outer[1:] == (10, 10)
        with pytest.raises(ZeroDivisionError), few_collections():
            assert 1 / 0
        assert gc.get_threshold() == outer
    assert gc.get_threshold() == (700, 10, 10)


def test_the_last_of_several_threads_puts_it_back():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with few_collections():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    with few_collections():
        pass
    assert gc.get_threshold()[0] > 100_000
    leave.set()
    thread.join(30)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_does_without_what_threads_held_that_it_has_not():
    def in_child():
        child = os.fork()
        if not child:
            os._exit(gc.get_threshold() != (700, 10, 10))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    inside, leave = threading.Event(), threading.Event()

    def hold():
        with few_collections():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    others_hold = in_child()
    with few_collections():
        it_holds = in_child()
    leave.set()
    thread.join()
    assert (others_hold, it_holds) == (0, 1)


def test_what_an_application_has_set_stays():
    gc.set_threshold(0)
    with few_collections():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0
    with few_collections():
        gc.set_threshold(1_000, 10, 10)
    assert gc.get_threshold() == (1_000, 10, 10)


@pytest.mark.parametrize("name", ["query_model", "compile_model", "import_model"])
def test_devices_are_looked_for_with_few(name, monkeypatch):
    """What opens a device imports its driver's packages, which is as many objects as a model."""
    found = []

    def find(*_):
        found.append(gc.get_threshold()[0])
        raise ZeroDivisionError

    monkeypatch.setattr(PluginCore, "target", find)
    with pytest.raises(ZeroDivisionError):
        getattr(partita.Core(), name)(b"", "CPU")
    assert found[0] > 100_000
    assert gc.get_threshold() == (700, 10, 10)

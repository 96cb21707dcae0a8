"""Threads of device CPU: they end when nobody has the models any more for which they computed."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

import partita
from partita.system.threads import system_thread
from partita_cpu.threads.step_team import Team, team_of
from tests.interrupts import moments

PATIENCE_S = 60


def threads():
    """Those of teams, and of whatever else begins threads in their way: the first frame of each.

    The number of a thread that has ended is another one's soon.
    """
    found = set()
    for frame in sys._current_frames().values():
        while frame.f_back is not None:
            frame = frame.f_back
        if frame.f_code.co_filename == system_thread.__file__:
            found.add(frame)
    return found


class NewThreads:
    """Those that have begun since it was made."""

    def __init__(self):
        self._before = threads()

    def count(self):
        return len(threads() - self._before)

    def wait_for(self, count):
        """Waits until there are no more than so many."""
        until = time.monotonic() + PATIENCE_S
        while self.count() > count and time.monotonic() < until:
            time.sleep(0.01)
        assert self.count() <= count


@pytest.fixture
def new():
    gc.collect()
    return NewThreads()


def network(convolves=True):
    """A step that threads share, and a convolution before it, whose weights they pack."""
    weights = np.ones((64, 64, 3, 3), np.float32)
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    if convolves:
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"]),
        ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 64, 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    held = helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights)
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [held])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


@pytest.mark.parametrize("level", ["portable", ""])
def test_threads_end_with_the_models_that_used_them(monkeypatch, new, level):
    monkeypatch.setenv("PARTITA_CPU_ISA", level)
    core, x = partita.Core(), np.ones((1, 64, 64, 64), np.float32)
    model = core.read_model(network(level != "portable"))  # OpenBLAS has threads of its own
    wanted = 1 if level == "portable" else 576
    held = []
    for config in [
        *({"INFERENCE_NUM_THREADS": count} for count in (11, 12, 13, 14)),
        {"INFERENCE_NUM_THREADS": 20, "NUM_STREAMS": 2},
        {"INFERENCE_NUM_THREADS": 9, "ENABLE_CPU_PINNING": True},
    ]:
        config["EXECUTION_MODE_HINT"] = "ACCURACY"
        compiled = core.compile_model(model, "CPU", config)
        requests = [compiled.create_infer_request() for _ in range(2)]
        held += [compiled, requests]
        for request in requests:
            for _ in range(3):
                assert request.infer({"x": x})[0][0, 0, 5, 5] == wanted
    assert new.count() >= 10 + 11 + 12 + 13 + 2 * 9 + 8
    del compiled, request, requests
    last = held.pop()
    held.clear()
    gc.collect()
    new.wait_for(8)
    assert last[0].infer({"x": x})[0][0, 0, 5, 5] == wanted  # a request keeps its threads
    del last
    gc.collect()
    new.wait_for(0)


def test_a_model_keeps_its_threads_from_request_to_request(new):
    compiled = partita.Core().compile_model(network(), "CPU", {"INFERENCE_NUM_THREADS": 15})
    x = np.ones((1, 64, 64, 64), np.float32)
    found = []
    for _ in range(3):
        compiled.create_infer_request().infer({"x": x})
        gc.collect()
        found.append(threads())
    assert new.count() >= 14
    assert found[0] <= found[1] <= found[2]


def test_a_team_that_was_collected_with_garbage_ends_its_threads(new):
    team = team_of(17, 3)
    team.run(lambda *_: None)
    assert new.count() >= 16
    garbage = [team]
    garbage.append(garbage)
    del team, garbage
    gc.collect()
    new.wait_for(0)


def test_ctrl_c_is_raised_while_a_team_is_left_and_its_threads_end(new):
    def leave():
        team = Team(3)
        team.run(lambda *_: None)
        del team

    for _ in moments(leave):
        pass
    gc.collect()
    new.wait_for(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_process_leaves_the_threads_of_its_parent_alone(new):
    team = team_of(5, 4)
    team.run(lambda *_: None)
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE_S)
        team.run(lambda *_: None)
        del team
        gc.collect()
        until = time.monotonic() + PATIENCE_S
        while threads() and time.monotonic() < until:
            time.sleep(0.01)
        os._exit(len(threads()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert new.count() >= 4
    shares = []
    team.run(lambda *share: shares.append(share))
    assert sorted(shares) == [(tid, 5) for tid in range(5)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_process_has_the_team_with_which_another_thread_computed():
    """Else it would compute all of its life on one thread."""
    team, entered, leave = Team(3), threading.Event(), threading.Event()

    def compute(tid, nt):
        entered.set()
        leave.wait(PATIENCE_S)

    other = threading.Thread(target=team.run, args=(compute,))
    other.start()
    assert entered.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE_S)
        shares = []
        team.run(lambda *share: shares.append(share))
        os._exit(sorted(shares) != [(0, 3), (1, 3), (2, 3)])
    leave.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

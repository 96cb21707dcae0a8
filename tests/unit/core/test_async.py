"""Infer requests beside the calling thread: waiting, callbacks, cancels, queues, forks, exits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from models import add_sub, neg
from toy_device import ToyDevice, core_with

import partita as ov
from partita.errors import (
    InferCancelledError,
    InferError,
    InputError,
    RequestBusyError,
)

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture
def gate():
    """Closed until it is set; opened at the end so that no thread is left waiting."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def gated(gate):
    """A plugin whose runs wait at the gate, and a compiled model on it."""
    plugin = ToyDevice(gate=gate)
    return plugin, core_with(plugin).compile_model(neg(), "TOY")


def failing_on_negative(x):
    if x[0, 0] < 0:
        raise ValueError("negative")
    return [x]


# ---------------------------------------------------------------------- start and wait


def test_start_and_wait(gate, gated):
    plugin, compiled = gated
    request = compiled.create_infer_request()
    request.wait()  # nothing to wait for
    assert request.wait_for(0)
    request.start_async(X, userdata="mine")
    plugin.started.wait(60)
    assert not request.wait_for(1)
    gate.set()
    request.wait()
    assert request.wait_for(1000)
    np.testing.assert_array_equal(request.results[0], -X)
    assert request.userdata == "mine"


def test_arrays_are_copied_before_the_call_returns_unless_shared(gate, gated):
    _, compiled = gated
    request, x = compiled.create_infer_request(), X.copy()
    request.start_async({"x": x})
    x[:] = 9
    gate.set()
    request.wait()
    np.testing.assert_array_equal(request.results[0], -X)
    request.start_async({"x": x}, share_inputs=True)
    request.wait()
    assert request.runner.inputs[0].numpy().base is x


def test_a_busy_request(gate, gated):
    plugin, compiled = gated
    request = compiled.create_infer_request()
    request.start_async(X)
    plugin.started.wait(60)
    for call in (request.infer, request.start_async):
        with pytest.raises(
            RequestBusyError, match=r"The request is running; wait\(\) for it, or u"
        ):
            call(X)
    with pytest.raises(InferError, match=r"is not there"):
        request.get_output_tensor()
    gate.set()
    request.wait()
    np.testing.assert_array_equal(request.infer(2 * X)[0], -2 * X)


def test_wrong_inputs_raise_at_once_and_leave_the_request_free():
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    with pytest.raises(InputError, match=r"found float32\[3\]"):
        request.start_async(X[0])
    request.wait()
    np.testing.assert_array_equal(request.infer(X)[0], -X)


def test_errors_come_out_of_wait():
    plugin = ToyDevice(compute=failing_on_negative)
    request = core_with(plugin).compile_model(neg(), "TOY").create_infer_request()
    request.start_async(-X)
    for wait in (request.wait, lambda: request.wait_for(60_000), request.wait):
        with pytest.raises(InferError, match=r"'TOY' failed on model 'm': ValueError: negative"):
            wait()
    request.start_async(X)
    request.wait()
    np.testing.assert_array_equal(request.results[0], X)


def test_a_missing_input_comes_out_of_wait():
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    request.start_async()
    with pytest.raises(InputError, match=r"Input 'x' \(float32\[2, 3\]\) is missing"):
        request.wait()


# ---------------------------------------------------------------------------- callbacks


def test_callbacks():
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    calls = []
    request.set_callback(lambda data: calls.append((data, request.results[0][0, 0])), "first")
    for userdata in (None, "second", None):
        request.start_async(X, userdata)
        request.wait()
    assert calls == [("first", -1), ("second", -1), ("second", -1)]
    request.infer(X)
    request.set_callback(None)
    request.start_async(X)
    request.wait()
    assert len(calls) == 3


def test_callbacks_are_called_after_failures_too():
    plugin = ToyDevice(compute=failing_on_negative)
    request = core_with(plugin).compile_model(neg(), "TOY").create_infer_request()
    calls = []
    request.set_callback(calls.append, 7)
    request.start_async(-X)
    with pytest.raises(InferError, match=r"negative"):
        request.wait()
    assert calls == [7]


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), TimeoutError("mine")])
def test_what_a_callback_raises_comes_out_of_wait(error):
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()

    def callback(userdata):
        raise error

    request.set_callback(callback)
    request.start_async(X)
    with pytest.raises(type(error), match=r"mine"):
        request.wait_for(60_000)
    request.set_callback(None)
    np.testing.assert_array_equal(request.infer(X)[0], -X)


def test_a_callback_can_start_the_next_run():
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    rounds, done = [], threading.Event()

    def callback(userdata):
        rounds.append(userdata)
        if userdata < 50:
            request.start_async(X * userdata, userdata + 1)
        else:
            done.set()

    request.set_callback(callback)
    request.start_async(X, 1)
    assert done.wait(60)
    request.wait()
    assert rounds == list(range(1, 51))
    np.testing.assert_array_equal(request.results[0], -X * 49)


# ------------------------------------------------------------------------------ cancels


def test_cancel(gate, gated):
    plugin, compiled = gated
    request, calls = compiled.create_infer_request(), []
    request.cancel()  # nothing to cancel
    request.set_callback(calls.append, "ended")
    request.start_async(X)
    plugin.started.wait(60)
    request.cancel()
    assert plugin.cancels == 1
    gate.set()
    with pytest.raises(InferCancelledError, match=r"The request on <CompiledModel 'm' on TOY> was"):
        request.wait()
    assert calls == ["ended"]
    request.cancel()
    assert plugin.cancels == 1
    np.testing.assert_array_equal(request.infer(X)[0], -X)


def test_a_cancel_after_the_run_does_not_hit_the_next_one():
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    request.set_callback(lambda _: request.cancel())
    request.start_async(X)
    request.wait()
    request.set_callback(None)
    np.testing.assert_array_equal(request.infer(X)[0], -X)
    request.start_async(X)
    request.wait()


def test_a_run_cancelled_before_its_turn_never_starts(gate, monkeypatch):
    from partita.system.task_threads import TaskThreads

    threads = TaskThreads("narrow", 1)
    monkeypatch.setattr("partita.runtime.infer_request.request_threads", threads)
    plugin = ToyDevice(gate=gate)
    compiled = core_with(plugin).compile_model(neg(), "TOY")
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    first.start_async(X)
    second.start_async(X)
    second.cancel()
    gate.set()
    first.wait()
    with pytest.raises(InferCancelledError):
        second.wait()
    assert second.runner.inputs == []
    threads.close()


# ------------------------------------------------------------------------------- queues


def test_a_queue_in_any_order():
    def compute(a, b):
        time.sleep(float(b[0, 0]))
        return [a + b, a - b]

    compiled = core_with(ToyDevice(compute=compute)).compile_model(add_sub(), "TOY")
    queue, results = ov.AsyncInferQueue(compiled, jobs=4), {}

    def callback(request, userdata):
        results[userdata] = request.results["sum"][0, 0] - request.get_input_tensor(1).data[0, 0]

    queue.set_callback(callback)
    for number in range(20):
        delay = np.full((2, 3), 0.004 * (number % 3), np.float32)
        queue.start_async({"a": X * number, "b": delay}, number)
    queue.wait_all()
    assert results == {number: pytest.approx(number, abs=1e-4) for number in range(20)}
    assert len(queue) == len(list(queue)) == 4
    assert queue[0] in list(queue)


def test_a_full_queue_waits(gate, gated):
    _, compiled = gated
    queue = ov.AsyncInferQueue(compiled, 2)
    assert queue.is_ready()
    assert queue.get_idle_request_id() == 0
    queue.start_async(X)
    assert queue.get_idle_request_id() == 1
    queue.start_async(X)
    assert not queue.is_ready()
    third = threading.Thread(target=queue.start_async, args=(2 * X,))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    gate.set()
    third.join(20)
    assert not third.is_alive()
    queue.wait_all()
    assert queue.is_ready()


def test_a_queue_raises_the_first_error_and_goes_on():
    plugin = ToyDevice(compute=failing_on_negative)
    compiled = core_with(plugin).compile_model(neg(), "TOY")
    queue, seen = ov.AsyncInferQueue(compiled, 2), []
    queue.set_callback(lambda request, number: seen.append(number))
    for number, x in enumerate([X, -X, X, -X]):
        queue.start_async(x, number)
    with pytest.raises(InferError, match=r"negative"):
        queue.wait_all()
    assert sorted(seen) == [0, 2]
    queue.wait_all()
    queue.start_async(X, 4)
    queue.wait_all()
    assert sorted(seen) == [0, 2, 4]


def test_wrong_inputs_do_not_use_up_a_queue():
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    queue = ov.AsyncInferQueue(compiled, 1)
    for _ in range(3):
        with pytest.raises(InputError):
            queue.start_async(X[0])
    queue.start_async(X)
    queue.wait_all()


def test_callbacks_of_a_queue_may_raise():
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    queue = ov.AsyncInferQueue(compiled, 1)

    def callback(request, userdata):
        raise ZeroDivisionError(userdata)

    queue.set_callback(callback)
    queue.start_async(X, "mine")
    with pytest.raises(ZeroDivisionError, match=r"mine"):
        queue.wait_all()
    queue.set_callback(None)
    queue.start_async(X)
    queue.wait_all()


def test_a_cancelled_request_goes_back_to_its_queue(gate, gated):
    plugin, compiled = gated
    queue = ov.AsyncInferQueue(compiled, 2)
    queue.start_async(X)
    queue.start_async(X)
    plugin.started.wait(60)
    for request in queue:
        request.cancel()
    gate.set()
    with pytest.raises(InferCancelledError):
        queue.wait_all()
    queue.start_async(X)
    queue.wait_all()


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_a_callback_raises_frees_its_request(raised):
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    queue = ov.AsyncInferQueue(compiled, 2)

    def leave(request, userdata):
        raise raised

    queue.set_callback(leave)
    for _ in range(4):
        queue.start_async(X)
    with pytest.raises(type(raised)):
        queue.wait_all()
    queue.set_callback(None)
    queue.start_async(X)
    queue.wait_all()


def patiently(call, seconds=30):
    """What a call returns or raises, on a thread that may hang; then the test fails."""
    answer = []

    def work():
        try:
            answer.append(call())
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
            answer.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert answer, "it hangs"
    return answer[0]


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("ask", ["start_async", "get_idle_request_id"])
def test_callbacks_that_wait_for_one_another_are_told(jobs, ask):
    queue = ov.AsyncInferQueue(core_with(ToyDevice()).compile_model(neg(), "TOY"), jobs)
    all_in = threading.Barrier(jobs)
    told = []

    def go_on(request, userdata):
        if userdata:
            all_in.wait(60)
            try:
                getattr(queue, ask)(*([X, False] if ask == "start_async" else []))
            except InferError as error:
                told.append(error)

    queue.set_callback(go_on)
    for _ in range(jobs):
        queue.start_async(X, True)
    assert patiently(queue.wait_all) is None
    assert len(told) == 1
    assert re.search(rf"All {jobs} requests .* callbacks that wait .* more jobs", str(told[0]))


def test_a_callback_may_wait_for_a_request_that_will_be_free(gate, gated):
    _, compiled = gated
    queue = ov.AsyncInferQueue(compiled, 2)
    ended = []

    def go_on(request, userdata):
        ended.append(userdata)
        if userdata == 0:
            queue.start_async(X, 2)

    queue.set_callback(go_on)
    queue.start_async(X, 0)
    queue.start_async(X, 1)
    gate.set()
    assert patiently(queue.wait_all) is None
    assert sorted(ended) == [0, 1, 2]


def test_waiting_for_all_in_a_callback_is_refused():
    queue = ov.AsyncInferQueue(core_with(ToyDevice()).compile_model(neg(), "TOY"), 2)
    queue.set_callback(lambda request, userdata: queue.wait_all())
    queue.start_async(X)
    error = patiently(queue.wait_all)
    assert isinstance(error, InferError)
    assert "wait_all() was called in a callback of the queue" in str(error)


@pytest.mark.parametrize("through", ["request", "queue"])
def test_waiting_in_a_requests_own_callback_is_refused(through):
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    told, results = [], []

    def wait(request):
        results.append(request.results[0].copy())
        try:
            request.wait()
        except InferError as error:
            told.append(str(error))

    if through == "queue":
        queue = ov.AsyncInferQueue(compiled, 1)
        queue.set_callback(lambda request, userdata: wait(request))
        queue.start_async(X)
        assert patiently(queue.wait_all) is None
    else:
        request = compiled.create_infer_request()
        request.set_callback(wait, request)
        request.start_async(X)
        assert patiently(request.wait) is None
    assert len(told) == 1
    assert "in the request's own callback" in told[0]
    np.testing.assert_array_equal(results[0], -X)


def test_waiting_after_another_run_is_about_that_run(gate, gated):
    plugin, compiled = gated
    request = compiled.create_infer_request()
    request.start_async(X)
    plugin.started.wait(60)
    request.cancel()
    gate.set()
    for _ in range(2):
        with pytest.raises(InferCancelledError):
            request.wait()
    np.testing.assert_array_equal(request.infer(X)[0], -X)
    request.wait()
    assert request.wait_for(0)


def test_nothing_is_set_on_a_busy_request(gate, gated):
    plugin, compiled = gated
    request = compiled.create_infer_request()
    y = np.zeros_like(X)
    request.start_async(X)
    plugin.started.wait(60)
    for call in (
        lambda: request.set_input_tensor(X),
        lambda: request.set_input_tensor(0, X),
        lambda: request.set_input_tensors({0: X}),
        lambda: request.set_tensor("x", X),
        lambda: request.set_tensors({"x": X}),
        lambda: request.set_output_tensor(y),
        lambda: request.set_output_tensors({0: y}),
        lambda: request.set_tensor("y", y),
    ):
        with pytest.raises(RequestBusyError, match=r"running; wait\(\)"):
            call()
    gate.set()
    request.wait()
    request.set_tensors({"x": 2 * X, "y": y})
    request.infer()
    np.testing.assert_array_equal(y, -2 * X)


def test_the_size_of_a_queue(monkeypatch):
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    assert len(ov.AsyncInferQueue(compiled)) == 1
    assert len(ov.AsyncInferQueue(compiled, jobs=5)) == 5
    monkeypatch.setattr(type(compiled), "optimal_number_of_infer_requests", 3)
    assert len(ov.AsyncInferQueue(compiled)) == 3
    with pytest.raises(InferError, match=r"A queue needs at least one request; -1 were asked for"):
        ov.AsyncInferQueue(compiled, -1)


# ------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("device", ["TOY", "REFERENCE"])
def test_many_threads_on_one_compiled_model(device):
    core = core_with(ToyDevice(compute=lambda a, b: [a + b, a - b]))
    compiled = core.compile_model(add_sub(), device)
    wrong = []

    def work(number):
        for i in range(10):
            x = X * (100 * number + i)
            result = compiled([x, X])
            if not np.array_equal(result["sum"], x + X):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_have_requests_of_their_own():
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    create, makers = compiled.device_model.create_runner, []

    def noted():
        makers.append(threading.get_ident())
        return create()

    compiled.device_model.create_runner = noted
    compiled(X)
    compiled(X)
    assert makers == [threading.get_ident()]
    thread = threading.Thread(target=compiled, args=(X,))
    thread.start()
    thread.join()
    compiled(X)
    assert makers == [threading.get_ident(), thread.ident]


# ---------------------------------------------------------------------------- processes


def run_script(script):
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


PRELUDE = """
import os, sys, threading, time
import numpy as np, onnx, partita as ov
from onnx import helper, TensorProto
info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "m", info[:1], info[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
compiled = ov.Core().compile_model(model, "REFERENCE")
x = np.array([1, 2], np.float32)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_can_infer():
    script = """
compiled(x)
queue = ov.AsyncInferQueue(compiled, 2)
queue.start_async(x)
queue.wait_all()
child = os.fork()
if child == 0:
    ok = compiled(x)[0].tolist() == [-1, -2]
    queue.start_async(x)
    queue.wait_all()
    os._exit(7 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), compiled(x)[0].tolist() == [-1, -2])
"""
    assert run_script(PRELUDE + script) == ["7", "True"]


def test_a_process_ends_while_requests_run():
    script = """
class Slow(ov.Runner):
    def run(self, inputs, outputs=None):
        time.sleep(0.3)
        return inputs

compiled.device_model.create_runner = Slow
requests = [compiled.create_infer_request() for _ in range(3)]
for request in requests:
    request.start_async(x)
print("leaving")
"""
    assert run_script(PRELUDE + script) == ["leaving"]


def test_requests_can_start_while_the_interpreter_ends_and_not_after():
    script = """
import atexit
from partita.runtime.infer_request import request_threads
request = compiled.create_infer_request()
request.start_async(x)
request.wait()

def late():
    request.start_async(x)
    request.wait()
    print(request.results[0].tolist() == [-1, -2])
    request_threads.end()
    try:
        request.start_async(x)
    except RuntimeError as error:
        print("refused")
    print(compiled(x)[0].tolist() == [-1, -2])

atexit.register(late)
"""
    assert run_script(PRELUDE + script) == ["True", "refused", "True"]

"""Infer requests beside the calling thread: waiting, callbacks, cancels."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from models import neg
from patience import patiently
from toy_device import LateToListen, ToyDevice, core_with

import partita as ov
from partita.errors import InferCancelledError, InferError, InputError, RequestBusyError
from partita.runtime.async_run import AsyncRun
from partita.runtime.request_turn import RequestTurn

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


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
    assert request.wait_for(float("inf"))
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


def test_a_callback_gets_the_user_data_of_its_run_though_the_next_one_has_begun(monkeypatch):
    """Another thread may start it as soon as the request is free, which is before the callback."""
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    calls, leave, others = [], RequestTurn.leave, ["second"]

    def leave_to_another(turn, user):
        leave(turn, user)
        if others:
            request.start_async(X, others.pop())

    monkeypatch.setattr(RequestTurn, "leave", leave_to_another)
    request.set_callback(calls.append)
    request.start_async(X, "first")
    while len(calls) < 2:
        request.wait()
    assert sorted(calls) == ["first", "second"]


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


def test_threads_that_look_at_the_same_ended_run_never_see_it_going():
    run, seen = AsyncRun(), []
    run.end(None)

    def look():
        seen.extend(run.wait(0) and run.has_ended() for _ in range(20_000))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert seen == [True] * 60_000


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


def test_a_thread_that_waits_before_the_cancel_asks_again():
    plugin = LateToListen()
    request = core_with(plugin).compile_model(neg(), "TOY").create_infer_request()
    request.start_async(X)
    waiting = threading.Event()

    def wait():
        waiting.set()
        with pytest.raises(InferCancelledError):
            request.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(60)
    assert plugin.started.wait(60)
    assert not request.wait_for(300)  # the other one waits by now
    request.cancel()
    thread.join(60)
    assert plugin.asked_again.is_set()


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
    from partita.system.threads.task_threads import TaskThreads

    threads = TaskThreads("narrow", 1)
    monkeypatch.setattr("partita.runtime.async_run.request_threads", threads)
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

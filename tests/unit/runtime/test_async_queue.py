"""Queues of requests: in any order, full, with callbacks that raise, wait or start more."""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest
from models import add_sub, neg
from patience import patiently
from toy_device import LateToListen, ToyCompiled, ToyDevice, core_with

import partita as ov
from partita.errors import InferCancelledError, InferError, InputError, PluginError

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def failing_on_negative(x):
    if x[0, 0] < 0:
        raise ValueError("negative")
    return [x]


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
    third.join(60)
    assert not third.is_alive()
    queue.wait_all()
    assert queue.is_ready()


def test_requests_are_used_in_turn_even_if_the_first_ends_at_once():
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    queue, used = ov.AsyncInferQueue(compiled, 3), []
    for number in range(7):
        used.append(queue.get_idle_request_id())
        queue.start_async(number * X)
        queue.wait_all()
    assert used == [0, 1, 2, 0, 1, 2, 0]
    found = [request.get_output_tensor(0).data for request in queue]
    np.testing.assert_array_equal(found, [-6 * X, -4 * X, -5 * X])


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


@pytest.mark.parametrize("waits", ["wait_all", "get_idle_request_id"])
def test_who_waits_for_a_queue_asks_again_to_cancel(waits):
    plugin = LateToListen()
    queue = ov.AsyncInferQueue(core_with(plugin).compile_model(neg(), "TOY"), 1)
    queue.start_async(X)
    assert plugin.started.wait(60)
    queue[0].cancel()
    if waits == "get_idle_request_id":
        assert queue.get_idle_request_id() == 0
    with pytest.raises(InferCancelledError):
        queue.wait_all()
    assert plugin.asked_again.is_set()


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


def test_the_size_of_a_queue(monkeypatch):
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    assert len(ov.AsyncInferQueue(compiled)) == 1
    assert len(ov.AsyncInferQueue(compiled, jobs=5)) == 5
    monkeypatch.setattr(type(compiled), "optimal_number_of_infer_requests", 3)
    assert len(ov.AsyncInferQueue(compiled)) == 3
    with pytest.raises(InferError, match=r"A queue needs at least one request; -1 were asked for"):
        ov.AsyncInferQueue(compiled, -1)


@pytest.mark.parametrize(
    ("number", "told"), [(0, "0"), (2**16 + 1, "65537"), ("3", "'3'"), (None, "NoneType")]
)
def test_a_device_that_knows_no_number_of_requests_is_blamed(monkeypatch, number, told):
    """A queue without requests would wait for ever for a free one."""
    monkeypatch.setattr(ToyCompiled, "optimal_number_of_infer_requests", number)
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    with pytest.raises(
        PluginError, match=f"_infer_requests with {told}; expected a whole number from 1 to"
    ):
        ov.AsyncInferQueue(compiled)
    assert len(ov.AsyncInferQueue(compiled, 2)) == 2


def test_a_device_whose_queue_of_calls_is_none_is_blamed(monkeypatch):
    monkeypatch.setattr(ToyCompiled, "create_call_queue", lambda model, jobs: jobs)
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    with pytest.raises(
        PluginError, match="'TOY' answered create_call_queue with 2; expected a CallQueue"
    ):
        ov.AsyncInferQueue(compiled, 2)


def test_what_is_no_queue_is_told_at_once():
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    with pytest.raises(InferError, match=r"for a compiled model, .* found NoneType"):
        ov.AsyncInferQueue(None, 2)
    with pytest.raises(InferError, match="requests must be a whole number; found '2'"):
        ov.AsyncInferQueue(compiled, "2")
    for waiting in (ov.AsyncInferQueue(compiled, np.int64(1)), compiled.create_infer_request()):
        with pytest.raises(InferError, match="found 3, which cannot be"):
            waiting.set_callback(3)
        waiting.set_callback(None)

"""Queues of requests on device CPU: calls that threads make without Python between."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from patience import patiently

import partita
from partita.errors import InferCancelledError, InferError
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita.system.threads.task_threads import TaskThreads
from partita_cpu.jit.dispatch import available

F32 = np.float32
SHAPE = (3, 5)
THROUGHPUT = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 2}


def model(nodes, inputs, outputs, kinds=None, shapes=None):
    def info(name):
        kind = (kinds or {}).get(name, TensorProto.FLOAT)
        return helper.make_tensor_value_info(name, kind, (shapes or {}).get(name, SHAPE))

    graph = helper.make_graph(nodes, "m", [info(n) for n in inputs], [info(n) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(config=None):
    """What computes exp(x) + x."""
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Add", ["e", "x"], ["y"])]
    return partita.Core().compile_model(model(nodes, ["x"], ["y"]), "CPU", config or THROUGHPUT)


@pytest.fixture(params=["outside of Python", "by Python"])
def any_compiled(request, monkeypatch):
    """The same by either way; the latter is what systems without compiled programs have."""
    if request.param == "by Python":
        monkeypatch.setenv("PARTITA_CPU_ISA", "portable")
    return compiled()


def x_of(number):
    return np.full(SHAPE, number / 16, F32)


def y_of(number):
    return np.exp(x_of(number).astype(np.float64)) + x_of(number)


def warm(queue):
    """Lets each request have its calls bound."""
    for request in queue:
        for _ in range(4):
            request.infer({"x": x_of(0)})


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("jobs", [0, 1, 2, 7])
def test_each_run_has_its_own_inputs_and_results(any_compiled, jobs, share):
    queue, results = partita.AsyncInferQueue(any_compiled, jobs), {}
    queue.set_callback(
        lambda request, number: results.setdefault(number, []).append(request.results[0].copy())
    )
    for number in range(300):
        queue.start_async({"x": x_of(number)}, number, share_inputs=share)
        if number % 100 == 50:
            queue.wait_all()
    queue.wait_all()
    assert sorted(results) == list(range(300))
    for number, found in results.items():
        assert len(found) == 1
        np.testing.assert_allclose(found[0], y_of(number), rtol=1e-6)
    assert all(0 < request.latency < 1e5 for request in queue[:1])


def test_several_threads_start_runs(any_compiled):
    queue, seen, lock = partita.AsyncInferQueue(any_compiled), [], threading.Lock()

    def ended(request, number):
        right = np.allclose(request.results[0], y_of(number), rtol=1e-6)
        with lock:
            seen.append((number, right))

    queue.set_callback(ended)

    def start(first):
        for number in range(first, first + 100):
            queue.start_async({"x": x_of(number)}, number)
        queue.wait_all()

    threads = [threading.Thread(target=start, args=(100 * n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == [(number, True) for number in range(400)]


@pytest.mark.skipif(not available(), reason="nothing is computed outside of Python here")
def test_no_more_threads_are_asked_for_than_streams():
    device_model = compiled().device_model
    calls = device_model.create_call_queue(5)
    tensors = [
        (partita.HostTensor(x_of(n)), partita.HostTensor(np.zeros(SHAPE, F32))) for n in range(5)
    ]
    for number, (x, y) in enumerate(tensors):
        assert calls.submit(number, device_model.create_runner().bind([x], [y]))
    assert [calls.lacks_thread() for _ in range(4)] == [True, True, False, False]
    calls.serve()
    assert not calls.lacks_thread()
    for number, (_, y) in enumerate(tensors):
        assert calls.next_ended() == number
        assert 0 < calls.result(number) < 10
        np.testing.assert_allclose(y.numpy(), y_of(number), rtol=1e-6)
    assert calls.next_ended() is None
    assert calls.is_idle()


@pytest.mark.skipif(not available(), reason="nothing is computed outside of Python here")
def test_the_size_of_a_queue():
    """Two runs are made at a time, and two wait while runs are short."""
    assert len(partita.AsyncInferQueue(compiled())) == 4
    assert len(partita.AsyncInferQueue(compiled(), 3)) == 3
    assert len(partita.AsyncInferQueue(compiled({"INFERENCE_NUM_THREADS": 2}))) == 1


def test_ends_are_told_though_nobody_waits():
    queue, ended = partita.AsyncInferQueue(compiled()), []
    warm(queue)
    queue.set_callback(lambda request, number: ended.append(number))
    for turn in range(20):
        for number in range(2):
            queue.start_async({"x": x_of(number)}, number)
        until = time.monotonic() + 30
        while len(ended) < 2 * turn + 2 and time.monotonic() < until:
            time.sleep(0.001)
        assert sorted(ended[-2:]) == [0, 1]
        assert queue.is_ready()


def test_one_request_of_a_queue_is_waited_for(any_compiled):
    queue = partita.AsyncInferQueue(any_compiled, 3)
    warm(queue)
    for _ in range(50):
        queue.start_async({"x": x_of(7)})
        assert patiently(queue[0].wait) is None
        np.testing.assert_allclose(queue[0].results[0], y_of(7), rtol=1e-6)
    queue.wait_all()


def test_callbacks_that_wait_for_one_another(any_compiled):
    queue = partita.AsyncInferQueue(any_compiled, 4)
    warm(queue)
    all_in = threading.Barrier(4)
    queue.set_callback(lambda request, number: all_in.wait(30))
    for _ in range(5):
        for number in range(4):
            queue.start_async({"x": x_of(number)})
        assert patiently(queue.wait_all, 60) is None


def test_callbacks_start_the_next_runs(any_compiled):
    queue, ended = partita.AsyncInferQueue(any_compiled, 3), []
    warm(queue)

    def go_on(request, number):
        ended.append(number)
        if number < 200:
            queue.start_async({"x": x_of(number)}, number + 2)

    queue.set_callback(go_on)
    queue.start_async({"x": x_of(0)}, 0)
    queue.start_async({"x": x_of(0)}, 1)
    assert patiently(queue.wait_all, 60) is None
    assert sorted(ended) == list(range(202))


def test_callbacks_that_wait_for_a_free_request_are_told(any_compiled):
    queue, told = partita.AsyncInferQueue(any_compiled, 2), []
    warm(queue)
    all_in = threading.Barrier(2)

    def go_on(request, first):
        if first:
            all_in.wait(60)
            try:
                queue.start_async({"x": x_of(0)}, False)
            except InferError as error:
                told.append(str(error))

    queue.set_callback(go_on)
    for _ in range(2):
        queue.start_async({"x": x_of(0)}, True)
    assert patiently(queue.wait_all, 60) is None
    assert len(told) == 1
    assert re.search(r"All 2 requests .* callbacks that wait .* more jobs", told[0])


@pytest.mark.parametrize("raised", [ZeroDivisionError("mine"), SystemExit(3), GeneratorExit()])
def test_what_a_callback_raises_comes_out_of_wait_all(any_compiled, raised):
    queue = partita.AsyncInferQueue(any_compiled, 2)
    warm(queue)

    def leave(request, userdata):
        raise raised

    queue.set_callback(leave)
    for _ in range(10):
        queue.start_async({"x": x_of(1)})
    with pytest.raises(type(raised)):
        queue.wait_all()
    queue.set_callback(None)
    queue.start_async({"x": x_of(1)})
    queue.wait_all()


def test_who_interrupts_the_waiting_thread_is_heard_at_once(monkeypatch):
    """The callback may run on this thread; what it raises then cannot wait for wait_all."""
    monkeypatch.delenv("PARTITA_CPU_ISA", raising=False)  # portable kernels call back elsewhere
    queue = partita.AsyncInferQueue(compiled(), 2)
    warm(queue)
    main = threading.main_thread()

    def interrupt(request, userdata):
        if threading.current_thread() is main:
            raise KeyboardInterrupt

    queue.set_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100_000):
            queue.start_async({"x": x_of(1)})
    queue.set_callback(None)
    assert patiently(queue.wait_all) is None
    queue.start_async({"x": x_of(1)})
    queue.wait_all()
    assert queue.is_ready()


def test_what_a_kernel_raises_comes_out_of_wait_all():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], axis=0)]
    proto = model(
        nodes, ["x", "i"], ["y"], {"i": TensorProto.INT64}, {"i": (2,), "y": (2, SHAPE[1])}
    )
    queue = partita.AsyncInferQueue(partita.Core().compile_model(proto, "CPU", THROUGHPUT), 2)
    x = np.arange(15, dtype=F32).reshape(SHAPE)
    for _ in range(3):
        for _ in range(10):
            queue.start_async({"x": x, "i": np.array([0, 2])})
        queue.wait_all()
        queue.start_async({"x": x, "i": np.array([0, 3])})
        with pytest.raises(InferError, match=r"[Ii]nd(ex|ices).*3"):
            queue.wait_all()
    queue.start_async({"x": x, "i": np.array([2, 1])})
    queue.wait_all()
    found = [r.results[0] for r in queue if np.array_equal(r.get_tensor("i").data, [2, 1])]
    np.testing.assert_array_equal(found[0], x[[2, 1]])


def test_elements_that_decide_shapes():
    """Calls hold for one repetition count; another one goes the way through Python."""
    nodes = [helper.make_node("Tile", ["x", "r"], ["y"])]
    proto = model(nodes, ["x", "r"], ["y"], {"r": TensorProto.INT64}, {"r": (2,), "y": (None, 5)})
    queue = partita.AsyncInferQueue(partita.Core().compile_model(proto, "CPU", THROUGHPUT))
    shapes = []
    queue.set_callback(lambda request, count: shapes.append((count, request.results[0].shape[0])))
    for number in range(200):
        count = 1 + (number // 20) % 2
        queue.start_async({"x": x_of(number), "r": np.array([count, 1])}, count)
    queue.wait_all()
    assert len(shapes) == 200
    assert all(rows == 3 * count for count, rows in shapes)


def sums():
    """Of what x has been in all runs; beside it x as often as r says."""
    nodes = [
        helper.make_node("Add", ["x", "s"], ["y"]),
        helper.make_node("Identity", ["y"], ["t"]),
        helper.make_node("Tile", ["x", "r"], ["z"]),
    ]
    kinds, shapes = {"r": TensorProto.INT64}, {"r": (2,), "z": (None, 5)}
    proto = model(nodes, ["x", "r", "s"], ["y", "z", "t"], kinds, shapes)
    variables = to_metadata([Variable("sum", "s", "t")])
    helper.set_model_props(proto, {METADATA_KEY: variables})
    return partita.Core().compile_model(proto, "CPU", THROUGHPUT)


def test_state_that_was_set_is_read_by_a_run_that_its_call_does_not_hold_for():
    """It was read once for the call, and what the call writes for the run that was made instead."""
    queue = partita.AsyncInferQueue(sums(), 1)
    for count in (1, 1, 1, 1, 1, 2):
        if count == 2:
            queue[0].query_state()[0].state = np.full(SHAPE, 100, F32)
        queue.start_async({"x": x_of(16), "r": np.array([count, 1])})
        queue.wait_all()
    np.testing.assert_array_equal(queue[0].results["y"], np.full(SHAPE, 101))


@pytest.mark.parametrize("value", [None, 100])
def test_a_run_that_is_cancelled_before_its_turn_leaves_the_state(monkeypatch, value):
    threads = TaskThreads("narrow", 1)
    monkeypatch.setattr("partita.runtime.async_run.request_threads", threads)
    request = sums().create_infer_request()
    inputs = {"x": x_of(16), "r": np.array([1, 1])}
    for _ in range(5):
        request.infer(inputs)
    if value is not None:
        request.query_state()[0].state = np.full(SHAPE, value, F32)
    begin = threading.Event()
    threads.submit(begin.wait)
    request.start_async(inputs)
    request.cancel()
    begin.set()
    with pytest.raises(InferCancelledError):
        request.wait()
    due = np.full(SHAPE, value or 5)
    np.testing.assert_array_equal(request.query_state()[0].state.data, due)
    np.testing.assert_array_equal(request.infer(inputs)["y"], due + 1)
    threads.close()


def test_runs_for_which_no_thread_can_be_started(monkeypatch, any_compiled):
    """A request says so, and is free; a queue makes the calls that it has bound where it is."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    threads = TaskThreads("none", 8)
    request, queue = any_compiled.create_infer_request(), partita.AsyncInferQueue(any_compiled, 2)
    warm(queue)
    is_bound = available()
    with monkeypatch.context() as patch:
        patch.setattr("partita.runtime.async_run.request_threads", threads)
        patch.setattr(threading.Thread, "start", start)
        for run in (request, request) if is_bound else (request, queue):
            with pytest.raises(
                InferError, match=r"starts no thread \(can't start new thread\); let"
            ):
                run.start_async({"x": x_of(1)})
        if is_bound:
            for number in range(5):
                queue.start_async({"x": x_of(number)})
        queue.wait_all()
        if is_bound:
            np.testing.assert_allclose(queue[0].results["y"], y_of(4), rtol=1e-6)
    for number in range(5):
        queue.start_async({"x": x_of(number)})
    queue.wait_all()
    request.start_async({"x": x_of(1)})
    request.wait()
    np.testing.assert_allclose(request.results["y"], y_of(1), rtol=1e-6)
    threads.close()


def test_cancelled_runs_end_and_their_requests_work_again(any_compiled):
    queue = partita.AsyncInferQueue(any_compiled, 3)
    warm(queue)
    for _ in range(20):
        for number in range(3):
            queue.start_async({"x": x_of(number)})
        for request in queue:
            request.cancel()
        assert isinstance(patiently(queue.wait_all), InferCancelledError | None)
    for request in queue:
        np.testing.assert_allclose(request.infer({"x": x_of(5)})[0], y_of(5), rtol=1e-6)


PRELUDE = """
import os, sys, time
sys.path.insert(0, TESTS)
import numpy as np, partita
from test_cpu_queue import compiled, warm, x_of, y_of
queue = partita.AsyncInferQueue(compiled())
warm(queue)
def run(count):
    found = []
    queue.set_callback(lambda r, n: found.append(np.allclose(r.results[0], y_of(n))))
    for number in range(count):
        queue.start_async({"x": x_of(number)}, number)
    queue.wait_all()
    return len(found) == count and all(found)
"""


def run_script(script):
    prelude = PRELUDE.replace("TESTS", repr(str(Path(__file__).parent)))
    command = [sys.executable, "-W", "ignore", "-c", prelude + textwrap.dedent(script)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_has_threads_of_its_own():
    """Also if one of the parent's held the queue's lock just then: it forks many times."""
    script = """
    codes = set()
    for _ in range(40):
        ok = run(20)
        child = os.fork()
        if child == 0:
            os._exit(7 if run(50) else 1)
        codes.add((ok, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    print(codes, run(500))
    """
    assert run_script(script) == ["{(True,", "7)}", "True"]


def test_a_process_ends_while_threads_look_for_calls():
    script = """
    print(run(100))
    for number in range(4):
        queue.start_async({"x": x_of(number)}, number)
    """
    assert run_script(script) == ["True"]

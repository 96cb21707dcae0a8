"""Requests of many threads, in child processes, and while a process ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from models import add_sub, neg
from toy_device import ToyDevice, core_with

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


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


def run_script(script):
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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
    assert run_script(PRELUDE + script) == ["7 True"]


IN_FLIGHT = """
import threading
forked = threading.Event()

class Slow(ov.Runner):
    def run(self, inputs, outputs=None):
        forked.wait()
        return [ov.HostTensor(-inputs[0].numpy())]

fast, compiled.device_model.create_runner = compiled.device_model.create_runner, Slow

def told(call):
    try:
        call()
    except ov.errors.PartitaError as error:
        return str(error)
    return "nothing"

def in_child(report):
    child = os.fork()
    if child == 0:
        compiled.device_model.create_runner = fast
        report()
        os._exit(0)
    forked.set()
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_request_that_ran_at_a_fork_ends_in_the_parent_alone():
    script = """
request = compiled.create_infer_request()
request.start_async(x)

def report():
    print(told(request.wait), told(lambda: request.wait_for(10)), told(request.infer), sep="\\n")
    print(compiled.create_infer_request().infer(x)[0].tolist(), flush=True)

in_child(report)
request.wait()
print(request.results[0].tolist())
"""
    waited, waited_for, busy, other, own = run_script(PRELUDE + IN_FLIGHT + script)
    assert waited == waited_for
    assert "ran when this process was forked, and ends in the parent process alone" in waited
    assert "use another request" in busy
    assert other == own == "[-1.0, -2.0]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_queue_whose_requests_ran_at_a_fork_says_so_and_goes_on_with_the_others():
    script = """
queue = ov.AsyncInferQueue(compiled, 3)
queue.start_async(x)
queue.start_async(x)

def report():
    forked.set()
    print(told(lambda: [queue.start_async(x) for _ in range(9)]))
    print(told(queue.wait_all), [one.results[0].tolist() for one in list(queue)[2:]], sep="\\n")
    sys.stdout.flush()

in_child(report)
queue.wait_all()
print([request.results[0].tolist() for request in list(queue)[:2]])
"""
    started, waited, third, own = run_script(PRELUDE + IN_FLIGHT + script)
    assert waited.startswith("2 of the queue's 3 requests ran when this process was forked")
    assert (started, third) == ("nothing", "[[-1.0, -2.0]]")
    assert own == "[[-1.0, -2.0], [-1.0, -2.0]]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_queue_all_of_whose_requests_ran_at_a_fork_starts_none():
    script = """
queue = ov.AsyncInferQueue(compiled, 1)
queue.start_async(x)
in_child(lambda: print(told(lambda: queue.start_async(x)), flush=True))
queue.wait_all()
print(queue[0].results[0].tolist())
"""
    refused, own = run_script(PRELUDE + IN_FLIGHT + script)
    assert refused.startswith("1 of the queue's 1 requests ran when this process was forked")
    assert own == "[-1.0, -2.0]"


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
from partita.errors import InferError
from partita.runtime.async_run import request_threads
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
    except InferError as error:
        print("refused")
    print(compiled(x)[0].tolist() == [-1, -2])

atexit.register(late)
"""
    assert run_script(PRELUDE + script) == ["True", "refused", "True"]

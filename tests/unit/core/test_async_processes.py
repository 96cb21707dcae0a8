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

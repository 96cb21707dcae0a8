"""Ctrl-C at each moment of a request's life: what is done next with the same request succeeds.

Devices are made of float32 with few bits here, so that results are exact.
"""

import contextlib
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import partita as pt
from partita.contract.runner import Runner
from partita.errors import InferError
from partita.tensors.tensor import HostTensor
from partita_hetero.executors.parallel import EXECUTOR
from partita_hetero.executors.schedule import Schedule
from partita_virtual.batch.gathering import Gathering
from partita_virtual.batch.runner import BatchRunner
from partita_virtual.multi.device_pool import DevicePool, PooledDevice
from partita_virtual.multi.runner import MultiRunner
from tests.interrupts import moments, within_time
from tests.models import model_of, node, value, weight

WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4) - 8
MODEL = model_of(
    [node("MatMul", ["x", "w"], "t"), node("Relu", ["t"], "y")],
    [value("x", ["n", 4])],
    [value("y", ["n", 4])],
    [weight("w", WEIGHTS)],
).SerializeToString()

_compiled: dict[str, pt.CompiledModel] = {}


def compiled_for(device):
    if device not in _compiled:
        _compiled[device] = pt.Core().compile_model(MODEL, device)
    return _compiled[device]


def new_input(seed, rows=3):
    return np.random.default_rng(seed).integers(-3, 4, (rows, 4)).astype(np.float32)


def expected(x):
    return np.maximum(x @ WEIGHTS, 0)


def infer_often(request):
    for seed in range(4):
        x = new_input(seed)
        np.testing.assert_array_equal(request.infer({"x": x})["y"], expected(x))


def start_and_wait(request):
    x = new_input(5)
    request.start_async({"x": x})
    request.wait()
    np.testing.assert_array_equal(request.results["y"], expected(x))


def queue_all(queue):
    found = {}
    queue.set_callback(lambda request, key: found.__setitem__(key, request.results["y"].copy()))
    for key in range(5):
        queue.start_async({"x": new_input(key)}, key)
    queue.wait_all()
    assert sorted(found) == list(range(5))
    for key, result in found.items():
        np.testing.assert_array_equal(result, expected(new_input(key)))


def bound_request(device):
    """A request whose next run is a call that is bound to its tensors."""
    request = compiled_for(device).create_infer_request()
    infer_often(request)
    return request


# ----------------------------------------------------------------- where runs are bound calls


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE", "HETERO:REFERENCE,CPU"])
def test_a_request_whose_bound_call_was_interrupted_goes_on(device):
    step = 2 if device == "CPU" else 13
    request = bound_request(device)
    for interrupted in moments(lambda: request.infer({"x": new_input(9)}), step):
        within_time(lambda: infer_often(request), interrupted.where)


def test_a_request_whose_asynchronous_run_was_interrupted_goes_on():
    request = bound_request("CPU")

    def go_on():
        with contextlib.suppress(KeyboardInterrupt, InferError):
            request.wait()  # the run may have begun
        start_and_wait(request)
        infer_often(request)

    for interrupted in moments(lambda: start_and_wait(request)):
        within_time(go_on, interrupted.where)


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
def test_a_queue_that_was_interrupted_goes_on(device):
    """On CPU where calls are made without Python between, and where each run is Python's."""
    queue = pt.AsyncInferQueue(compiled_for(device), 2)
    for _ in range(3):
        queue_all(queue)

    def go_on():
        with contextlib.suppress(KeyboardInterrupt, InferError):
            queue.wait_all()
        queue_all(queue)

    for interrupted in moments(lambda: queue_all(queue), 7):
        within_time(go_on, interrupted.where)


def test_tensors_can_be_set_after_setting_them_was_interrupted():
    request = bound_request("CPU")
    for interrupted in moments(lambda: request.set_input_tensor(new_input(9))):
        within_time(lambda: infer_often(request), interrupted.where)


# ------------------------------------------------------------------- where a runner is called


@pytest.mark.parametrize(
    ("device", "step"),
    [
        *(("CPU", 41), ("REFERENCE", 31), ("OPENCL", 43), ("HETERO:CPU,REFERENCE", 61)),
        *(("MULTI:CPU,REFERENCE", 127), ("BATCH:CPU", 127), ("AUTO:CPU,REFERENCE", 127)),
    ],
)
def test_a_request_whose_run_of_a_new_shape_was_interrupted_goes_on(device, step):
    request = bound_request(device)
    rows = iter(range(1, 1000))
    for interrupted in moments(lambda: request.infer({"x": new_input(9, next(rows))}), step):
        within_time(lambda: infer_often(request), interrupted.where)


def test_steps_side_by_side_have_ended_when_the_thread_that_waits_is_interrupted():
    """What ran on would work in the memory of the request's next run."""
    begun, ended, here = [], [], threading.get_ident()

    def step(index):
        if threading.get_ident() != here:  # one of this thread ends as Ctrl-C comes
            begun.append(index)
            time.sleep(0.002)
            ended.append(index)

    reads = [(), (), (), (0, 1), (1,), (2,), (3, 4, 5)]
    steps = [SimpleNamespace(reads=read, writes=(slot,)) for slot, read in enumerate(reads)]
    schedule = Schedule(steps, dict(enumerate("ABCABCA")))
    for interrupted in moments(lambda: EXECUTOR.run(schedule, step, bool)):
        before = list(begun)
        time.sleep(0.003)
        assert before == begun, f"a step begins after an interrupt at {interrupted.where}"
        assert sorted(begun) == sorted(ended), f"a step runs on after one at {interrupted.where}"
        within_time(lambda: EXECUTOR.run(schedule, step, bool), interrupted.where)
        begun.clear()
        ended.clear()


# ------------------------------------------------------------ where requests wait for one another


class Echo(Runner):
    """Its results are its inputs."""

    def run(self, inputs, outputs=None):
        return inputs


ECHO = SimpleNamespace(device="ECHO", create_runner=Echo, outputs=[SimpleNamespace(name="y")])


def echo(runner):
    given = HostTensor(np.full((1, 2), 7, np.float32))
    (result,) = runner.run([given])
    np.testing.assert_array_equal(result.numpy(), given.numpy())


def test_room_on_a_device_of_multi_is_given_back():
    pool = DevicePool([PooledDevice("ECHO", ECHO, 1)], False)
    runner = MultiRunner(pool, True)
    for interrupted in moments(lambda: echo(runner)):
        within_time(lambda: echo(MultiRunner(pool, True)), interrupted.where)


def test_who_shares_a_batch_with_one_that_is_interrupted_runs_alone():
    gathering = Gathering(ECHO, 2, 0.02)
    stays, goes = BatchRunner(ECHO, gathering), BatchRunner(ECHO, gathering)
    ends, over = [], []

    def run_beside():
        while not over:
            echo(stays)
            ends.append(None)

    def run_and_see():
        echo(goes)
        before = len(ends)
        while len(ends) < before + 2:
            time.sleep(0.001)

    beside = threading.Thread(target=run_beside, daemon=True)
    beside.start()
    for interrupted in moments(lambda: echo(goes)):
        within_time(run_and_see, interrupted.where)
    assert gathering.batches > 10
    over.append(None)
    beside.join()

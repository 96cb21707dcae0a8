"""Programs that run at the same time: order, inputs, failures, threads that are busy."""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

import partita
from partita.errors import InferCancelledError, InferError
from partita_cpu.jit.isa import detected
from partita_cpu.runtime.lanes import Lanes

pytestmark = pytest.mark.skipif(
    not detected().native or not sys.platform.startswith("linux"),
    reason="programs are walked by Python here",
)

F32 = np.float32
SHAPE = (64, 512)


def runner_of(nodes, inputs, output, config=None, kinds=None, shape=SHAPE):
    def info(name):
        return helper.make_tensor_value_info(
            name, (kinds or {}).get(name, TensorProto.FLOAT), shape
        )

    graph = helper.make_graph(nodes, "m", [info(n) for n in inputs], [info(output)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    config = {"INFERENCE_NUM_THREADS": 1, **(config or {})}
    return partita.Core().compile_model(proto, "CPU", config).create_runner()


def adder(count, config=None):
    """The sine of a sum, so that results stay small and their order shows."""
    names = [f"x{i}" for i in range(count)]
    nodes = [helper.make_node("Sum", names, ["s"]), helper.make_node("Sin", ["s"], ["y"])]
    return runner_of(nodes, names, "y", config)


def tensor(shape=SHAPE, dtype=F32):
    return partita.HostTensor(np.zeros(shape, dtype))


def random_waits(seed, count=30):
    rng = random.Random(seed)
    return [
        sorted({rng.randrange(n) for _ in range(rng.randrange(1, 4))}) if n else []
        for n in range(count)
    ]


def bound(waits):
    """One program for each node of a graph: what it reads is what others wrote, and x."""
    x, results = tensor(), [tensor() for _ in waits]
    calls = []
    for number, sources in enumerate(waits):
        runner = adder(1 + len(sources))
        calls.append(runner.bind([x, *(results[n] for n in sources)], [results[number]]))
    return x, results, calls


def expected(waits, x):
    results = []
    for sources in waits:
        results.append(np.sin(x + sum(results[n] for n in sources)))
    return results


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_every_program_runs_after_those_it_waits_for(seed, lanes):
    waits = random_waits(seed)
    x, results, calls = bound(waits)
    rng = random.Random(seed)
    numbers = [rng.randrange(lanes) for _ in waits[lanes:]] + list(range(lanes))
    together = calls[0].together(calls, waits, numbers)
    for turn in range(20):
        x.numpy()[:] = turn / 20
        for result in results:
            result.numpy()[:] = np.nan
        together()
        for result, want in zip(results, expected(waits, np.float64(turn / 20)), strict=True):
            np.testing.assert_allclose(result.numpy(), want, atol=1e-5)


def test_when_each_began_and_ended():
    waits = random_waits(7)
    _, _, calls = bound(waits)
    together = calls[0].together(calls, waits, [n % 2 for n in range(len(waits))])
    assert len(together.times()) == len(waits)
    before = time.perf_counter()
    together()
    after = time.perf_counter()
    times = together.times()
    for number, (start, end) in enumerate(times):
        assert before <= start <= end <= after
        assert all(times[source][1] <= start for source in waits[number])
    for lane in range(2):
        spans = sorted(times[lane::2])
        assert all(early[1] <= late[0] for early, late in itertools.pairwise(spans))


def test_other_inputs():
    waits = [[], [0], [0], [1, 2]]
    _, results, calls = bound(waits)
    together = calls[0].together(calls, waits, [0, 0, 1, 1])
    for value in (0.25, 0.5):
        x = np.full(SHAPE, value, F32)
        x.flags.writeable = False
        for call, sources in zip(calls, waits, strict=True):
            assert call.rebind([partita.HostTensor(x), *(results[n] for n in sources)])
        together()
        want = expected(waits, np.float64(value))[-1]
        np.testing.assert_allclose(results[-1].numpy(), want, atol=1e-5)


def test_inputs_that_cannot_be_read_in_place():
    runner = adder(1)
    x, y = tensor(), tensor()
    call = runner.bind([x], [y])
    odd = np.zeros(4 * SHAPE[0] * SHAPE[1] + 1, np.uint8)[1:].view(F32).reshape(SHAPE)
    strided = np.zeros(SHAPE[::-1], F32).T
    for array in (odd, strided, np.zeros((2, 512), F32), np.zeros(SHAPE), y.numpy()):
        assert not call.rebind([partita.HostTensor(array)])
    x.numpy()[:] = 1
    call()
    np.testing.assert_allclose(y.numpy(), np.sin(1), rtol=1e-6)
    assert runner.bind([partita.HostTensor(strided)], [y]) is None


def test_calls_that_python_makes_or_several_threads_are_not_taken():
    one = adder(1).bind([tensor()], [tensor()])
    wide = adder(1, {"INFERENCE_NUM_THREADS": 2}).bind([tensor()], [tensor()])
    square = helper.make_node("Einsum", ["x", "x"], ["y"], equation="ij,ij->ij")
    python = runner_of([square], ["x"], "y").bind([tensor()], [tensor()])

    class Other(partita.BoundCall):
        def __call__(self):
            pass

    for other in (wide, python, Other()):
        assert one.together([one, other], [[], []], [0, 1]) is None
    assert Other().together([one, one], [[], []], [0, 1]) is None
    assert not Other().rebind([])
    assert Other().times() == ()
    assert not python.rebind([tensor()])


class Kernels:
    """Rows of calls of Python functions; one that returns ``False`` has failed."""

    def __init__(self):
        self._calls = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        self._entry = kind(lambda number, tid, nt: int(self._calls[number]() is False))

    def rows(self, *calls):
        """A table."""
        address = ctypes.cast(self._entry, ctypes.c_void_p).value
        first = len(self._calls)
        self._calls += calls
        numbers = range(first, len(self._calls))
        return np.array([(address, number, 0) for number in numbers], np.int64)


@pytest.mark.parametrize("faulty", range(4))
def test_a_failure_ends_the_run_and_the_next_one_is_as_any_other(faulty):
    """What waits for the failure does not begin, and neither does the rest of the program."""
    done, broken = [0] * 4, [False] * 4

    def add(number):
        if broken[number]:
            return False
        done[number] += 1
        return True

    kernels = Kernels()
    tables = [kernels.rows(*[functools.partial(add, n)] * 2) for n in range(4)]
    lanes = Lanes(tables, [[], [], [1], [0, 2]], [0, 1, 1, 0], kernels)
    for _ in range(3):
        done[:] = [0] * 4
        lanes.run()
        assert done == [2] * 4
        done[:] = [0] * 4
        broken[faulty] = True
        with pytest.raises(InferError, match="A kernel failed on device CPU"):
            lanes.run()
        assert done[faulty] == 0
        assert faulty == 3 or done[3] == 0
        assert faulty not in (1, 2) or done[2] == 0
        broken[faulty] = False


def test_cancelling_lets_no_further_program_begin():
    running, may_end, done = threading.Event(), threading.Event(), []

    def hold():
        running.set()
        return may_end.wait(60)

    kernels = Kernels()
    tables = [kernels.rows(hold), kernels.rows(lambda: done.append(1))]
    lanes = Lanes(tables, [[], [0]], [0, 1], kernels)
    may_end.set()
    lanes.run()
    assert len(done) == 1
    running.clear()
    may_end.clear()
    errors = []

    def work():
        try:
            lanes.run()
        except InferCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(60)
    lanes.cancel()
    may_end.set()
    thread.join(10)
    assert len(errors) == 1
    assert len(done) == 1
    lanes.run()
    assert len(done) == 2


def test_lanes_run_at_the_same_time():
    meet = threading.Barrier(3, timeout=60)
    kernels = Kernels()
    tables = [kernels.rows(lambda: meet.wait() >= 0) for _ in range(3)]
    Lanes(tables, [[], [], []], [0, 1, 2], kernels).run()


def test_many_requests_at_the_same_time():
    """Who finds the other threads busy walks all lanes alone."""
    wrong = []

    def work(seed):
        waits = random_waits(seed, 12)
        x, results, calls = bound(waits)
        together = calls[0].together(calls, waits, [n % 2 for n in range(len(waits))])
        want = expected(waits, np.float64(seed / 7))[-1]
        for _ in range(40):
            x.numpy()[:] = seed / 7
            together()
            if not np.allclose(results[-1].numpy(), want, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_hang_after_a_fork_or_at_exit():
    code = """
    import os
    import numpy as np
    from onnx import TensorProto as T, helper
    import partita
    info = [helper.make_tensor_value_info(name, T.FLOAT, [4, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", info[:1], info[1:])
    opset = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    device = partita.Core().compile_model(proto, "CPU", {"INFERENCE_NUM_THREADS": 1})
    x = partita.HostTensor(np.ones((4, 4), np.float32))
    ys = [partita.HostTensor(np.zeros((4, 4), np.float32)) for _ in range(2)]
    calls = [device.create_runner().bind([x], [y]) for y in ys]
    both = calls[0].together(calls, [[], []], [0, 1])
    for _ in range(50):
        both()
    child = os.fork()
    for y in ys:
        y.numpy()[:] = 0
    both()
    assert all((y.numpy() == -1).all() for y in ys)
    if child:
        assert os.waitpid(child, 0)[1] == 0
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0

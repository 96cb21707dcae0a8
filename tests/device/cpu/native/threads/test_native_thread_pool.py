"""Programs walked in one call: failures, threads, forks, exits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import onnx
import pytest

import partita
from partita.errors import InferError
from partita_cpu.jit.isa import detected
from partita_cpu.threads import step_team, thread_pool
from partita_cpu.threads.step_team import Team, team_of
from partita_cpu.threads.thread_pool import (
    CALM_RUNS,
    IDLE_LOOKS,
    LOOKS,
    TRIES,
    VAIN_LOOKS,
    Rows,
    ThreadPool,
    looks_after_run,
)

from ..networks.test_native_layout import Net, compiled

pytestmark = pytest.mark.skipif(
    not detected().native or not sys.platform.startswith("linux"),
    reason="programs are walked by Python here",
)


def chain(outputs=48):
    net = Net(1, 32, 28, 28)
    x = "x"
    for _ in range(4):
        x = net.add("Relu", net.conv(x, 32, 32))
    return net, net.conv(x, 32, outputs, 1)


@pytest.mark.parametrize(
    ("stream", "levels"), [(98, ["portable", "avx2"]), (99, ["avx2", "portable"])]
)
def test_portable_has_no_pool(stream, levels, monkeypatch):
    """Whatever was asked for first."""
    for level in levels:
        monkeypatch.setenv("PARTITA_CPU_ISA", level)
        assert (team_of(2, stream).pool is None) == (level == "portable")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_for_any_number_of_threads(threads):
    net, y = chain()
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    model = net.model(y)
    device = compiled(model, INFERENCE_NUM_THREADS=threads)
    results = [np.array(device(x)[0]) for _ in range(5)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    alone = compiled(model, INFERENCE_NUM_THREADS=1, PERF_COUNT=True)(x)[0]
    np.testing.assert_allclose(results[0], alone, rtol=1e-5, atol=1e-6)


def test_a_system_that_starts_no_threads_computes_on_one_until_it_does(monkeypatch):
    def refuses(*_):
        raise RuntimeError("can't start new thread")

    net, y = chain()
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    team, shares = Team(3), []
    device = compiled(net.model(y), INFERENCE_NUM_THREADS=7)  # a team that no other test has
    with monkeypatch.context() as patched:
        for module in (step_team, thread_pool):
            patched.setattr(module, "SystemThread", refuses)
        alone = np.array(device(x)[0])
        team.run(lambda *share: shares.append(share))
    assert shares == [(0, 1)]
    team.run(lambda *share: shares.append(share))
    assert sorted(shares[1:]) == [(0, 3), (1, 3), (2, 3)]
    np.testing.assert_allclose(np.array(device(x)[0]), alone, rtol=1e-5, atol=1e-6)


def test_many_threads_call_one_compiled_model():
    net, y = chain()
    device = compiled(net.model(y), INFERENCE_NUM_THREADS=2)
    inputs = [net.rng.standard_normal(net.shape).astype(np.float32) for _ in range(6)]
    wanted = [np.array(device(x)[0]) for x in inputs]
    failures = []

    def work(x, expected):
        request = device.create_infer_request()
        for _ in range(20):
            found = np.asarray(request.infer({"x": x})[0])
            if not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
                failures.append(float(np.abs(found - expected).max()))

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_inputs_and_outputs_may_change_from_call_to_call():
    net, y = chain(3)
    device = compiled(net.model(y), INFERENCE_NUM_THREADS=2)
    request = device.create_infer_request()
    for _ in range(3):
        x = net.rng.standard_normal(net.shape).astype(np.float32)
        target = partita.Tensor(np.full((1, 3, 28, 28), np.nan, np.float32))
        request.set_tensor("x", partita.Tensor(x))
        request.set_output_tensor(0, target)
        request.infer()
        np.testing.assert_allclose(target.numpy(), device(x)[0], rtol=1e-5, atol=1e-6)


def test_a_step_that_fails_says_why_and_no_later_one_runs():
    net = Net(1, 8)
    rows = net.rng.standard_normal((5, 256)).astype(np.float32)
    index = net.add("Cast", "x", to=onnx.TensorProto.INT64)
    taken = net.add("Gather", net.const(values=rows), index)
    y = net.add("Relu", taken)
    device = compiled(net.model(y), INFERENCE_NUM_THREADS=2)
    request = device.create_infer_request()
    tensor = partita.Tensor(np.array([[0, -1, 4, 3, 2, 1, -5, 0]], np.float32))
    request.set_tensor("x", tensor)
    x = tensor.numpy()
    for _ in range(4):  # by then calls are bound
        request.infer()
        wanted = np.maximum(rows[x.astype(np.int64)], 0)
        np.testing.assert_array_equal(request.get_output_tensor(0).numpy(), wanted)
        x[0, 2] = 5
        with pytest.raises(InferError, match=f"'{taken}': index 5 is out of range .* size 5"):
            request.infer()
        x[0, 2] = -3


def test_who_looked_in_vain_sleeps_at_once_and_tries_again():
    looks = looks_after_run.py_func
    assert {looks(0, vain) for vain in range(VAIN_LOOKS)} == {LOOKS}
    assert {looks(CALM_RUNS, vain) for vain in range(VAIN_LOOKS)} == {IDLE_LOOKS}
    apart = [looks(CALM_RUNS, vain) for vain in range(VAIN_LOOKS, VAIN_LOOKS + TRIES)]
    assert sorted(apart) == [1] * (TRIES - 1) + [IDLE_LOOKS]


def test_the_same_whether_runs_are_apart_or_follow_at_once():
    net, y = chain()
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    device = compiled(net.model(y), INFERENCE_NUM_THREADS=2)
    first = np.array(device(x)[0])
    for run in range(4 * TRIES):
        if run // TRIES % 2 == 0:
            time.sleep(0.001)
        np.testing.assert_array_equal(device(x)[0], first)


def places(pool):
    """Processors that each thread of a thread pool may run on after a run of no rows."""
    pool.run(Rows(0, 0, 0, True))
    return [os.sched_getaffinity(thread.native_id) for thread in pool.threads]


def test_helpers_stay_off_the_processor_of_the_caller():
    there = os.sched_getaffinity(0)
    found = places(ThreadPool(3))
    assert found[0] == found[1]
    assert found[0] <= there
    assert len(found[0]) == max(1, len(there) - 1)


def test_helpers_of_a_caller_that_may_not_move_stay_where_they_may_run():
    pool = ThreadPool(2)
    there = os.sched_getaffinity(0)
    found = []

    def call():
        os.sched_setaffinity(0, {min(there)})
        found.extend(places(pool))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert found == [{min(there)}]


def test_pinned_helpers_stay():
    there = sorted(os.sched_getaffinity(0))
    homes = [there[0], there[-1]]
    pool = ThreadPool(3, homes)
    wanted = [{home} for home in homes]
    until = time.monotonic() + 30
    while places(pool) != wanted and time.monotonic() < until:
        time.sleep(0.01)  # each thread goes home by itself
    assert places(pool) == wanted


@pytest.mark.parametrize("way", ["fork", "exit"])
def test_no_hang_after_a_fork_or_at_exit(way):
    code = f"""
    import os, sys
    import numpy as np
    import onnx
    from onnx import helper, TensorProto as T
    import partita
    w = helper.make_tensor("w", T.FLOAT, [64, 64, 3, 3], np.ones(64 * 64 * 9, np.float32))
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    x_info = helper.make_tensor_value_info("x", T.FLOAT, [1, 64, 28, 28])
    y_info = helper.make_tensor_value_info("y", T.FLOAT, None)
    graph = helper.make_graph([node], "g", [x_info], [y_info], [w])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    core = partita.Core()
    model = core.read_model(model.SerializeToString())
    config = {{"INFERENCE_NUM_THREADS": 2, "EXECUTION_MODE_HINT": "ACCURACY"}}
    device = core.compile_model(model, "CPU", config)
    x = np.ones((1, 64, 28, 28), np.float32)
    assert np.asarray(device(x)[0])[0, 0, 5, 5] == 576
    if {way!r} == "fork":
        child = os.fork()
        assert np.asarray(device(x)[0])[0, 0, 5, 5] == 576
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    assert subprocess.run(command, timeout=600, check=False).returncode == 0

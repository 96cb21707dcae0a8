"""MULTI: requests run side by side on devices that are free."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import partita as ov
from partita.errors import (
    DeviceError,
    InferCancelledError,
    InferError,
    PluginError,
    UnsupportedOpError,
)
from partita_virtual.multi.device_pool import DevicePool, PooledDevice

from ..fakes import FakeDevice, core_with, evaluate
from ..graphs import CHAIN, X

ANSWER = evaluate(CHAIN, {"x": X})[0]


def test_requests_run_on_several_devices_at_the_same_time():
    meet = threading.Barrier(2, timeout=60)  # each run waits for one on the other device
    core = core_with(FakeDevice("A", meet=meet), FakeDevice("B", meet=meet))
    compiled = core.compile_model(CHAIN, "MULTI:A,B")
    assert compiled.execution_devices == ["A", "B"]
    queue = ov.AsyncInferQueue(compiled)
    assert len(queue) == 2
    for _ in range(8):
        queue.start_async(X)
    queue.wait_all()
    assert {"A has run 4 requests", "B has run 4 requests"} <= set(compiled.explain().notes)
    for request in queue:
        np.testing.assert_allclose(request.results[0], ANSWER, rtol=1e-6)


@pytest.mark.parametrize(("policy", "runs"), [("DEVICE_PRIORITY", (4, 0)), ("ROUND_ROBIN", (2, 2))])
def test_the_policy_says_which_free_device_is_taken(policy, runs):
    a, b = FakeDevice("A"), FakeDevice("B")
    compiled = core_with(a, b).compile_model(CHAIN, "MULTI:A,B", {"SCHEDULE_POLICY": policy})
    request = compiled.create_infer_request()
    for _ in range(4):
        np.testing.assert_allclose(request.infer(X)[0], ANSWER, rtol=1e-6)
    assert (a.runs, b.runs) == runs


def test_numbers_behind_devices_are_requests_at_a_time():
    meet = threading.Barrier(3, timeout=60)
    core = core_with(FakeDevice("A", meet=meet), FakeDevice("B", refuses=["Exp"]))
    compiled = core.compile_model(CHAIN, "MULTI:A(3),B")
    assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == "A(3),B"
    assert compiled.optimal_number_of_infer_requests == 3
    assert "B gets no requests" in compiled.explain().notes[0]
    queue = ov.AsyncInferQueue(compiled, 3)
    for _ in range(6):
        queue.start_async(X)
    queue.wait_all()


def test_a_model_that_no_device_takes_as_a_whole_is_refused():
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B", breaks_on=["Neg"]))
    with pytest.raises(UnsupportedOpError, match=r"No device of MULTI:A,B takes model 'm'"):
        core.compile_model(CHAIN, "MULTI:A,B")


def test_a_device_that_fails_gets_nothing_more():
    compiled = core_with(FakeDevice("A", fails_at_run=[2]), FakeDevice("B")).compile_model(
        CHAIN, "MULTI:A,B"
    )
    request = compiled.create_infer_request()
    for _ in range(4):
        np.testing.assert_allclose(request.infer(X)[0], ANSWER, rtol=1e-6)
    assert compiled.execution_devices == ["B"]
    assert "A gets no more requests: the device fell over (B ran it)" in compiled.explain().notes


def test_what_fails_everywhere_changes_nothing():
    core = core_with(FakeDevice("A", fails_at_run=[1]), FakeDevice("B", fails_at_run=[1]))
    compiled = core.compile_model(CHAIN, "MULTI:A,B")
    with pytest.raises(InferError, match="fell over"):
        compiled(X)
    assert compiled.execution_devices == ["A", "B"]
    np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)


def test_without_runtime_fallback_a_failure_is_an_error():
    core = core_with(FakeDevice("A", fails_at_run=[1]), FakeDevice("B"))
    compiled = core.compile_model(CHAIN, "MULTI:A,B", {"ENABLE_RUNTIME_FALLBACK": False})
    with pytest.raises(InferError, match="fell over"):
        compiled(X)


def test_bound_calls_of_several_devices():
    core = ov.Core()
    core.register_plugin("partita_cpu", "CPU2")
    config = {"SCHEDULE_POLICY": "ROUND_ROBIN"}
    request = core.compile_model(CHAIN, "MULTI:CPU,CPU2", config).create_infer_request()
    for index in range(12):
        x = X + index
        np.testing.assert_allclose(request.infer(x)[0], evaluate(CHAIN, {"x": x})[0], rtol=1e-5)


def test_a_request_that_waits_for_room_can_be_cancelled():
    entered, go_on = threading.Event(), threading.Event()

    class Gate:
        def wait(self):
            entered.set()
            assert go_on.wait(60)

    compiled = core_with(FakeDevice("A", meet=Gate())).compile_model(CHAIN, "MULTI:A")
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    first.start_async(X)
    assert entered.wait(60)
    second.start_async(X)
    second.cancel()
    with pytest.raises(InferCancelledError):
        second.wait()
    go_on.set()
    first.wait()
    np.testing.assert_allclose(second.infer(X)[0], ANSWER, rtol=1e-6)


def test_no_device_can_be_taken_away_and_none_is_its_own():
    core = core_with(FakeDevice("A"))
    for device, said in (("MULTI:-A", "takes no device away"), ("MULTI:MULTI", "its own devices")):
        with pytest.raises(DeviceError, match=said):
            core.compile_model(CHAIN, device)


def test_exported():
    core = ov.Core()
    compiled = core.compile_model(CHAIN, "MULTI:CPU(2),REFERENCE")
    again = core.import_model(compiled.export_model(), "MULTI")
    assert again.get_property("MULTI_DEVICE_PRIORITIES") == "CPU(2),REFERENCE"
    np.testing.assert_allclose(again(X)[0], ANSWER, rtol=1e-6)


@pytest.mark.parametrize(
    ("device", "whose"), [("MULTI:A,B", "A or B"), ("AUTO:A", "A"), ("BATCH:A", "A")]
)
def test_wrong_results_are_blamed_on_the_devices_that_compute(device, whose):
    core = core_with(FakeDevice("A", fault="dtype"), FakeDevice("B", fault="dtype"))
    compiled = core.compile_model(CHAIN, device)
    with pytest.raises(PluginError, match=rf"float64.* The plugin of {whose} is at fault"):
        compiled({"x": X})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_process_waits_for_no_request_of_its_parent():
    pool = DevicePool([PooledDevice("A", None, 1)], False)
    member = pool.acquire("of another thread", (), lambda: False)
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a process that waits for ever
        os._exit(pool.acquire("own", (), lambda: False) is not member)
    assert os.waitpid(child, 0)[1] == 0
    assert member.users == {"of another thread"}

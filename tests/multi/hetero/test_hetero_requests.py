"""Requests on several devices: how many are right, overlap, waiting, callbacks, cancelling."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import partita
from partita.errors import InferCancelledError

from ..fakes import FakeDevice, FakeRunner, core_with, evaluate
from ..graphs import CHAIN, X, model_of, node
from .test_hetero_bound_calls import cut

BRANCHES = model_of(
    [node("Exp", ["x"], "a"), node("Neg", ["x"], "b"), node("Add", ["a", "b"], "y")], ["y"]
)


class Wide(FakeDevice):
    """Takes several requests at the same time."""

    at_once = 1

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        at_once = self.at_once

        class Compiled(type(compiled)):
            optimal_number_of_infer_requests = property(lambda self: at_once)

        compiled.__class__ = Compiled
        return compiled


def wide(name, at_once):
    device = Wide(name)
    device.at_once = at_once
    return device


@pytest.mark.parametrize(
    ("counts", "devices", "right"),
    [
        ({"A": 1}, "AAAA", 1),
        ({"A": 1, "B": 1}, "ABAB", 2),
        ({"A": 1, "B": 1, "C": 1}, "ABCA", 3),
        ({"A": 4}, "AAAA", 4),
        ({"A": 4, "B": 2}, "ABAB", 6),
        ({"A": 4, "B": 2}, "AAAA", 4),
    ],
)
def test_the_number_of_requests_is_what_the_plan_s_devices_take(counts, devices, right):
    core = core_with(*(wide(name, count) for name, count in counts.items()))
    compiled = cut(core, CHAIN, devices)
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == right
    assert len(partita.AsyncInferQueue(compiled)) == right


class Paged(FakeDevice):
    """Gives out arrays of its own for what is copied to and from it."""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        self.given = given = []

        class Compiled(type(compiled)):
            def host_array(self, shape, dtype):
                given.append(np.zeros(shape, dtype))
                return given[-1]

        compiled.__class__ = Compiled
        return compiled


@pytest.mark.parametrize("whole", ["HETERO:A,B", "MULTI:A,B"])
def test_copied_inputs_lie_where_the_first_device_wants_them(whole):
    first = Paged("A")
    compiled = core_with(first, FakeDevice("B")).compile_model(CHAIN, whole)
    request = compiled.create_infer_request()
    for _ in range(3):
        request.start_async(X)
        request.wait()
    assert any(request.get_input_tensor().numpy() is array for array in first.given)


class Hooked(FakeDevice):
    """Calls ``before(number)`` at each run, from 1."""

    def __init__(self, name, before):
        super().__init__(name)
        self.before = before

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        device = self

        class Runner(FakeRunner):
            def run(self, inputs, outputs=None):
                device.before(device.runs + 1)
                return super().run(inputs, outputs)

        compiled.create_runner = lambda: Runner(compiled)
        return compiled


def test_requests_pipeline_over_devices():
    """B ends the first request only when A works on the second, and A that one only beside B."""
    a_is_at_the_second, b_is_at_the_first = threading.Event(), threading.Event()

    def before_a(number):
        if number == 2:
            a_is_at_the_second.set()
            assert b_is_at_the_first.wait(60)

    def before_b(number):
        if number == 1:
            b_is_at_the_first.set()
            assert a_is_at_the_second.wait(60)

    core = core_with(Hooked("A", before_a), Hooked("B", before_b))
    proto = model_of(CHAIN.graph.node[:2], ["b"])
    queue = partita.AsyncInferQueue(cut(core, proto, "AB"))
    results = {}
    queue.set_callback(lambda request, key: results.__setitem__(key, request.results[0].copy()))
    for key in range(4):
        queue.start_async({"x": X * key}, key)
    queue.wait_all()
    for key in range(4):
        want = evaluate(proto, {"x": X * np.float32(key)})[0]
        np.testing.assert_allclose(results[key], want, rtol=1e-6)


def test_independent_branches_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=60)
    core = core_with(FakeDevice("A", meet=meet), FakeDevice("B", meet=meet), FakeDevice("C"))
    compiled = cut(core, BRANCHES, "ABC", {"HETERO_EXECUTOR": "PARALLEL"})
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(BRANCHES, {"x": X})[0], rtol=1e-6)


def test_copies_overlap_computing_in_parallel():
    """The upload for one branch ends when the other branch's device computes."""
    computing = threading.Event()

    class Copying(FakeDevice):
        def transfer_to(self, tensor, device_id=""):
            assert computing.wait(60)
            return super().transfer_to(tensor, device_id)

    core = core_with(
        Copying("A", memory="a"), Hooked("B", lambda _: computing.set()), FakeDevice("C")
    )
    compiled = cut(core, BRANCHES, "ABC", {"HETERO_EXECUTOR": "PARALLEL"})
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(BRANCHES, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_waiting_with_a_timeout(executor):
    core = core_with(FakeDevice("A", delay_s=0.2), FakeDevice("B"))
    request = cut(core, CHAIN, "AB", {"HETERO_EXECUTOR": executor}).create_infer_request()
    request.start_async({"x": X})
    assert not request.wait_for(1)
    assert request.wait_for(60_000)
    np.testing.assert_allclose(
        request.get_output_tensor(0).numpy(), evaluate(CHAIN, {"x": X})[0], rtol=1e-6
    )


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_cancelling_a_request_leaves_the_others_alone(executor):
    core = core_with(FakeDevice("A", delay_s=0.1), FakeDevice("B", delay_s=0.1))
    compiled = cut(core, CHAIN, "AB", {"HETERO_EXECUTOR": executor})
    one, two = compiled.create_infer_request(), compiled.create_infer_request()
    one.start_async({"x": X})
    two.start_async({"x": X})
    one.cancel()
    with pytest.raises(InferCancelledError):
        one.wait()
    two.wait()
    want = evaluate(CHAIN, {"x": X})[0]
    np.testing.assert_allclose(two.results[0], want, rtol=1e-6)
    np.testing.assert_allclose(one.infer({"x": X})[0], want, rtol=1e-6)


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_many_threads_on_one_compiled_model(executor):
    core = core_with(FakeDevice("A"), FakeDevice("B", memory="b"), FakeDevice("C"))
    compiled = cut(core, CHAIN, "ABC", {"HETERO_EXECUTOR": executor})
    wrong = []

    def work(seed):
        for i in range(10):
            x = X * np.float32(1 + seed + i)
            if not np.allclose(compiled({"x": x})[0], evaluate(CHAIN, {"x": x})[0], rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

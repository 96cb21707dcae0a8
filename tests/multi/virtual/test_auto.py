"""AUTO: which device gets a model, when that changes, and what happens when it fails."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import partita as ov
from partita.errors import (
    DeviceError,
    InferCancelledError,
    InferError,
    PropertyError,
    UnsupportedOpError,
)
from partita_virtual.auto import device_selector, speed

from ..fakes import FakeCompiled, FakeDevice, FakeRunner, core_with, evaluate
from ..graphs import CHAIN, X, model_of, node

ANSWER = evaluate(CHAIN, {"x": X})[0]


class Clock:
    """Seconds that pass only where a device says that it works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class SlowDevice(FakeDevice):
    """A device that takes its time to compile and to run.

    Args:
        name: Its name.
        seconds: What a run takes, on the test's clock.
        gate: An event that compiling waits for.
    """

    def __init__(self, name, seconds=0.0, gate=None, **options):
        super().__init__(name, **options)
        self.seconds, self.gate, self.clock = seconds, gate, None

    def compile_model(self, model, properties):
        if self.gate is not None:
            assert self.gate.wait(60)
        super().compile_model(model, properties)
        return SlowCompiled(model, properties, self.device_name, self)


class SlowCompiled(FakeCompiled):
    def create_runner(self):
        return SlowRunner(self)


class SlowRunner(FakeRunner):
    def run(self, inputs, outputs=None):
        if self.plugin.clock is not None:
            self.plugin.clock.now += self.plugin.seconds
        return super().run(inputs, outputs)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(speed, "clock", clock)
    return clock


def two(clock, fast=("G", 1.0), slow=("C", 2.0), gate=None, **options):
    """A GPU that may wait for a gate, and a CPU."""
    gpu = SlowDevice(fast[0], fast[1], gate, kind="gpu", **options)
    cpu = SlowDevice(slow[0], slow[1], kind="cpu")
    gpu.clock = cpu.clock = clock
    return core_with(gpu, cpu), gpu, cpu


def settled(compiled):
    """A compiled model whose device is decided."""
    device_selector.threads.close()
    assert not any(device.startswith("(") for device in compiled.execution_devices)
    return compiled


def reason(compiled):
    (found,) = {(op.device, op.reason.code) for op in compiled.explain().ops}
    return found


def test_a_cpu_answers_while_the_gpu_compiles_and_then_requests_move(clock):
    gate = threading.Event()
    core, gpu, cpu = two(clock, gate=gate)
    compiled = core.compile_model(CHAIN, "AUTO:G,C")
    request = compiled.create_infer_request()
    np.testing.assert_allclose(request.infer(X)[0], ANSWER, rtol=1e-6)
    assert compiled.get_property("EXECUTION_DEVICES") == ["(C)"]
    assert "until other devices are ready" in compiled.explain().notes[-1]
    assert (cpu.runs, gpu.runs) == (1, 0)
    gate.set()
    settled(compiled)
    before = cpu.runs
    np.testing.assert_allclose(request.infer(X)[0], ANSWER, rtol=1e-6)
    assert compiled.get_property("EXECUTION_DEVICES") == ["G"]
    assert cpu.runs == before
    assert reason(compiled) == ("G", ov.ReasonCode.CHEAPER_BY)
    assert "G 1e+03 ms, C 2e+03 ms" in str(compiled.explain()["a"].reason)


def test_a_model_that_was_dropped_is_not_compiled_for_other_devices(clock):
    core, gpu, cpu = two(clock)
    gate = threading.Event()
    for _ in range(4):  # all threads
        device_selector.threads.submit(gate.wait, 60)
    compiled = core.compile_model(CHAIN, "AUTO:G,C")
    del compiled
    gc.collect()
    gate.set()
    device_selector.threads.close()
    assert (len(cpu.compiled), len(gpu.compiled)) == (1, 0)


def test_it_stays_on_the_cpu_if_that_is_faster(clock):
    core, *_ = two(clock, fast=("G", 3.0))
    compiled = settled(core.compile_model(CHAIN, "AUTO:G,C"))
    assert compiled.execution_devices == ["C"]
    assert reason(compiled) == ("C", ov.ReasonCode.CHEAPER_BY)


def test_of_devices_about_as_fast_the_first_is_taken(clock):
    core, *_ = two(clock, fast=("G", 2.1))
    assert settled(core.compile_model(CHAIN, "AUTO:G,C")).execution_devices == ["G"]
    assert settled(core.compile_model(CHAIN, "AUTO:C,G")).execution_devices == ["C"]


def test_by_priority_nothing_is_measured(clock):
    core, gpu, _ = two(clock, fast=("G", 3.0))
    compiled = settled(core.compile_model(CHAIN, "AUTO:G,C", {"AUTO_SCHEDULE": "PRIORITY"}))
    assert compiled.execution_devices == ["G"]
    assert gpu.runs == 0
    assert reason(compiled) == ("G", ov.ReasonCode.PRIORITY)
    first = core.compile_model(CHAIN, "AUTO:C,G", {"AUTO_SCHEDULE": "PRIORITY"})
    assert first.execution_devices == ["C"]  # nothing to wait for


def test_without_startup_fallback_compiling_ends_with_the_choice(clock):
    core, *_ = two(clock)
    compiled = core.compile_model(CHAIN, "AUTO:G,C", {"ENABLE_STARTUP_FALLBACK": False})
    assert compiled.execution_devices == ["G"]


def test_many_requests_are_measured_together(clock):
    core, *_ = two(clock)
    config = {"PERFORMANCE_HINT": "THROUGHPUT", "ALLOW_AUTO_BATCHING": False}
    assert settled(core.compile_model(CHAIN, "AUTO:G,C", config)).execution_devices == ["G"]


def test_where_shapes_vary_the_first_request_tells_them(clock):
    proto = model_of([node("Neg", ["x"], "y")], ["y"], shape=("N", 3))
    core, *_ = two(clock)
    compiled = core.compile_model(proto, "AUTO:G,C")
    device_selector.threads.close()
    assert compiled.execution_devices == ["(C)"]
    np.testing.assert_array_equal(compiled(X)[0], -X)
    assert settled(compiled).execution_devices == ["G"]
    np.testing.assert_array_equal(compiled(X[:1])[0], -X[:1])


@pytest.mark.parametrize("fault", ["refuses", "breaks_on"])
def test_a_device_that_does_not_take_the_model_is_told(clock, fault):
    core, *_ = two(clock, **{fault: ["Exp"]})
    compiled = settled(core.compile_model(CHAIN, "AUTO:G,C"))
    assert compiled.execution_devices == ["C"]
    assert "G was not chosen" in compiled.explain().notes[0]
    if fault == "refuses":
        assert compiled.explain()["b"].refused["G"].code is ov.ReasonCode.UNSUPPORTED_OP


class InterruptedDevice(SlowDevice):
    """A device whose compile an interrupt ends, as long as it is `interrupted`."""

    interrupted = True

    def compile_model(self, model, properties):
        if self.interrupted:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                raise ov.errors.CompileError("the compiler was ended") from error
        return super().compile_model(model, properties)


@pytest.mark.parametrize("device", ["AUTO:G", "MULTI:G,C", "MULTI:C,G", "BATCH:G", "HETERO:G,C"])
def test_an_interrupted_compile_is_no_refusal(device, clock):
    gpu, cpu = InterruptedDevice("G", kind="gpu"), SlowDevice("C", kind="cpu")
    gpu.clock = cpu.clock = clock
    core = core_with(gpu, cpu)
    with pytest.raises(KeyboardInterrupt):
        core.compile_model(CHAIN, device)
    gpu.interrupted = False
    compiled = core.compile_model(CHAIN, device)
    np.testing.assert_allclose(compiled({"x": X})[0], ANSWER)
    assert not [note for note in compiled.explain().notes if "ended" in note]


def test_an_interrupted_compile_in_the_background_ends_the_choice(clock):
    gpu, cpu = InterruptedDevice("G", kind="gpu"), SlowDevice("C", kind="cpu")
    gpu.clock = cpu.clock = clock
    core = core_with(gpu, cpu)
    compiled = settled(core.compile_model(CHAIN, "AUTO:G,C"))
    np.testing.assert_allclose(compiled({"x": X})[0], ANSWER)
    assert compiled.execution_devices == ["C"]
    assert "C stays: an interrupt ended the choice" in compiled.explain().notes
    gpu.interrupted = False
    assert settled(core.compile_model(CHAIN, "AUTO:G,C")).execution_devices == ["G"]


def test_without_startup_fallback_an_interrupted_compile_is_told(clock):
    gpu, cpu = InterruptedDevice("G", kind="gpu"), SlowDevice("C", kind="cpu")
    gpu.clock = cpu.clock = clock
    with pytest.raises(KeyboardInterrupt):
        core_with(gpu, cpu).compile_model(CHAIN, "AUTO:G,C", {"ENABLE_STARTUP_FALLBACK": False})


def test_a_device_that_fails_while_it_is_measured_is_not_taken(clock):
    core, *_ = two(clock, fails_at_run=[1])
    compiled = settled(core.compile_model(CHAIN, "AUTO:G,C"))
    assert compiled.execution_devices == ["C"]
    assert "G was not chosen: the device fell over" in compiled.explain().notes


def test_a_model_that_nobody_takes_is_an_error_that_says_why():
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B", refuses=["Neg"]))
    with pytest.raises(UnsupportedOpError) as caught:
        core.compile_model(CHAIN, "AUTO:A,B")
    assert "No device of AUTO:A,B takes model 'm' as a whole" in str(caught.value)
    assert "no Exp" in str(caught.value)
    assert "no Neg" in str(caught.value)
    answer = core.query_model(CHAIN, "AUTO:A,B")
    assert set(answer) == {"a", "c", "d"}
    assert "not A: UNSUPPORTED_OP: no Exp" in answer.reasons["b"].detail


def failing(*runs, **config):
    """A model on a device that fails in some runs, with another one behind it."""
    core = core_with(FakeDevice("A", fails_at_run=runs), FakeDevice("B"))
    return core.compile_model(CHAIN, "AUTO:A,B", {"AUTO_SCHEDULE": "PRIORITY", **config})


def test_a_request_that_fails_runs_elsewhere_and_the_others_follow():
    compiled = failing(2)
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    first.infer(X)
    np.testing.assert_allclose(first.infer(X)[0], ANSWER, rtol=1e-6)
    assert compiled.execution_devices == ["B"]
    assert reason(compiled) == ("B", ov.ReasonCode.FALLBACK)
    assert "A failed to run, B did not: the device fell over" in compiled.explain().notes
    second.infer(X)
    assert compiled.execution_devices == ["B"]


def test_without_runtime_fallback_a_failure_is_an_error():
    compiled = failing(1, ENABLE_RUNTIME_FALLBACK=False)
    with pytest.raises(InferError, match="fell over"):
        compiled(X)
    np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)
    assert compiled.execution_devices == ["A"]


def test_what_fails_on_every_device_changes_nothing():
    core = core_with(FakeDevice("A", fails_at_run=[1]), FakeDevice("B", fails_at_run=[1]))
    compiled = core.compile_model(CHAIN, "AUTO:A,B", {"AUTO_SCHEDULE": "PRIORITY"})
    with pytest.raises(InferError, match="fell over"):
        compiled(X)
    assert compiled.execution_devices == ["A"]
    np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)


def test_a_queue_survives_a_device_that_fails():
    compiled = failing(*range(5, 100))
    queue = ov.AsyncInferQueue(compiled, 4)
    got = {}
    queue.set_callback(lambda request, index: got.update({index: request.results[0].copy()}))
    for index in range(24):
        queue.start_async(X * index / 24, index)
    queue.wait_all()
    assert sorted(got) == list(range(24))
    for index, result in got.items():
        np.testing.assert_allclose(result, evaluate(CHAIN, {"x": X * index / 24})[0], rtol=1e-6)
    assert compiled.execution_devices == ["B"]


def test_a_cancelled_request_goes_to_no_other_device():
    cancelled = threading.Event()

    class Meeting:
        def wait(self):
            request.cancel()
            cancelled.set()
            raise InferError("the device was interrupted")

    core = core_with(FakeDevice("A", meet=Meeting()), FakeDevice("B"))
    compiled = core.compile_model(CHAIN, "AUTO:A,B", {"AUTO_SCHEDULE": "PRIORITY"})
    request = compiled.create_infer_request()
    request.start_async(X)
    with pytest.raises(InferCancelledError):
        request.wait()
    assert cancelled.is_set()


def test_all_devices_together():
    core = core_with(FakeDevice("A"), FakeDevice("B"), FakeDevice("R", kind="reference"))
    hint = ov.properties.hint
    config = dict([hint.performance_mode(hint.PerformanceMode.CUMULATIVE_THROUGHPUT)])
    config["FLAVOUR"] = "sour"
    compiled = core.compile_model(CHAIN, "AUTO:A,B,R", config)
    assert compiled.execution_devices == ["A", "B"]
    np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)
    assert compiled.get_property("PERFORMANCE_HINT") == "CUMULATIVE_THROUGHPUT"


def test_gpus_are_tried_with_batches():
    core = core_with(FakeDevice("G", kind="gpu"))
    config = {"PERFORMANCE_HINT": "THROUGHPUT", "AUTO_SCHEDULE": "PRIORITY"}
    proto = model_of([node("Neg", ["x"], "y")], ["y"], shape=(1, 3))
    compiled = core.compile_model(proto, "AUTO:G", config)
    assert compiled.optimal_number_of_infer_requests == 8
    assert core.compile_model(CHAIN, "AUTO:G", config).optimal_number_of_infer_requests == 1
    config["ALLOW_AUTO_BATCHING"] = "NO"
    assert core.compile_model(proto, "AUTO:G", config).optimal_number_of_infer_requests == 1


def test_devices_get_their_properties():
    a, b = FakeDevice("A", refuses=["Exp"]), FakeDevice("B")
    core = core_with(a, b)
    config = {"DEVICE_PROPERTIES": {"B": {"FLAVOUR": "sour"}}, "PERF_COUNT": True}
    compiled = core.compile_model(CHAIN, "AUTO:A,B", config)
    assert [(p.FLAVOUR, p.PERF_COUNT) for p in b.seen_properties] == [("sour", True)]
    compiled(X)
    request = compiled.create_infer_request()
    request.infer(X)
    assert request.profiling_info


@pytest.mark.parametrize(
    ("device", "kind", "said"),
    [
        ("AUTO:A(4)", DeviceError, "AUTO takes no number behind a device; write 'A'"),
        ("AUTO:A,AUTO", DeviceError, "cannot be one of its own devices"),
        ("AUTO:A,NOTHERE", DeviceError, "no device 'NOTHERE'"),
        ("AUTO:-NOTHERE", DeviceError, "no device 'NOTHERE'"),
        ("AUTO:A,-A", DeviceError, "AUTO found no device"),
    ],
)
def test_lists_that_make_no_sense(device, kind, said):
    with pytest.raises(kind, match=said.replace("(", r"\(")):
        core_with(FakeDevice("A")).compile_model(CHAIN, device)


def test_a_property_of_nobody_is_refused():
    with pytest.raises(PropertyError, match="Neither AUTO nor any of A has a property 'NONSENSE'"):
        core_with(FakeDevice("A")).compile_model(CHAIN, "AUTO:A", {"NONSENSE": 1})


def test_a_device_can_be_left_out(core):
    names = core.compile_model(CHAIN, "AUTO:-CPU").get_property("MULTI_DEVICE_PRIORITIES")
    assert "REFERENCE" in names
    assert "CPU" not in names.split(",")


def test_exported_and_cached(tmp_path):
    core = core_with(FakeDevice("A"))
    compiled = core.compile_model(CHAIN, "AUTO:CPU,REFERENCE")
    again = core.import_model(compiled.export_model(), "AUTO")
    assert again.get_property("MULTI_DEVICE_PRIORITIES") == "CPU,REFERENCE"
    for config in ({"CACHE_DIR": str(tmp_path)},) * 2:
        cached = core.compile_model(CHAIN, "AUTO:CPU,REFERENCE", config)
        np.testing.assert_allclose(cached(X)[0], ANSWER, rtol=1e-6)
    assert cached.loaded_from_cache
    np.testing.assert_allclose(again(X)[0], ANSWER, rtol=1e-6)


def test_bound_calls_end_when_the_model_moves():
    """Device CPU binds calls once the same tensors have come some times."""
    gate = threading.Event()
    gpu = SlowDevice("G", gate=gate, kind="gpu")
    compiled = core_with(gpu).compile_model(CHAIN, "AUTO:G,CPU", {"AUTO_SCHEDULE": "PRIORITY"})
    request = compiled.create_infer_request()
    for _ in range(6):
        np.testing.assert_allclose(request.infer(X)[0], ANSWER, rtol=1e-6)
    gate.set()
    settled(compiled)
    assert compiled.execution_devices == ["G"]
    runs = gpu.runs
    for index in range(3):
        x = X + index
        np.testing.assert_allclose(request.infer(x)[0], evaluate(CHAIN, {"x": x})[0], rtol=1e-6)
    assert gpu.runs == runs + 3

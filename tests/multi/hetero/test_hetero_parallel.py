"""Submodels side by side: the same answers, and what is promised of failures holds."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import partita
from partita.errors import InferCancelledError, InferError
from partita_hetero.device_model import HeteroModel

from ..fakes import FakeDevice, FakeRunner, evaluate
from ..graphs import X, model_of, node
from .test_hetero_layouts import two_processors

PARALLEL = {"HETERO_EXECUTOR": "PARALLEL"}

BRANCHES = model_of(
    [
        node("Relu", ["x"], "a"),
        node("Sigmoid", ["a"], "b"),
        node("Neg", ["a"], "c"),
        node("Sin", ["c"], "d"),
        node("Add", ["b", "d"], "e"),
        node("Sqrt", ["b"], "f"),
        node("Mul", ["e", "f"], "y"),
    ],
    ["y", "f"],
)
PLACES = dict(zip("abcdefy", "LLRRLRL", strict=True))


def cut(core, left, right, config=None, proto=BRANCHES):
    model = core.read_model(proto)
    for op in model.ops:
        op.affinity = left if PLACES[op.name] == "L" else right
    return core.compile_model(model, f"HETERO:{left},{right}", {**PARALLEL, **(config or {})})


def processors(threads=1):
    core = two_processors()
    for device in ("CPU", "CPU2"):
        core.set_property(device, {"INFERENCE_NUM_THREADS": threads})
    return core


def check(request, x, proto=BRANCHES):
    got = request.infer({"x": x}).to_tuple()
    for have, want in zip(got, evaluate(proto, {"x": x}), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [{}, {"REJECT_NAN": True}, {"HETERO_TIMEOUT_MS": 60_000}, {"INFERENCE_NUM_THREADS": 2}],
)
def test_whatever_comes_in(config):
    settings = dict(config)
    core = processors(settings.pop("INFERENCE_NUM_THREADS", 1))
    request = cut(core, "CPU", "CPU2", settings).create_infer_request()
    for scale in range(1, 5):
        check(request, X * np.float32(scale))
    frozen = X * np.float32(9)
    frozen.flags.writeable = False
    check(request, frozen)
    check(request, np.asfortranarray(X))


def test_the_caller_s_own_outputs():
    request = cut(processors(), "CPU", "CPU2").create_infer_request()
    check(request, X)
    check(request, X)
    target = np.full(X.shape, np.nan, np.float32)
    request.set_output_tensor("y", target)
    for scale in (1, 2, 3):
        x = X * np.float32(scale)
        check(request, x)
        np.testing.assert_allclose(target, evaluate(BRANCHES, {"x": x})[0], rtol=1e-5)


def test_state_that_is_carried_from_run_to_run():
    """The last result comes in again, in the memory that it was written to."""
    proto = model_of([*BRANCHES.graph.node], ["y", "f"])
    request = cut(processors(), "CPU", "CPU2", proto=proto).create_infer_request()
    x = X.copy()
    for _ in range(6):
        want = evaluate(proto, {"x": x})
        got = request.infer({"x": x}, share_outputs=True)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4)
        request.set_input_tensor(request.get_output_tensor("f"))
        x = want[1]


def test_the_measured_run_keeps_the_order():
    core = processors()
    placed = cut(core, "CPU", "CPU2").device_model
    counting = placed.properties.model_copy(update={"PERF_COUNT": True})
    placed = HeteroModel(placed.compilation, placed.assembly, counting)
    request = partita.CompiledModel(placed).create_infer_request()
    for _ in range(3):
        check(request, X)
    timeline = placed.measured
    assert [span.name for span in timeline.spans] == [
        f"subgraph{submodel.number}" for submodel in placed.assembly.submodels
    ]
    ends = {span.name: span.end_us for span in timeline.spans}
    starts = {span.name: span.start_us for span in timeline.spans}
    assert min(starts.values()) == 0
    waits = placed.assembly.schedule.waits
    for index, others in enumerate(waits):
        for other in others:
            assert ends[timeline.spans[other].name] <= starts[timeline.spans[index].name]


def test_many_threads_on_one_compiled_model():
    compiled = cut(processors(), "CPU", "CPU2")
    wrong = []

    def work(seed):
        for turn in range(25):
            x = X * np.float32(1 + seed + turn / 25)
            got = compiled({"x": x}).to_tuple()
            want = evaluate(BRANCHES, {"x": x})
            if not all(map(np.allclose, got, want)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Binding(FakeDevice):
    """Binds its runs; a run of `broken` operators fails, bound or not."""

    def __init__(self, name):
        super().__init__(name)
        self.broken, self.calls, self.hold = "", 0, None

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.create_runner = lambda: BindingRunner(compiled)
        return compiled


class BindingRunner(FakeRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.ops = {op.name for op in compiled.model.ops}

    def run(self, inputs, outputs=None):
        if self.plugin.broken in self.ops:
            raise InferError("it is broken")
        results = super().run(inputs)
        for result, output in zip(results, outputs or (), strict=False):
            np.copyto(output.numpy(), result.numpy())
        return results if outputs is None else list(outputs)

    def bind(self, inputs, outputs, scratch=None):
        return Call(self, inputs, outputs)


class Call(partita.BoundCall):
    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        plugin = self.runner.plugin
        self.runner.run(self.inputs, self.outputs)
        plugin.calls += 1
        if plugin.hold is not None:
            plugin.hold()


def binding():
    core = partita.Core()
    devices = [Binding("L"), Binding("R")]
    for device in devices:
        core.register_plugin(device)
    return core, devices


@pytest.mark.parametrize("op", "abcdefy")
def test_what_fails_in_the_middle_moves_and_is_blamed(op):
    core, devices = binding()
    compiled = cut(core, "L", "R")
    request = compiled.create_infer_request()
    for scale in (1, 2, 3):
        check(request, X * np.float32(scale))
    assert all(device.calls for device in devices)
    submodel = next(
        submodel
        for submodel in compiled.device_model.assembly.submodels
        if "abcdefy".index(op) in submodel.ops
    )
    devices["LR".index(submodel.device)].broken = op
    for scale in (4, 5, 6):
        check(request, X * np.float32(scale))
    moved = {one.name for one in compiled.explain().ops if one.device != PLACES[one.name]}
    assert moved == {"abcdefy"[index] for index in submodel.ops}
    assert any("it is broken" in note for note in compiled.explain().notes)


def test_strict_raises_what_the_device_raised():
    core, (left, right) = binding()
    request = cut(core, "L", "R", {"STRICT": True}).create_infer_request()
    check(request, X)
    check(request, X)
    left.broken = right.broken = "d"
    with pytest.raises(InferError, match="it is broken"):
        request.infer({"x": X * 2})
    left.broken = right.broken = ""
    for scale in (3, 4, 5):
        check(request, X * np.float32(scale))


def test_cancelling_in_the_middle():
    core, (left, _) = binding()
    request = cut(core, "L", "R").create_infer_request()
    while not left.calls > 6:  # until all submodels' calls are bound, which takes some runs
        check(request, X)
    reached, may_go_on = threading.Event(), threading.Event()

    def hold():
        reached.set()
        assert may_go_on.wait(60)

    left.hold = hold
    request.start_async({"x": X})
    assert reached.wait(60)
    request.cancel()
    may_go_on.set()
    with pytest.raises(InferCancelledError):
        request.wait()
    left.hold = None
    for scale in itertools.accumulate((1, 1, 1)):
        check(request, X * np.float32(scale))

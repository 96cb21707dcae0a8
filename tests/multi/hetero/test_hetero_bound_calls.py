"""Requests whose submodels are bound: the same answers, and the right one is blamed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import partita
from partita.errors import InferCancelledError, InferError

from ..fakes import FakeDevice, FakeRunner, evaluate
from ..graphs import CHAIN, X, model_of, node, run
from .test_hetero_layouts import two_processors


def chain(count, ops=("Neg", "Abs", "Sin", "Exp", "Sqrt")):
    nodes = [node(ops[i % len(ops)], [f"v{i}"], f"v{i + 1}", f"op{i}") for i in range(count)]
    return model_of(nodes, [f"v{count}"], ("v0",))


def cut(core, proto, devices, config=None):
    model = core.read_model(proto)
    for index, op in enumerate(model.ops):
        op.affinity = devices[index % len(devices)]
    names = ",".join(dict.fromkeys(devices))
    return core.compile_model(model, f"HETERO:{names}", config)


EXECUTORS = ["LINEAR", "DATAFLOW", "PARALLEL"]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "config", [{}, {"PERF_COUNT": True}, {"REJECT_NAN": True}, {"HETERO_TIMEOUT_MS": 60_000}]
)
@pytest.mark.parametrize("devices", [["CPU", "CPU2"], ["CPU", "CPU2", "REFERENCE"]])
def test_a_chain_of_parts(executor, config, devices):
    proto = chain(12)
    compiled = cut(two_processors(), proto, devices, {"HETERO_EXECUTOR": executor, **config})
    request = compiled.create_infer_request()
    for scale in (1, 2, 3, 4):
        x = X * np.float32(scale)
        have = request.infer({"v0": x})[0]
        np.testing.assert_allclose(have, evaluate(proto, {"v0": x})[0], rtol=1e-5)


class Fickle(FakeDevice):
    """Writes to the tensors it is handed, but from its third run on to its own."""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.create_runner = lambda: FickleRunner(compiled)
        return compiled


class FickleRunner(FakeRunner):
    def run(self, inputs, outputs=None):
        results = super().run(inputs)
        if self.plugin.runs >= 3 or outputs is None or outputs[0] is None:
            return results
        np.copyto(outputs[0].numpy(), results[0].numpy())
        return list(outputs)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_device_that_changes_its_mind_is_read_where_it_writes(executor):
    core = two_processors()
    core.register_plugin(Fickle("F"))
    proto = chain(6)
    compiled = cut(core, proto, ["CPU", "F", "CPU2"], {"HETERO_EXECUTOR": executor})
    request = compiled.create_infer_request()
    for scale in (1, 2, 3, 4, 5):
        x = X * np.float32(scale)
        have = request.infer({"v0": x})[0]
        np.testing.assert_allclose(have, evaluate(proto, {"v0": x})[0], rtol=1e-5)


class Binding(FakeDevice):
    """Binds its runs; the calls fail when ``broken`` is set, and so does its second submodel."""

    broken = False
    bound = 0

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.create_runner = lambda: BindingRunner(compiled)
        return compiled


class BindingRunner(FickleRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.second = compiled.model.ops[0].name == "d"

    def run(self, inputs, outputs=None):
        self.plugin.runs = 0
        if self.plugin.broken and self.second:
            raise InferError("the second submodel is broken")
        return super().run(inputs, outputs)

    def bind(self, inputs, outputs, scratch=None):
        return Bound(self, inputs, outputs)


class Bound(partita.BoundCall):
    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        self.runner.run(self.inputs, self.outputs)
        self.runner.plugin.bound += 1


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_bound_part_that_fails_moves(executor):
    core = two_processors()
    device, other = Binding("F"), Binding("G")
    core.register_plugin(device)
    core.register_plugin(other)
    model = core.read_model(CHAIN)
    for op, name in zip(model.ops, ["CPU", "F", "G", "F"], strict=True):
        op.affinity = name
    compiled = core.compile_model(model, "HETERO:CPU,F,G", {"HETERO_EXECUTOR": executor})
    request = compiled.create_infer_request()
    for _ in range(2):
        request.infer({"x": X})
    assert (device.bound, other.bound) == (2, 1)
    device.broken = True
    have = request.infer({"x": X})[0]
    np.testing.assert_allclose(have, evaluate(CHAIN, {"x": X})[0], rtol=1e-6)
    devices = {op.name: op.device for op in compiled.explain().ops}
    assert devices["b"] == "F"
    assert devices["d"] != "F"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_output_that_the_caller_sets_later_is_written(executor):
    core = two_processors()
    device = Binding("F")
    core.register_plugin(device)
    model = core.read_model(CHAIN)
    for op, name in zip(model.ops, ["CPU", "F", "CPU2", "F"], strict=True):
        op.affinity = name
    compiled = core.compile_model(model, "HETERO:CPU,F,CPU2", {"HETERO_EXECUTOR": executor})
    request = compiled.create_infer_request()
    for _ in range(2):
        request.infer({"x": X})
    bound = device.bound
    (want,) = evaluate(CHAIN, {"x": X})
    target = np.full_like(want, np.nan)
    request.set_output_tensor(target)
    for _ in range(2):
        target[...] = np.nan
        request.infer({"x": X})
        np.testing.assert_allclose(target, want, rtol=1e-6)
    assert device.bound == bound + 2  # the submodel before goes on as it was bound


def test_an_error_that_no_device_can_help_changes_nothing():
    """An index out of bounds fails everywhere; the next request runs as before."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="a"),
        helper.make_node("Cast", ["a"], ["i"], name="i", to=TensorProto.INT64),
        helper.make_node("Gather", ["a", "i"], ["y"], name="y"),
    ]
    graph = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    compiled = cut(two_processors(), proto, ["CPU", "CPU2"])
    request = compiled.create_infer_request()
    good = np.array([-1, -2, -3, 0], np.float32)
    bad = np.array([-1, -2, -9, 0], np.float32)
    for _ in range(2):
        for _ in range(2):
            np.testing.assert_array_equal(request.infer({"x": good})[0], -good[[1, 2, 3, 0]])
        with pytest.raises(InferError):
            request.infer({"x": bad})
    np.testing.assert_array_equal(request.infer({"x": good})[0], -good[[1, 2, 3, 0]])


def test_cancelling_between_calls():
    core = two_processors()
    started, may_end = threading.Event(), threading.Event()

    class Slow(FakeDevice):
        def compile_model(self, model, properties):
            compiled = super().compile_model(model, properties)

            class Runner(FakeRunner):
                def run(self, inputs, outputs=None):
                    started.set()
                    may_end.wait(60)
                    return super().run(inputs, outputs)

            compiled.create_runner = lambda: Runner(compiled)
            return compiled

    core.register_plugin(Slow("S"))
    request = cut(core, chain(6), ["S", "CPU", "CPU2"]).create_infer_request()
    may_end.set()
    request.infer({"v0": X})
    request.infer({"v0": X})
    started.clear()
    may_end.clear()
    request.start_async({"v0": X})
    assert started.wait(60)
    request.cancel()
    may_end.set()
    with pytest.raises(InferCancelledError):
        request.wait()
    assert np.isfinite(request.infer({"v0": X})[0]).all()


def test_many_threads_on_one_compiled_model():
    proto = chain(20)
    compiled = cut(two_processors(), proto, ["CPU", "CPU2"])
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            x = rng.standard_normal((2, 3)).astype(np.float32)
            want = evaluate(proto, {"v0": x})[0]
            if not np.allclose(compiled({"v0": x})[0], want, rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_shapes_that_vary():
    proto = model_of(chain(6).graph.node, ["v6"], ("v0",), shape=("n", 3))
    request = cut(two_processors(), proto, ["CPU", "CPU2"]).create_infer_request()
    for rows in (1, 4, 1, 0):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_allclose(request.infer({"v0": x})[0], evaluate(proto, {"v0": x})[0])


def test_parts_of_one_cpu_agree_with_the_whole():
    run(two_processors(), CHAIN, "HETERO:CPU,CPU2", {"b": "CPU2", "d": "CPU2"})

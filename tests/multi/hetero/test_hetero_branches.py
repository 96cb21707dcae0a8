"""Branches on several devices that meet in a Concat: the same answers, whatever else happens."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import partita
from partita.errors import InferError
from partita_cpu.runtime.device_model import CpuRunner

from .test_hetero_layouts import compare, conv, expected

RNG = np.random.default_rng(3)
EXECUTORS = ["LINEAR", "DATAFLOW", "PARALLEL"]


def branches(outputs=("y",), joined=("a", "p", "c")):
    """A stem, three branches, a Concat, and two heads."""
    convs = [conv("x", "s", 4, 8), conv("s", "a", 8, 6, 1), conv("t", "c", 8, 16)]
    heads = [conv("k", "h", 30, 8), conv("k", "g", 30, 8, 1)]
    nodes = [
        convs[0][0],
        helper.make_node("Relu", ["s"], ["t"], name="t"),
        convs[1][0],
        helper.make_node("MaxPool", ["s"], ["p"], name="p", kernel_shape=[3, 3], pads=[1] * 4),
        convs[2][0],
        helper.make_node("Concat", list(joined), ["k"], name="k", axis=1),
        heads[0][0],
        heads[1][0],
        helper.make_node("Add", ["h", "g"], ["y"], name="y"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 9, 7])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [part[1] for part in (*convs, *heads)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def three_processors():
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    core.register_plugin("partita_cpu", "CPU3")
    for device in ("CPU", "CPU2", "CPU3"):
        core.set_property(device, {"INFERENCE_NUM_THREADS": 1})
    return core


PLACES = {"p": "CPU2", "c": "CPU2", "k": "CPU3", "g": "CPU2"}


def cut(core, proto, executor, places=PLACES, config=None):
    model = core.read_model(proto)
    for op in model.ops:
        op.affinity = places.get(op.name, "CPU")
    config = {"HETERO_EXECUTOR": executor, **(config or {})}
    return core.compile_model(model, "HETERO:CPU,CPU2,CPU3", config)


def picture():
    return RNG.standard_normal((1, 4, 9, 7)).astype(np.float32)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("config", [{}, {"PERF_COUNT": True}, {"REJECT_NAN": True}])
def test_branches_meet(executor, config):
    proto = branches()
    compiled = cut(three_processors(), proto, executor, config=config)
    for _ in range(3):
        compare(compiled, proto, picture())


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["k", "a"])
def test_what_applications_see_is_plain(executor, name):
    proto = branches(outputs=("y", name))
    compiled = cut(three_processors(), proto, executor)
    assert name not in {b.value for b in compiled.explain().boundaries if b.layout}
    compare(compiled, proto, picture())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("executor", EXECUTORS)
def test_random_cuts(executor, seed):
    rng = np.random.default_rng(seed)
    names = ("s", "t", "a", "p", "c", "k", "h", "g", "y")
    joined = [("a", "p", "c"), ("c", "a", "p")][seed % 2]
    proto = branches(joined=joined)
    places = {name: ("CPU", "CPU2", "CPU3")[rng.integers(3)] for name in names}
    compiled = cut(three_processors(), proto, executor, places, {"STRICT": True})
    for _ in range(2):
        compare(compiled, proto, picture())


@pytest.fixture
def told(monkeypatch):
    """What CPU's runners do instead of running, by device: "decline" outputs, or "fail"."""
    orders = {}
    make, plain = CpuRunner.__init__, CpuRunner.run

    def made(self, compiled, team):
        make(self, compiled, team)
        self.device = compiled.device

    def run(self, inputs, outputs=None):
        order = orders.get(self.device)
        if order == "fail":
            raise InferError("no")
        return plain(self, inputs, None if order == "decline" else outputs)

    monkeypatch.setattr(CpuRunner, "__init__", made)
    monkeypatch.setattr(CpuRunner, "run", run)
    return orders


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("device", ["CPU", "CPU2"])
def test_a_device_that_writes_elsewhere(executor, device, told):
    proto = branches()
    told[device] = "decline"
    compiled = cut(three_processors(), proto, executor)
    request = compiled.create_infer_request()
    for _ in range(4):
        x = picture()
        have = request.infer({"x": x})[0]
        np.testing.assert_allclose(have, expected(proto, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_writer_that_fails_moves(executor, told):
    proto = branches()
    told["CPU2"] = "fail"
    compiled = cut(three_processors(), proto, executor)
    for _ in range(3):
        compare(compiled, proto, picture())
    assert "CPU2" not in {op.device for op in compiled.explain().ops}

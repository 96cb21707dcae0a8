"""Tensors that decide a shape cross a cut: the run is the one for the elements that it reads."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ..fakes import FakeDevice, FakeRunner, evaluate
from ..graphs import X, node
from .test_hetero_bound_calls import chain
from .test_hetero_layouts import two_processors

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64

AXES = numpy_helper.from_array(np.array([0], np.int64), "axes")
READERS = {
    "Reshape": (["a", "k"], [[4, 16], [8, 8], [2, 32]]),
    "Expand": (["row", "k"], [[4, 8], [8, 8], [2, 8]]),
    "Tile": (["a", "k"], [[1, 2], [3, 1], [2, 2]]),
    "TopK": (["a", "k"], [[3], [8], [1]]),
    "Range": (["k0", "k1", "k2"], [[0, 9, 2], [4, 5, 1], [-3, 40, 7]]),
}
"""Operator to what it reads, and the sizes of one run after another."""


def crossing(op_type):
    """A model in which sizes are computed on one device and used on another one.

    The first device then writes a large tensor, which takes the room of all that is dead.
    """
    reads, sizes = READERS[op_type]
    nodes = [
        node("Relu", ["x"], "a"),
        node("ReduceSum", ["a", "axes"], "row", keepdims=1),
        node("Identity", ["i0"], "i"),
        node("Cast", ["i"], "k", to=INT64),
    ]
    if op_type == "Range":
        for index in range(3):
            nodes.append(node("Gather", ["k", f"b{index}"], f"k{index}", axis=0))
    outputs = ["b", "places"] if op_type == "TopK" else ["b"]
    nodes += [
        helper.make_node(op_type, reads, outputs, name="b"),
        node("Cast", ["b"], "c", to=FLOAT),
        node("ReduceSum", ["c"], "s", keepdims=0),
        node("Add", ["s", "big"], "y"),
        node("Neg", ["y"], "z"),
    ]

    def info(name, dims, kind=FLOAT):
        return helper.make_tensor_value_info(name, kind, dims)

    graph = helper.make_graph(
        nodes,
        "crossing",
        [info("x", [8, 8]), info("big", [64, 64]), info("i0", [len(sizes[0])], INT32)],
        [info("z", None)],
        [AXES, *(numpy_helper.from_array(np.array(i, np.int64), f"b{i}") for i in range(3))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SECOND = {"b", "c", "s", "z"}


@pytest.mark.parametrize("op_type", READERS)
@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
@pytest.mark.parametrize("devices", [("CPU", "CPU2"), ("CPU", "REFERENCE"), ("REFERENCE", "CPU")])
def test_sizes_that_cross_are_those_of_the_run(devices, executor, op_type):
    proto = crossing(op_type)
    model = two_processors().read_model(proto)
    core = two_processors()
    for op in model.ops:
        op.affinity = devices[op.name in SECOND]
    config = {"STRICT": "YES", "HETERO_EXECUTOR": executor}
    compiled = core.compile_model(model, f"HETERO:{','.join(devices)}", config)
    placed = {op.name: op.device for op in compiled.explain().ops}
    request = compiled.create_infer_request()
    rng = np.random.default_rng(0)
    _, sizes = READERS[op_type]
    for size in [*sizes[:1], *sizes[:1], *sizes, *sizes]:
        feeds = {
            "x": rng.standard_normal((8, 8), dtype=np.float32),
            "big": rng.standard_normal((64, 64), dtype=np.float32),
            "i0": np.array(size, np.int32),
        }
        have = request.infer(feeds)[0]
        np.testing.assert_allclose(have, evaluate(proto, feeds)[0], rtol=1e-4, atol=1e-5)
    assert {op.name: op.device for op in compiled.explain().ops} == placed
    assert not compiled.explain().notes


class Watchful(FakeDevice):
    """Looks whether its inputs are, when it is to bind calls, as they were in the run before."""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        compiled.create_runner = lambda: WatchfulRunner(compiled)
        return compiled


class WatchfulRunner(FakeRunner):
    def run(self, inputs, outputs=None):
        self.read = [tensor.numpy().copy() for tensor in inputs]
        results = super().run(inputs)
        if outputs is None or None in outputs:
            return results
        for output, result in zip(outputs, results, strict=True):
            output.numpy()[...] = result.numpy()
        return list(outputs)

    def bind(self, inputs, outputs, scratch=None):
        self.plugin.bound += 1
        for tensor, read in zip(inputs, self.read, strict=True):
            if tensor.numpy().tobytes() != read.tobytes():
                self.plugin.late.append(tensor)


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_calls_are_bound_while_their_inputs_are_there(executor):
    core = two_processors()
    device = Watchful("W")
    device.bound, device.late = 0, []
    core.register_plugin(device)
    proto = chain(12)
    model = core.read_model(proto)
    for index, op in enumerate(model.ops):
        op.affinity = ("CPU", "W")[index % 2]
    config = {"STRICT": "YES", "HETERO_EXECUTOR": executor}
    compiled = core.compile_model(model, "HETERO:CPU,W", config)
    have = compiled({"v0": X})[0]
    np.testing.assert_allclose(have, evaluate(proto, {"v0": X})[0], rtol=1e-5)
    assert device.bound >= 6
    assert not device.late

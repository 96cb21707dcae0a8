"""Small models over fake devices, compiled, run twice and compared with the reference evaluator."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .fakes import evaluate

X = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], np.float32)


def model_of(nodes, outputs, inputs=("x",), initializers=(), shape=(2, 3)):
    def info(name, dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    graph = helper.make_graph(
        nodes,
        "m",
        [info(name, shape) for name in inputs],
        [info(name, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op_type, inputs, output, name=None, **attributes):
    return helper.make_node(op_type, inputs, [output], name=name or output, **attributes)


CHAIN = model_of(
    [
        node("Relu", ["x"], "a"),
        node("Exp", ["a"], "b"),
        node("Neg", ["b"], "c"),
        node("Abs", ["c"], "d"),
    ],
    ["d"],
)


def run(core, proto, device, pins=None, config=None, feeds=None):
    model = core.read_model(proto)
    for op in model.ops:
        if pins and op.name in pins:
            op.affinity = pins[op.name]
    compiled = core.compile_model(model, device, config)
    feeds = feeds or {"x": X}
    for _ in range(2):  # the second run reuses every buffer of the first
        got = compiled(feeds).to_tuple()
        for have, want in zip(got, evaluate(proto, feeds), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5)
            assert have.dtype == want.dtype
    return compiled


def devices_of(compiled):
    return {op.name: op.device for op in compiled.explain().ops}

"""Squeeze as opset 11 writes it, whose axes count from either side."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import partita


def test_old_squeeze_takes_axes_of_either_sign():
    node = helper.make_node("Squeeze", ["x"], ["y"], axes=[-5, 3, 4])
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 2, 3, 1, 1]), ("y", [2, 3]))
    ]
    graph = helper.make_graph([node], "old", ports[:1], ports[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3, 1, 1)
    core = partita.Core()
    (y,) = core.compile_model(core.read_model(proto), "REFERENCE")({"x": x}).to_tuple()
    assert np.array_equal(y, x.reshape(2, 3))

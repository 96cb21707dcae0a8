"""Pads that take away more than there is: the border on the other side loses the rest."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import partita
from partita.errors import InputError

AMOUNTS = (-6, -3, -2, -1, 0, 1, 2, 4, 6)


def padding():
    """A model of one Pad by constants, whose amounts come at run time."""
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "pads", "value"], ["y"])],
        "single",
        [
            helper.make_tensor_value_info("x", 1, ["rows", "columns"]),
            helper.make_tensor_value_info("pads", 7, [4]),
            helper.make_tensor_value_info("value", 1, []),
        ],
        [helper.make_tensor_value_info("y", 1, ["a", "b"])],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE"])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_results_are_those_of_another_engine(device, size):
    """OPENCL kept the whole border, and elements that were to be cut off; REFERENCE refused."""
    model = padding()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    compiled = partita.Core().compile_model(model, device)
    x = np.arange(1, 3 * size + 1, dtype=np.float32).reshape(3, size)
    for low, high in itertools.product(AMOUNTS, AMOUNTS):
        feeds = {"x": x, "pads": np.array([1, low, 0, high]), "value": np.array(9, np.float32)}
        if size + low + high < 0:
            with pytest.raises(InputError):
                compiled(feeds)
        else:
            (found,) = compiled(feeds).to_tuple()
            np.testing.assert_array_equal(found, session.run(None, feeds)[0])

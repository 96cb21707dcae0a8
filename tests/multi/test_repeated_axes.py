"""Axes that are named twice, each with an amount of its own: ONNX leaves open what is computed.

onnxruntime refuses them, and so do all devices; some took the last amount, some each one in turn.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import partita
from partita.errors import PartitaError

DEVICES = ["CPU", "OPENCL", "REFERENCE"]
X = np.arange(1, 13, dtype=np.float32).reshape(1, 3, 4)
ROW = np.array([1, 1])
ZERO = np.array(0, np.float32)
SCALES = np.array([2, 3], np.float32)
REFUSALS = r"twice|more than once|repeated axis|don't match array|could not broadcast"
"""Ours, and those of ONNX's inference and evaluator, by which REFERENCE computes."""


def model_of(op_type, inputs, attributes, opset):
    """A model of one operation whose inputs but scales come at run time; ``None`` is left out."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(inputs)]
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    scales = [name for name, x in feeds.items() if x is SCALES]
    constants = [numpy_helper.from_array(feeds.pop(name), name) for name in scales]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)],
        "single",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), None)
            for name, x in feeds.items()
        ],
        [helper.make_empty_tensor_value_info("y")],
        constants,
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return model.SerializeToString(), feeds


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axes", [(1, 1), (1, -2)])
@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "opset"),
    [
        ("Slice", (ROW, np.array([3, 2])), None, 17),
        ("Slice", (), {"starts": [1, 1], "ends": [3, 2]}, 9),
        ("Pad", (np.array([1, 1, 0, 0]), ZERO), None, 19),
        ("Unsqueeze", (), None, 17),
        ("Unsqueeze", (), {}, 12),
        ("CenterCropPad", (np.array([2, 5]),), {}, 18),
        ("Resize", (None, SCALES), {}, 18),
    ],
)
def test_an_axis_that_is_named_twice_is_refused(
    core, device, axes, op_type, inputs, attributes, opset
):
    if attributes is None:
        inputs, attributes = (*inputs, np.array(axes)), {}
    else:
        attributes = {**attributes, "axes": list(axes)}
    if (op_type, axes) == ("Unsqueeze", (1, -2)):  # of the result, which has two dimensions more
        inputs, attributes = ((np.array([1, -4]),), {}) if inputs else ((), {"axes": [1, -4]})
    model, feeds = model_of(op_type, (X, *inputs), attributes, opset)
    with pytest.raises(PartitaError, match=REFUSALS):
        core.compile_model(model, device)(feeds)


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
@pytest.mark.parametrize("op_type", ["ReduceMax", "Squeeze"])
def test_what_reads_axes_as_a_set_takes_one_twice(core, device, op_type):
    """As onnxruntime does: whatever is done to such an axis is done once."""
    x = X if op_type == "ReduceMax" else X.reshape(3, 1, 4)
    model, feeds = model_of(op_type, (x, np.array([1, -2])), {}, 18)
    (found,) = core.compile_model(model, device)(feeds).values()
    wanted = x.max(axis=1, keepdims=True) if op_type == "ReduceMax" else x[:, 0]
    np.testing.assert_array_equal(found, wanted)


@pytest.fixture(scope="module")
def core():
    """With the installed devices."""
    return partita.Core()

"""What recurrent networks compute of their input, by products in bfloat16, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

from partita_cpu.llvm.levels import EVERY

from .test_native_layout import compiled

F32 = TensorProto.FLOAT
BATCH, HIDDEN = 3, 20
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""


def recurrent(op_type, steps, *, bias=True, width=40):
    """A model of both directions, for inputs of so many elements."""
    rng = np.random.default_rng(0)
    rows = GATES[op_type] * HIDDEN
    w = rng.standard_normal((2, rows, width)).astype(np.float32) * np.float32(0.2)
    r = rng.standard_normal((2, rows, HIDDEN)).astype(np.float32) * np.float32(0.2)
    weights = {"w": w, "r": r}
    if bias:
        weights["b"] = rng.standard_normal((2, 2 * rows)).astype(np.float32)
    node = helper.make_node(
        op_type, ["x", *weights], ["y"], direction="bidirectional", hidden_size=HIDDEN
    )
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info("x", F32, [steps, BATCH, width])],
        [helper.make_tensor_value_info("y", F32, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def noise(steps, width=40):
    return np.random.default_rng(steps).standard_normal((steps, BATCH, width)).astype(np.float32)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("bias", [False, True])
def test_inputs_are_multiplied_in_bfloat16(op_type, bias, level):
    """They were multiplied in float32, whatever precision was asked for."""
    model, x = recurrent(op_type, 9, bias=bias), noise(9)
    device = compiled(model, INFERENCE_PRECISION_HINT="bf16")
    (expected,) = onnxruntime_results(model, {"x": x})
    (found,) = device(x).to_tuple()
    np.testing.assert_allclose(found, expected, atol=2e-2)
    specs = [(x.shape, x.dtype)]
    steps = device.device_model.specializer.program(specs, None).steps
    functions = [step.fn.__name__ for step in steps]
    narrow = EVERY[level].dots_bfloat16
    assert ("input_products" in functions) != narrow
    assert np.abs(found - expected).max() < 1e-5 or narrow


@pytest.mark.parametrize("op_type", GATES)
def test_sequences_of_any_length(op_type):
    model = recurrent(op_type, "steps")
    device = compiled(model, INFERENCE_PRECISION_HINT="bf16")
    for steps in (1, 2, 50, 7, 400):
        (expected,) = onnxruntime_results(model, {"x": noise(steps)})
        (found,) = device(noise(steps)).to_tuple()
        np.testing.assert_allclose(found, expected, atol=2e-2)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("mode", ["ACCURACY", "PERFORMANCE"])
def test_both_directions_of_wide_inputs(op_type, mode):
    """Where AMX multiplies float32 in parts, the second was written over the first."""
    model, x = recurrent(op_type, 40, width=192), noise(40, width=192)
    (expected,) = onnxruntime_results(model, {"x": x})
    (found,) = compiled(model, EXECUTION_MODE_HINT=mode)(x).to_tuple()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_weights_that_have_no_number_in_bfloat16():
    """3.4e38 would be rounded to infinity."""
    model, x = recurrent("LSTM", 9), noise(9)
    for weights in model.graph.initializer:
        if weights.name == "w":
            array = numpy_helper.to_array(weights).copy()
            array[...] = np.finfo(np.float32).max
            weights.CopyFrom(numpy_helper.from_array(array, "w"))
    x[...] = 0
    (expected,) = onnxruntime_results(model, {"x": x})
    (found,) = compiled(model, INFERENCE_PRECISION_HINT="bf16")(x).to_tuple()
    np.testing.assert_allclose(found, expected, atol=2e-2)

"""What recurrent networks compute of inputs and states, by tiles, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_levels import float_levels
from judge import onnxruntime_results
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns, tile_rows
from partita_cpu.gemm.tile_kernels import tile_kernels
from partita_cpu.kernels.recurrent.products import StatePairs, add_pair_products
from partita_cpu.kernels.recurrent.recurrent import Cells, pairs_of_terms
from partita_cpu.llvm.levels import EVERY

from .test_native_layout import compiled

F32 = TensorProto.FLOAT
BATCH, HIDDEN = 3, 20
BY_PAIRS = [one for one in float_levels()[1:] if one.dots_bfloat16 and not one.tiles]
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
    """Where that is the faster arithmetic; else in float32, by the tiles of other products."""
    model, x = recurrent(op_type, 9, bias=bias), noise(9)
    device = compiled(model, INFERENCE_PRECISION_HINT="bf16")
    (expected,) = onnxruntime_results(model, {"x": x})
    (found,) = device(x).to_tuple()
    np.testing.assert_allclose(found, expected, atol=2e-2)
    specs = [(x.shape, x.dtype)]
    steps = device.device_model.specializer.program(specs, None).steps
    functions = [step.fn.__name__ for step in steps]
    narrow = EVERY[level].dots_bfloat16
    assert "input_products" not in functions
    assert (np.abs(found - expected).max() > 1e-5) == narrow


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


def pairs_of(device, *specs):
    """Whether states are multiplied in bfloat16."""
    steps = device.device_model.specializer.program(list(specs), None).steps
    return "lstm_pairs_loop" in [step.fn.__name__ for step in steps]


def lasting(batch, hidden, lengths, steps=7, direction="bidirectional"):
    """An LSTM of sequences of several lengths that begins with given states, and its inputs."""
    rng = np.random.default_rng(1)
    both = 2 if direction == "bidirectional" else 1
    shapes = {"w": (both, 4 * hidden, 10), "r": (both, 4 * hidden, hidden), "b": (both, 8 * hidden)}
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) * np.float32(0.3)
        for name, shape in shapes.items()
    }
    feeds = {
        "x": rng.standard_normal((steps, batch, 10)).astype(np.float32),
        "lengths": np.array(lengths, np.int32),
        "h": rng.standard_normal((both, batch, hidden)).astype(np.float32),
        "c": rng.standard_normal((both, batch, hidden)).astype(np.float32),
    }
    node = helper.make_node(
        "LSTM",
        ["x", "w", "r", "b", "lengths", "h", "c"],
        ["y", "last", "cell"],
        direction=direction,
        hidden_size=hidden,
    )
    kinds = {"lengths": TensorProto.INT32}
    graph = helper.make_graph(
        [node],
        "lasting",
        [
            helper.make_tensor_value_info(name, kinds.get(name, F32), array.shape)
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info(name, F32, None) for name in node.output],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


@pytest.mark.parametrize(
    ("batch", "hidden", "lengths"),
    [
        (1, 33, [7]),
        (5, 16, [7, 3, 7, 1, 7]),
        (31, 20, [7] * 31),
        (4, 1, [2, 2, 7, 7]),
    ],
)
@pytest.mark.parametrize("direction", ["bidirectional", "reverse"])
def test_states_are_multiplied_in_bfloat16(batch, hidden, lengths, direction, level):
    """They were multiplied in float32, whatever precision was asked for."""
    model, feeds = lasting(batch, hidden, lengths, direction=direction)
    device = compiled(model, INFERENCE_PRECISION_HINT="bf16")
    wanted = onnxruntime_results(model, feeds)
    found = device(list(feeds.values())).to_tuple()
    for one, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, expected, atol=4e-2)
    able = EVERY[level].dots_bfloat16 and not EVERY[level].tiles
    specs = [(array.shape, array.dtype) for array in feeds.values()]
    assert pairs_of(device, *specs) == able
    exact = compiled(model, EXECUTION_MODE_HINT="ACCURACY")
    assert not pairs_of(exact, *specs)


def test_weights_of_states_that_have_no_number_in_bfloat16():
    model, feeds = lasting(2, 8, [7, 7])
    for weights in model.graph.initializer:
        if weights.name == "r":
            array = numpy_helper.to_array(weights).copy()
            array[0, 3, 2] = np.finfo(np.float32).max
            weights.CopyFrom(numpy_helper.from_array(array, "r"))
    device = compiled(model, INFERENCE_PRECISION_HINT="bf16")
    assert not pairs_of(device, *[(array.shape, array.dtype) for array in feeds.values()])


@pytest.mark.parametrize("able", BY_PAIRS)
@pytest.mark.parametrize("hidden", [1, 7, 64])
def test_products_of_states_stay_within_their_memory(hidden, able, guarded):
    rows = 2 * tile_rows(able, Arithmetic.BF16) + 3
    cells = Cells(1, 1, rows, hidden, (4,), batch_first=False)
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((1, 4 * hidden, hidden)).astype(bfloat16).astype(np.float32)
    state = rng.standard_normal((rows, hidden)).astype(bfloat16).astype(np.float32)
    wide, even = tile_columns(able), (hidden + 1) // 2 * 2
    pairs = StatePairs(
        guarded.array(pairs_of_terms(cells, wide, weights)),
        guarded.array(np.zeros(rows * even, np.uint16)),
        guarded.array(np.zeros(wide + 2, np.float32)),
        tile_kernels(able, Arithmetic.BF16),
        tile_rows(able, Arithmetic.BF16),
        wide,
    )
    places = np.arange(rows) * cells.width
    places[4] = -1
    gates = rng.standard_normal((rows, cells.width)).astype(np.float32)
    wanted = gates.astype(np.float64)
    wanted[:, : 4 * hidden] += state.astype(np.float64) @ weights[0].T
    wanted[4] = gates[4]
    found, given = guarded.array(gates), guarded.array(state.reshape(-1))
    add_pair_products(given, hidden, pairs, 0, found.reshape(-1), cells.width, places, 0, rows)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("hint", ["ACCURACY", "PERFORMANCE"])
def test_rows_of_any_number_are_divided_among_tiles(op_type, hint, level):
    """States of up to six rows are one tile, more are several of about as many rows."""
    model = recurrent(op_type, 3)
    model.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_value")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"
    config = {"EXECUTION_MODE_HINT": hint, "INFERENCE_PRECISION_HINT": "f32"}
    request = compiled(model, **config).create_infer_request()
    rng = np.random.default_rng(0)
    for batch in rng.permutation(np.arange(1, 16)):
        x = rng.standard_normal((3, batch, 40)).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)

"""Inputs that do not fit each other, whatever the model declares of them: an error, and no crash.

Weights and parameters end at unreadable pages, so that a kernel that reads on ends the process.
"""

import numpy as np
import pytest
from campaign.guard import guarded
from models import node, value, weight
from onnx import TensorProto, helper

from partita.errors import PartitaError

RNG = np.random.default_rng(0)
SHORT = np.ones(2, np.int32)
TENTH = np.array(0.1, np.float32)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def bytes_of(*shape, kind=np.uint8):
    return RNG.integers(0, 100, shape).astype(kind)


def model_of(nodes, inputs, weights, **graph):
    """A model of ONNX's and onnxruntime's operators whose inputs are declared as they are."""
    infos = [
        value(name, x.shape, helper.np_dtype_to_tensor_dtype(x.dtype)) for name, x in inputs.items()
    ]
    result = helper.make_empty_tensor_value_info("y")
    arrays = [weight(name, array) for name, array in weights.items()]
    made = helper.make_graph(nodes, "unfit", infos, [result], arrays, **graph)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8)


@pytest.fixture
def run(core, monkeypatch):
    """Compiles and runs a model, its constants at unreadable pages."""
    from partita_cpu.runtime import device_model

    lower = device_model.lower

    def guarded_constants(model):
        graph = lower(model)
        for made in graph.nodes:
            for one in made.inputs:
                if one is not None and one.const is not None:
                    one.const = guarded(one.const)
        return graph

    monkeypatch.setattr(device_model, "lower", guarded_constants)

    def run(model, *feeds):
        compiled = core.compile_model(model.SerializeToString(), "CPU")
        return compiled.infer_new_request([guarded(feed) for feed in feeds])[0]

    return run


def quantized_convolution(weights, bias=None, **attributes):
    """A QLinearConv of an image of eight channels; returns model and image."""
    names = ["x", "s", "z", "w", "s", "z", "s", "z"] + (["b"] if bias is not None else [])
    x = bytes_of(1, weights.shape[1] * attributes.get("group", 1), 12, 12)
    given = {"w": weights, "s": TENTH, "z": np.zeros((), np.uint8)}
    given |= {} if bias is None else {"b": bias}
    made = node("QLinearConv", names, "y", **attributes)
    return model_of([made], {"x": x}, given), x


@pytest.mark.parametrize("groups", [1, 64])
def test_a_bias_that_is_too_short_for_a_convolution_of_declared_shapes(run, groups):
    """Nodes were rewritten by declared shapes before anybody asked whether inputs fit."""
    weights = bytes_of(64, 64 // groups, 3, 3)
    model, x = quantized_convolution(weights, SHORT, group=groups)
    with pytest.raises(PartitaError, match="the bias is to hold 64 elements"):
        run(model, x)
    made = node("Conv", ["x", "w", "b"], "y", group=groups)
    given = {"w": weights.astype(np.float32), "b": SHORT.astype(np.float32)}
    image = floats(1, 64, 12, 12)
    with pytest.raises(PartitaError, match="the bias is to hold 64 elements"):
        run(model_of([made], {"x": image}, given), image)


@pytest.mark.parametrize("kind", [np.int8, np.float16, np.float64])
@pytest.mark.parametrize("op_type", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_a_bias_of_other_numbers_than_kernels_read(run, op_type, kind):
    """Four bytes were read of each, though there was one."""
    dynamic = op_type == "DynamicQuantizeMatMul"
    x = floats(4, 64) if dynamic else bytes_of(4, 64)
    names = ["x", "w", "s", "", "b"] if dynamic else ["x", "w", "s", "s", "", "", "b"]
    given = {"w": bytes_of(64, 4096, kind=np.int8), "s": TENTH, "b": np.ones(4096, kind)}
    model = model_of([node(op_type, names, "y", domain="com.microsoft")], {"x": x}, given)
    with pytest.raises(PartitaError, match=rf"is {np.dtype(kind)}; takes float32"):
        run(model, x)


def test_a_claim_that_bits_of_16_are_floats(run):
    """The type of what onnxruntime's operators compute is the model's to tell, and it may lie."""
    x, z = floats(1, 8, 64, 64), floats(1, 64, 64, 64)
    nodes = [
        node("Conv", ["x", "w"], "c", pads=[1] * 4),
        node("QuantizeLinear", ["z", "s", "zero"], "m", domain="com.microsoft"),
        node("Transpose", ["m"], "t", perm=[0, 3, 1, 2]),
        node("Conv", ["t", "one"], "d"),
        node("Add", ["c", "t"], "k"),
        node("Add", ["k", "d"], "y"),
    ]
    given = {"w": floats(64, 8, 3, 3), "one": floats(64, 64, 1, 1), "s": TENTH}
    given["zero"] = np.zeros((), np.uint16)
    claim = value("m", z.shape, TensorProto.FLOAT)
    model = model_of(nodes, {"x": x, "z": z}, given, value_info=[claim])
    with pytest.raises(PartitaError, match="are float32 and uint16; expected one type"):
        run(model, x, z)


@pytest.mark.parametrize("pads", [[0, -5, 0, 0], [0, -5, 0, 5], [-3, -2, -4, -1], [2, -3, -4, 3]])
def test_convolutions_of_bytes_whose_pads_cut_off(run, pads):
    """Windows before the first column were written before the first row."""
    weights = bytes_of(8, 16, 3, 3)
    model, x = quantized_convolution(weights, pads=pads)
    whole = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (9, 9), (9, 9)])
    top, left, bottom, right = pads
    seen = whole[:, :, 9 - top : 21 + bottom, 9 - left : 21 + right]
    taps = np.lib.stride_tricks.sliding_window_view(seen, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwab,ocab->nohw", taps, weights.astype(np.int64))
    wanted = np.clip(np.rint(sums * np.float32(0.1)), 0, 255)
    np.testing.assert_array_equal(run(model, x), wanted)


@pytest.mark.parametrize("name", ["QuantizeLinear", "DequantizeLinear"])
def test_blocks_that_are_longer_than_memory(run, name):
    x = floats(3, 5) if name == "QuantizeLinear" else bytes_of(3, 5)
    scale = np.array([[0.5], [0.25], [2.0]], np.float32)
    blocks = {"axis": 1, "block_size": (1 << 31) - 1}
    model = model_of([node(name, ["x", "s"], "y", **blocks)], {"x": x}, {"s": scale})
    model.opset_import[0].version = 21
    wanted = x * scale if name == "DequantizeLinear" else np.clip(np.rint(x / scale), 0, 255)
    np.testing.assert_array_equal(run(model, x), wanted)


def test_windows_of_levels_that_go_backwards(run):
    """Strides below 1 are refused of ONNX's operators when they are read, but not of others."""
    names = ["x", "s", "z", "s", "z"]
    attributes = {"kernel_shape": [3, 3], "strides": [-1, -1], "domain": "com.microsoft"}
    x = bytes_of(1, 2, 9, 9)
    given = {"s": TENTH, "z": np.zeros((), np.uint8)}
    model = model_of([node("QLinearAveragePool", names, "y", **attributes)], {"x": x}, given)
    with pytest.raises(PartitaError, match="holds a number that is too small"):
        run(model, x)

"""Functions of quantized tensors are looked up, and are what onnxruntime computes step by step."""

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu.jit.isa import available
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.kernels.int8.quantized_elementwise import look_up

RNG = np.random.default_rng(17)


def text_model(nodes, inputs, constants, result):
    """A model of (operator, inputs, output, attributes), named after what they compute."""
    graph = helper.make_graph(
        [helper.make_node(kind, reads, [y], name=y, **attrs) for kind, reads, y, attrs in nodes],
        "g",
        inputs,
        [helper.make_tensor_value_info(result, TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model, feeds, config=None):
    """The result, and which operations were executed."""
    compiled = partita.Core().compile_model(
        model.SerializeToString(), "CPU", {"PERF_COUNT": True, **(config or {})}
    )
    request = compiled.create_infer_request()
    (result,) = request.infer(feeds).values()
    ran = (one for one in request.get_profiling_info() if one.status == "EXECUTED")
    return result, {one.node_name for one in ran if one.node_type != "Permute"}


STEPS = [
    ("DequantizeLinear", ["x", "s", "zx"], "f", {}),
    ("Div", ["f", "v"], "d", {}),
    ("QuantizeLinear", ["d", "s", "z"], "dq", {}),
    ("DequantizeLinear", ["dq", "s", "z"], "df", {}),
    ("Erf", ["df"], "e", {}),
    ("QuantizeLinear", ["e", "t", "z"], "eq", {}),
    ("DequantizeLinear", ["eq", "t", "z"], "ef", {}),
    ("Add", ["ef", "one"], "a", {}),
    ("Mul", ["f", "a"], "m", {}),
    ("QuantizeLinear", ["m", "s", "z"], "y", {}),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("shape", [(1,), (63,), (2, 32), (3, 5, 7, 11), (0, 4), ()])
def test_a_function_of_several_steps(shape, dtype):
    constants = {
        "s": np.float32(0.04),
        "t": np.float32(0.008),
        "z": np.uint8(128),
        "zx": dtype(3),
        "v": np.float32(np.sqrt(2)),
        "one": np.float32(1),
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    port = helper.make_tensor_value_info("x", kind, [f"d{k}" for k in range(len(shape))])
    model = text_model(STEPS, [port], constants, "y")
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max + 1, shape).astype(dtype)
    found, executed = run(model, {"x": x})
    assert executed <= {"y"}
    np.testing.assert_array_equal(found, onnxruntime_results(model, {"x": x})[0])


@pytest.mark.parametrize("threads", [1, 3])
def test_images_stay_channels_last(threads):
    weights = {
        name: RNG.integers(-9, 10, shape).astype(np.int8)
        for name, shape in (("w", (24, 8, 1, 1)), ("u", (16, 24, 3, 3)))
    }
    constants = {
        **weights,
        "s": np.float32(0.0513),  # no sum is halfway between two levels
        "t": np.float32(0.0217),
        "z": np.uint8(120),
        "n": np.int8(0),
        "low": np.float32(0),
        "high": np.float32(3),
    }
    nodes = [
        ("DequantizeLinear", ["x", "s", "z"], "f", {}),
        ("DequantizeLinear", ["w", "t", "n"], "wf", {}),
        ("Conv", ["f", "wf"], "c", {}),
        ("QuantizeLinear", ["c", "s", "z"], "cq", {}),
        ("DequantizeLinear", ["cq", "s", "z"], "cf", {}),
        ("Clip", ["cf", "low", "high"], "b", {}),
        ("QuantizeLinear", ["b", "t", "z"], "bq", {}),
        ("DequantizeLinear", ["bq", "t", "z"], "bf", {}),
        ("DequantizeLinear", ["u", "t", "n"], "uf", {}),
        ("Conv", ["bf", "uf"], "e", {"pads": [1, 1, 1, 1]}),
        ("QuantizeLinear", ["e", "s", "z"], "y", {}),
    ]
    port = helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 8, 13, 9])
    model = text_model(nodes, [port], constants, "y")
    x = RNG.integers(0, 256, (2, 8, 13, 9)).astype(np.uint8)
    found, executed = run(model, {"x": x}, {"INFERENCE_NUM_THREADS": threads})
    assert executed == {"c", "bq", "e"}
    np.testing.assert_array_equal(found, onnxruntime_results(model, {"x": x})[0])


@pytest.mark.parametrize("level", available(), ids=str)
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.uint8)])
@pytest.mark.parametrize("size", [1, 64, 65, 1000])
def test_each_level_looks_up_all_bytes(level, kinds, size):
    x = RNG.integers(0, 256, size).astype(np.uint8)
    table = RNG.permutation(256).astype(np.uint8).view(kinds[1])
    y = np.zeros(size, kinds[1])
    kernel = addresses(level).get("look_up_bytes", 0) if level.native else 0
    for thread in range(3):
        look_up(x.view(kinds[0]), table, y, kernel, thread, 3)
    np.testing.assert_array_equal(y, table[x])

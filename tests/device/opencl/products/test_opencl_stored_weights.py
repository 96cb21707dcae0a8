"""Weights of 16 bits on device OPENCL: without a copy in float32 on the host in between."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.system.array_conversion import converted
from partita_opencl.runtime import host_folding

from ..comparison import TILINGS, compiled

TYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
BOUNDS = {"f32": 1e-6, "f16": 2e-3, "bf16": 1.5e-2, "bf16x3": 2e-5}
ORDINARY = ["f32", "f16", "bf16"]


def network(dtype, *, summed=True):
    """Two products by stored weights; the second ones are summed too, if asked."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": (rng.standard_normal((48, 33)) / 7).astype(dtype),
        "v": (rng.standard_normal((33, 64)) / 6).astype(dtype),
    }
    nodes = [
        *(helper.make_node("Cast", [name], [f"{name}32"], to=TensorProto.FLOAT) for name in "wv"),
        helper.make_node("MatMul", ["x", "w32"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "v32"], ["y"], name="second"),
        helper.make_node("ReduceSum", ["v32" if summed else "y"], ["s"], name="sum", keepdims=0),
        helper.make_node("Mul", ["y", "s"], ["z"], name="scaled"),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 64]) for n in "yz"]
    graph = helper.make_graph(
        nodes,
        "stored",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 48])],
        outputs,
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return partita.Core().read_model(made.SerializeToString()), arrays, rng


def check(stored, precision, rows, tilings):
    """Compares with products in float64."""
    model, arrays, rng = network(TYPES[stored])
    x = rng.standard_normal((rows, 48)).astype(np.float32)
    w, v = (array.astype(np.float64) for array in arrays.values())
    y = x.astype(np.float64) @ w @ v
    for tiling in tilings:
        built = compiled(model, INFERENCE_PRECISION_HINT=precision, TILING=tiling)
        found = built.create_infer_request().infer({"x": x}).values()
        for mine, exact in zip(found, (y, y * v.sum()), strict=True):
            error = np.linalg.norm(np.array(mine) - exact)
            assert error <= BOUNDS[precision] * np.linalg.norm(exact)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("precision", ORDINARY)
@pytest.mark.parametrize("stored", TYPES)
def test_results_are_those_of_the_weights(stored, precision, rows):
    check(stored, precision, rows, TILINGS)


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("precision", ["f16", "bf16", "bf16x3"])
@pytest.mark.parametrize("stored", TYPES)
def test_matrix_units_get_the_weights(stored, precision):
    check(stored, precision, 5, ["LOCAL"])


@pytest.mark.parametrize(
    ("stored", "precision", "copied"),
    [
        *(("f16", "f16", 0), ("bf16", "bf16", 0), ("bf16", "f16", 0), ("f16", "bf16", 2)),
        *(("f16", "f32", 0), ("bf16", "f32", 0)),
    ],
)
def test_products_need_no_copy_in_float32(stored, precision, copied, monkeypatch):
    made = []

    def conversion(array, dtype):
        made.append(np.dtype(dtype))
        return converted(array, dtype)

    monkeypatch.setattr(host_folding, "converted", conversion)
    model, _, _ = network(TYPES[stored], summed=False)
    compiled(model, INFERENCE_PRECISION_HINT=precision)
    assert made == [np.float32] * copied

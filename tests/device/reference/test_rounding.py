"""Half precision is rounded once; infinities in sums of exponentials."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_corrections import both, floats

import partita


@pytest.mark.parametrize("opset", [13, 18])
def test_mean_of_large_halves(opset):
    x = np.full((3, 5), 60000, np.float16)
    got, want = both("ReduceMean", opset, [x], TensorProto.FLOAT16, keepdims=0)
    assert got == want == 60000


def test_sum_of_many_halves_is_rounded_once():
    x = (np.arange(4096, dtype=np.float32) % 7 + 0.25).astype(np.float16).reshape(1, -1)
    got, _ = both("ReduceSum", 13, [x], TensorProto.FLOAT16)
    assert got.dtype == np.float16
    assert got == np.float16(x.astype(np.float64).sum())


def test_layer_normalization_of_halves_around_1000():
    x = (1000 + floats(4, 64)).astype(np.float16)
    scale, bias = np.ones(64, np.float16), np.zeros(64, np.float16)
    got, want = both("LayerNormalization", 17, [x, scale, bias], TensorProto.FLOAT16)
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(got, want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    "row",
    [
        [-np.inf, -np.inf],
        [-np.inf, 2.0],
        [np.inf, 1.0],
        [np.inf, -np.inf],
        [1000.0, 999.0],
        [np.nan, 1.0],
    ],
)
def test_logsumexp_of_infinities(opset, row):
    x = np.array([row, [0.5, 1.5]], np.float32)
    inputs = [x] if opset < 18 else [x, np.array([1], np.int64)]
    given = {"axes": [1]} if opset < 18 else {}
    got, _ = both("ReduceLogSumExp", opset, inputs, keepdims=0, **given)
    with np.errstate(all="ignore"):
        want = np.logaddexp(*x.T.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_logsumexp_of_nothing():
    got, _ = both("ReduceLogSumExp", 13, [floats(2, 0)], axes=[1], keepdims=1)
    np.testing.assert_array_equal(got, np.full((2, 1), -np.inf, np.float32))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization_of_either_sign(p, axis):
    got, want = both("LpNormalization", 13, [floats(3, 5)], p=p, axis=axis)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_results_of_another_type_than_halves_keep_their_digits():
    q, k, v = (floats(1, 2, n, 4, seed=n) for n in (3, 5, 5))
    past = floats(1, 2, 2, 4, seed=9)
    feeds = {"q": q.astype(np.float16), "k": k.astype(np.float16), "v": v}
    feeds |= {"pk": past.astype(np.float16), "pv": past}
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT16, None),
        helper.make_tensor_value_info("keys", TensorProto.FLOAT16, None),
        helper.make_tensor_value_info("all_values", TensorProto.FLOAT, None),
    ]
    names = [value.name for value in outputs]
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], names)
    graph = helper.make_graph([node], "mixed", values, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    compiled = partita.Core().compile_model(proto, "REFERENCE")
    _, keys, together = compiled(feeds).to_tuple()
    np.testing.assert_array_equal(together, np.concatenate([past, v], 2))
    assert keys.dtype == np.float16

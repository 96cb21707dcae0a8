"""onnxruntime's fused operators of encoders on device OPENCL, against onnxruntime."""

import numpy as np
import pytest

import partita

from ..comparison import check, compiled, floats, integers, single


def contributed(op_type, arrays, attrs=None, **how):
    """A model of one operator of domain com.microsoft."""
    model, feeds = single(op_type, arrays, attrs, **how)
    model.graph.node[0].domain = "com.microsoft"
    return model, feeds


@pytest.mark.parametrize(
    ("op_type", "shapes", "attrs"),
    [
        ("BiasGelu", [(2, 3, 8), (8,)], {}),
        ("FastGelu", [(2, 3, 8), (8,)], {}),
        ("FastGelu", [(2, 3, 8)], {}),
        ("Gelu", [(2, 3, 8)], {}),
        ("QuickGelu", [(2, 3, 8)], {}),
        ("QuickGelu", [(2, 3, 8)], {"alpha": 0.7}),
    ],
)
def test_activations(op_type, shapes, attrs):
    arrays = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    check(*contributed(op_type, arrays, attrs))


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("skip", [(2, 3, 16), (1, 3, 16)])
def test_normalized_sums(count, skip):
    shapes = [(2, 3, 16), skip, (16,), (16,), (16,)][:count]
    arrays = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    model, feeds = contributed("SkipLayerNormalization", arrays, {"epsilon": 1e-6}, outputs=4)
    del model.graph.output[1:3]
    model.graph.node[0].output[1:3] = ["", ""]
    check(model, feeds)


@pytest.mark.parametrize(
    ("attrs", "shapes"),
    [
        ({"alpha": 0.5, "transB": 1}, [(2, 3, 4), (2, 5, 4)]),
        ({"transA": 1}, [(2, 4, 3), (2, 4, 5)]),
        ({"transBatchA": 1}, [(3, 2, 4), (2, 4, 5)]),
        ({"transA": 1, "transBatchB": 1}, [(2, 4, 3), (4, 2, 5)]),
        ({}, [(3, 4), (4, 5)]),
    ],
)
def test_products_of_turned_matrices(attrs, shapes):
    arrays = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    check(*contributed("FusedMatMul", arrays, attrs))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("terms", [False, True])
def test_attention(bias, padding, terms):
    arrays = [
        floats(2, 5, 24),
        floats(2, 7, 24, seed=1),
        floats(2, 7, 24, seed=2),
        floats(72, seed=3) if bias else None,
        np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32) if padding else None,
        floats(2, 3, 5, 7, seed=4) if terms else None,
    ]
    while arrays[-1] is None:
        arrays.pop()
    model, feeds = contributed("MultiHeadAttention", arrays, {"num_heads": 3})
    check(model, feeds)
    check(model, feeds, rtol=3e-2, atol=3e-2, INFERENCE_PRECISION_HINT="f16")


def test_attention_to_keys_of_another_one():
    arrays = [floats(2, 5, 24), floats(2, 3, 7, 8, seed=1), floats(2, 3, 7, 8, seed=2)]
    check(*contributed("MultiHeadAttention", arrays, {"num_heads": 3, "scale": 0.2}))


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embeddings(segments, mask):
    ids = {"low": 0, "high": 2, "dtype": np.int32}
    arrays = [
        integers(2, 5, low=0, high=9, dtype=np.int32),
        integers(2, 5, **ids) if segments else None,
        floats(9, 16),
        floats(6, 16, seed=1),
        floats(2, 16, seed=2) if segments else None,
        floats(16, seed=3),
        floats(16, seed=4),
        np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], np.int32) if mask else None,
    ]
    if not mask:
        arrays.pop()
    attrs = {"epsilon": 1e-6, "mask_index_type": 0}
    check(*contributed("EmbedLayerNormalization", arrays, attrs, outputs=2))


def test_words_that_the_table_does_not_have():
    arrays = [np.array([[1, 9]], np.int32), None, floats(9, 4), floats(6, 4), None]
    arrays += [floats(4), floats(4)]
    model, feeds = contributed("EmbedLayerNormalization", arrays, outputs=2)
    with pytest.raises(partita.PartitaError, match="EmbedLayerNormalization"):
        compiled(model).infer_new_request(feeds)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 1])
def test_divided_by_norms(p, axis):
    x = floats(2, 3, 40)
    x[0] = 0.0
    check(*single("LpNormalization", [x], {"p": p, "axis": axis}))


def test_attention_of_sizes_that_vary():
    arrays = [floats(2, 5, 24), floats(2, 7, 24, seed=1), floats(2, 7, 24, seed=2)]
    model, feeds = contributed("MultiHeadAttention", arrays, {"num_heads": 3}, dynamic=True)
    other = {"x0": floats(1, 4, 24), "x1": floats(1, 9, 24), "x2": floats(1, 9, 24, seed=1)}
    check(model, feeds, other)

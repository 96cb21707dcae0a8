"""A cache that GroupQueryAttention makes longer, as onnxruntime's grows: by what the model says."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita

HEADS, KV_HEADS, SIZE = 4, 2, 16
STEPS = [5, *[1] * 17, 3, *[1] * 17]
"""New tokens of each run."""


def attention(past, present):
    """A model of one attention, its caches declared so."""
    value, real = helper.make_tensor_value_info, TensorProto.FLOAT
    node = helper.make_node(
        "GroupQueryAttention",
        ["query", "key", "value", "past.key", "past.value", "seqlens_k", "total_sequence_length"],
        ["y", "present.key", "present.value"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [
            value("query", real, ["batch", "new", HEADS * SIZE]),
            *(value(name, real, ["batch", "new", KV_HEADS * SIZE]) for name in ("key", "value")),
            *(value(name, real, past) for name in ("past.key", "past.value")),
            value("seqlens_k", TensorProto.INT32, ["batch"]),
            value("total_sequence_length", TensorProto.INT32, []),
        ],
        [
            value("y", real, ["batch", "new", HEADS * SIZE]),
            *(value(name, real, present) for name in ("present.key", "present.value")),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def decoded(run):
    """All results of a decode whose cache is empty at first, and the cache at its end."""
    rng = np.random.default_rng(0)
    keys = values = np.zeros((1, KV_HEADS, 0, SIZE), np.float32)
    results, total = [], 0
    for new in STEPS:
        total += new
        drawn = [rng.standard_normal((1, new, n * SIZE)) for n in (HEADS, KV_HEADS, KV_HEADS)]
        names = "query", "key", "value"
        feeds = {name: x.astype(np.float32) for name, x in zip(names, drawn, strict=True)}
        feeds |= {"past.key": keys, "past.value": values}
        feeds |= {"seqlens_k": np.array([total - 1], np.int32)}
        feeds |= {"total_sequence_length": np.array(total, np.int32)}
        y, keys, values = run(feeds)
        assert keys.shape[2] == values.shape[2] == total
        results.append(y)
    return [*results, keys, values]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE", "HETERO:OPENCL,CPU"])
@pytest.mark.parametrize(
    ("past", "present"),
    [
        (["batch", KV_HEADS, "past", SIZE], None),
        (["batch", KV_HEADS, "past", SIZE], ["batch", KV_HEADS, None, SIZE]),
        (["batch", KV_HEADS, None, SIZE], ["batch", KV_HEADS, None, SIZE]),
        (["batch", KV_HEADS, None, SIZE], ["batch", KV_HEADS, "total", SIZE]),
        (["batch", KV_HEADS, "past", SIZE], ["batch", KV_HEADS, "total", SIZE]),
        (None, None),
    ],
)
def test_a_cache_of_no_declared_length_grows_from_nothing(device, past, present):
    model = attention(past, present)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    request = partita.Core().compile_model(model, device).create_infer_request()
    found = decoded(lambda feeds: [np.array(x) for x in request.infer(feeds).to_tuple()])
    expected = decoded(lambda feeds: session.run(None, feeds))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def with_numbers(fixed, places):
    """A model some of whose past caches have a number of places, and inputs with 5 tokens more."""
    model = onnx.load_from_string(attention(["batch", KV_HEADS, "past", SIZE], None))
    for place in fixed:
        model.graph.input[place].type.tensor_type.shape.dim[2].dim_value = places
    rng = np.random.default_rng(1)
    shapes = [(1, 5, n * SIZE) for n in (HEADS, KV_HEADS, KV_HEADS)]
    shapes += [(1, KV_HEADS, places, SIZE)] * 2
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays += [np.array([places + 4], np.int32), np.array(places + 5, np.int32)]
    feeds = {info.name: x for info, x in zip(model.graph.input, arrays, strict=True)}
    return model.SerializeToString(), feeds


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE", "HETERO:OPENCL,CPU"])
@pytest.mark.parametrize("fixed", [(), (3, 4)])
def test_a_cache_of_no_places_grows(device, fixed):
    model, feeds = with_numbers(fixed, 0)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found = partita.Core().compile_model(model, device)(feeds).to_tuple()
    for got, want in zip(found, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE", "HETERO:OPENCL,CPU"])
@pytest.mark.parametrize("fixed", [(3,), (4,), (3, 4)])
def test_a_number_of_places_is_a_capacity(device, fixed):
    """Of keys, of values or of both: what is said of one holds for the other."""
    model, feeds = with_numbers(fixed, 7)
    with pytest.raises(partita.errors.InputError, match=r"it may be 5 to 7, .* has room for"):
        partita.Core().compile_model(model, device)(feeds)

"""Random operators: types, shapes, moments, seeds."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from single_op import model_of, normal, run_ours

from partita.lowering import lower_proto
from partita_cpu.runtime.device_model import run_graph


def drawn(op_type: str, **attributes) -> np.ndarray:
    node = helper.make_node(op_type, [], ["y"], **attributes)
    end = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "random", [], [end])
    imports = [helper.make_opsetid("", 21)]
    return run_graph(lower_proto(helper.make_model(graph, opset_imports=imports)), [])[0]


def test_normal_numbers():
    y = drawn("RandomNormal", shape=[200, 200], mean=2.0, scale=3.0, seed=1.0)
    assert y.dtype == np.float32
    assert abs(y.mean() - 2) < 0.1
    assert abs(y.std() - 3) < 0.1


def test_uniform_numbers():
    y = drawn("RandomUniform", shape=[40_000], low=-1.0, high=3.0, dtype=TensorProto.DOUBLE)
    assert y.dtype == np.float64
    assert y.min() >= -1
    assert y.max() <= 3
    assert abs(y.mean() - 1) < 0.1


@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomUniform"])
def test_seeds(op_type):
    one, same, other = (drawn(op_type, shape=[9], seed=seed) for seed in (1.5, 1.5, 2.5))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert (drawn(op_type, shape=[9]) != drawn(op_type, shape=[9])).any()


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike"])
def test_like_another_tensor_even_a_constant(op_type):
    x = np.zeros((30, 4), np.float16)
    (y,) = run_ours(op_type, [x], constants=[0], seed=1.0)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert len(np.unique(y)) > 50
    (y,) = run_ours(op_type, [x], dtype=TensorProto.FLOAT, seed=1.0)
    assert y.dtype == np.float32


def test_bernoulli():
    chances = np.repeat(np.array([[0], [0.25], [1]], np.float32), 20_000, 1)
    (y,) = run_ours("Bernoulli", [chances], seed=3.0, dtype=TensorProto.INT64)
    assert y.dtype == np.int64
    np.testing.assert_allclose(y.mean(1), [0, 0.25, 1], atol=0.02)


def test_multinomial():
    logits = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-30]], np.float32))
    (y,) = run_ours("Multinomial", [logits], sample_size=20_000, seed=4.0)
    assert (y.dtype, y.shape) == (np.int32, (2, 20_000))
    for row, expected in zip(y, np.exp(logits), strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / row.size, expected, atol=0.02)


@pytest.mark.parametrize("opset", [9, 10, 13])
def test_dropout_at_inference_and_its_mask(opset):
    x = normal(1, 4, 5)
    y, mask = run_ours("Dropout", [x], outputs=2, opset=opset)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(mask, np.ones((4, 5), np.float32 if opset < 10 else np.bool_))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("constants", [(), (0, 1, 2)])
def test_dropout_in_training(dtype, constants):
    x, ratio = np.full((200, 200), 3, dtype), np.array(0.5, np.float32)
    inputs = [x, ratio, np.array(True)]
    y, mask = run_ours("Dropout", inputs, outputs=2, constants=constants)
    assert (y.dtype, mask.dtype) == (x.dtype, np.bool_)
    np.testing.assert_array_equal(y, np.where(mask, dtype(6), dtype(0)))
    assert abs(mask.mean() - 0.5) < 0.02
    assert (run_ours("Dropout", inputs, constants=constants)[0] != y).any()
    first, second = (run_ours("Dropout", inputs, seed=5)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_dropout_of_nothing_in_training():
    x = normal(1, 4, 5)
    (y,) = run_ours("Dropout", [x, np.array(0, np.float32), np.array(True)])
    np.testing.assert_array_equal(y, x)


def test_dropout_in_training_drops_what_onnx_drops():
    x = normal(1, 4, 5)
    inputs = [x, np.array(0.3, np.float32), np.array(True)]
    model = model_of("Dropout", inputs, outputs=2, seed=7)
    want = ReferenceEvaluator(model).run(None, {f"x{i}": a for i, a in enumerate(inputs)})
    for have, due in zip(run_ours("Dropout", inputs, outputs=2, seed=7), want, strict=True):
        np.testing.assert_allclose(have, due, rtol=1e-6)

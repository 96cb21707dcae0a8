"""Queries whose scores are all -inf attend to nothing, on every device."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import partita

SHAPE = (1, 2, 4, 16)


def arrays(kind):
    """Queries of which one has scores of -inf alone, another NaN, another +inf; keys, values."""
    q, k, v = np.abs(np.random.default_rng(0).standard_normal((3, *SHAPE))).astype(kind)
    q[0, 0, 1], q[0, 1, 0], q[0, 1, 3] = -np.inf, np.nan, np.inf
    return {"q": q, "k": k, "v": v}


def model(tensors, opset, constant, **attributes):
    """A model that adds 0 to an attention, of its inputs or of constants."""
    kind = helper.np_dtype_to_tensor_dtype(tensors["q"].dtype)
    given = [] if constant else list(tensors)
    graph = helper.make_graph(
        [
            helper.make_node("Attention", list(tensors), ["attended"], **attributes),
            helper.make_node("Add", ["attended", "zero"], ["y"]),
        ],
        "attention",
        [helper.make_tensor_value_info(name, kind, SHAPE) for name in [*given, "zero"]],
        [helper.make_tensor_value_info("y", kind, SHAPE)],
        [numpy_helper.from_array(tensors[name], name) for name in tensors if constant],
    )
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    zero = {"zero": np.zeros(SHAPE, tensors["q"].dtype)}
    return made.SerializeToString(), {name: tensors[name] for name in given} | zero


def attended(q, k, v):
    """In float64; ONNX's reference has 0 where the largest score is -inf."""
    with np.errstate(invalid="ignore"):
        scores = q.astype(np.float64) @ k.swapaxes(2, 3).astype(np.float64) / 4
        top = scores.max(-1, keepdims=True)
        powers = np.exp(scores - top)
        weights = np.where(np.isneginf(top), 0, powers / powers.sum(-1, keepdims=True))
        return weights @ v.astype(np.float64)


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE"])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(("kind", "tolerance"), [(np.float32, 1e-5), (np.float16, 2e-3)])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_scores_of_minus_infinity_attend_to_nothing(device, constant, opset, kind, tolerance):
    tensors = arrays(kind)
    made, feeds = model(tensors, opset, constant)
    (found,) = partita.Core().compile_model(made, device)(feeds).to_tuple()
    np.testing.assert_allclose(found, attended(**tensors), rtol=tolerance, atol=tolerance)
    assert (found[0, 0, 1] == 0).all()


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_so_do_scores_beside_closed_keys(device):
    """Also on the way of CPU that keeps scores in memory, which causal attention takes."""
    tensors = arrays(np.float32)
    tensors["q"][0, 0, 3] = -np.inf
    made, feeds = model(tensors, 23, False, is_causal=1)
    (found,) = partita.Core().compile_model(made, device)(feeds).to_tuple()
    assert (found[0, 0, [1, 3]] == 0).all()
    assert np.isnan(found[0, 1, [0, 3]]).all()
    np.testing.assert_allclose(found[0, 0, 0], tensors["v"][0, 0, 0], rtol=1e-6)

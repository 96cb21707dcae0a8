"""Support vector machines on device REFERENCE, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita

FEATURES = 4


def machine(classes, rng, kernel="RBF"):
    """A classifier of random vectors, three for each class, that tells probabilities."""
    vectors, pairs = 3 * classes, classes * (classes - 1) // 2
    node = helper.make_node(
        "SVMClassifier",
        ["x"],
        ["label", "shares"],
        domain="ai.onnx.ml",
        classlabels_ints=list(range(classes)),
        coefficients=rng.standard_normal((classes - 1) * vectors).tolist(),
        kernel_params=[0.3, 0.0, 3.0],
        kernel_type=kernel,
        prob_a=rng.uniform(-2, -0.5, pairs).tolist(),
        prob_b=rng.uniform(-0.5, 0.5, pairs).tolist(),
        rho=rng.standard_normal(pairs).tolist(),
        support_vectors=rng.standard_normal(vectors * FEATURES).tolist(),
        vectors_per_class=[3] * classes,
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "machine",
        [value("x", TensorProto.FLOAT, ["rows", FEATURES])],
        [
            value("label", TensorProto.INT64, ["rows"]),
            value("shares", TensorProto.FLOAT, ["rows", classes]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("rows", [0, 1, 20])
@pytest.mark.parametrize("kernel", ["RBF", "LINEAR"])
@pytest.mark.parametrize("classes", [2, 3, 4, 7])
def test_shares_of_classes_are_those_of_another_engine(classes, kernel, rows):
    rng = np.random.default_rng(classes)
    proto = machine(classes, rng, kernel)
    feeds = {"x": rng.standard_normal((rows, FEATURES)).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    label, shares = partita.Core().compile_model(proto, "REFERENCE")(feeds).to_tuple()
    assert shares.shape == (rows, classes)
    np.testing.assert_array_equal(label, wanted[0])
    np.testing.assert_allclose(shares, wanted[1], atol=1e-5)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)

"""Decision trees on device REFERENCE, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita

LEQ, GT, LEAF = "BRANCH_LEQ", "BRANCH_GT", "LEAF"
NODES = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 1, 0, 0],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0, 0.4, 0.0, 0.0],
    "nodes_modes": [LEQ, GT, LEAF, LEAF, LEAF, LEQ, LEAF, LEAF],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
}
LEAVES = {
    "treeids": [0, 0, 0, 1, 1],
    "nodeids": [2, 3, 4, 1, 2],
    "weights": [1.0, 2.0, 3.0, 0.5, 4.0],
}
REGRESSOR = {f"target_{name}": values for name, values in LEAVES.items()} | {
    "target_ids": [0, 1, 1, 0, 1],
    "n_targets": 2,
}
CLASSIFIER = {f"class_{name}": values for name, values in LEAVES.items()} | {
    "class_ids": [0, 1, 2, 0, 1],
    "classlabels_int64s": [5, 6, 7],
}
ROWS = np.array(
    [[np.nan, 1], [0, np.nan], [np.nan, np.nan], [np.inf, -np.inf], [0, 0], [0, -1]], np.float32
)


@pytest.mark.parametrize("ways", [None, [1, 0, 0, 0, 0, 1, 0, 0]])
@pytest.mark.parametrize(
    ("kind", "attributes", "outputs"),
    [
        ("TreeEnsembleRegressor", REGRESSOR, {"y": TensorProto.FLOAT}),
        ("TreeEnsembleClassifier", CLASSIFIER, {"y": TensorProto.INT64, "z": TensorProto.FLOAT}),
    ],
)
def test_missing_values_take_the_branch_that_is_told_or_the_false_one(
    kind, attributes, outputs, ways
):
    told = NODES if ways is None else NODES | {"nodes_missing_value_tracks_true": ways}
    node = helper.make_node(kind, ["x"], [*outputs], domain="ai.onnx.ml", **told, **attributes)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "trees",
        [value("x", TensorProto.FLOAT, ["rows", 2])],
        [value(name, type_, None) for name, type_ in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    compiled = partita.Core().compile_model(proto, "REFERENCE")
    for rows in (ROWS, ROWS[:0]):
        wanted = session.run(None, {"x": rows})
        for found, want in zip(compiled({"x": rows}).to_tuple(), wanted, strict=True):
            np.testing.assert_allclose(found, want, 1e-6)

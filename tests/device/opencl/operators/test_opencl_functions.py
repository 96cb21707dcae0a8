"""Operators that ONNX defines by others, which device OPENCL computes in parts."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ..comparison import TILINGS, build, check, compiled, core, floats, int64s, single


def test_normalized_by_mean_and_variance():
    check(*single("MeanVarianceNormalization", [floats(2, 3, 4, 5)], {"axes": [0, 2, 3]}))
    check(*single("MeanVarianceNormalization", [floats(2, 3, 4, 5)], dynamic=True))


@pytest.mark.parametrize(
    ("op_type", "arrays", "constant"),
    [
        ("CenterCropPad", [floats(5, 6), int64s(3, 8)], [1]),
        ("NegativeLogLikelihoodLoss", [floats(3, 4), int64s(0, 3, 2)], []),
        ("BlackmanWindow", [np.array(9)], [0]),
    ],
)
def test_by_the_reference(op_type, arrays, constant):
    model, feeds = single(op_type, arrays, constant=constant)
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    for tiling in TILINGS:
        (found,) = compiled(model, TILING=tiling)(feeds).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_refusals_name_the_operation_and_not_its_parts():
    nodes = [
        helper.make_node("ArgMax", ["z"], ["shape"], axis=1, keepdims=0),
        helper.make_node("CenterCropPad", ["x", "shape"], ["y"], name="crop"),
    ]
    model = build(nodes, {"x": floats(5, 6), "z": floats(2, 300)}, ["y"])
    reasons = core().query_model(core().read_model(model), "OPENCL").reasons
    assert reasons.keys() == {"crop"}
    assert "computed while the model runs" in reasons["crop"].detail

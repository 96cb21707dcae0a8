"""MaxRoiPool of device REFERENCE, beside onnxruntime, which has it for float32."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import partita

REGIONS = np.array(
    [[0, 1, 1, 5, 6], [1, 0, 0, 7, 8], [1, 3, 2, 2, 1], [0, -4, -3, 20, 30], [0, 12, 1, 15, 2]],
    np.float32,
)


def model_of(x, rois, **given):
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    ports = [
        helper.make_tensor_value_info(name, element, a.shape)
        for name, a in zip("xr", (x, rois), strict=True)
    ]
    result = helper.make_tensor_value_info("y", element, None)
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], "pool", **given)
    graph = helper.make_graph([node], "one", ports, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def computed(x, rois, **given):
    compiled = partita.Core().compile_model(model_of(x, rois, **given), "REFERENCE")
    return compiled({"x": x, "r": rois})["y"]


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
def test_regions_are_pooled(scale):
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 8)).astype(np.float32)
    given = {"pooled_shape": [3, 2], "spatial_scale": scale}
    session = onnxruntime.InferenceSession(model_of(x, REGIONS, **given).SerializeToString())
    (due,) = session.run(None, {"x": x, "r": REGIONS})
    np.testing.assert_array_equal(computed(x, REGIONS, **given), due)
    double = computed(x.astype(np.float64), REGIONS.astype(np.float64), **given)
    assert double.dtype == np.float64
    np.testing.assert_array_equal(double, due)


def test_what_is_refused():
    x = np.zeros((2, 1, 4, 4), np.float32)
    with pytest.raises(partita.PartitaError, match="of none of 2 images"):
        computed(x, np.array([[2, 0, 0, 1, 1]], np.float32), pooled_shape=[1, 1])
    with pytest.raises(partita.PartitaError, match="up to 4194304 parts"):
        computed(x, REGIONS, pooled_shape=[4096, 4096])


def test_regions_that_are_no_numbers():
    rois = np.array([[0, np.nan, 0, 1, 1], [0, 0, 0, np.inf, 1]], np.float32)
    assert computed(np.ones((1, 1, 4, 4), np.float32), rois, pooled_shape=[1, 1]).shape[0] == 2

"""Resize of images by the nearest pixel, between convolutions and by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from sampling import examples

from .test_native_sequences import check, model_of


@examples(60)
@given(
    st.tuples(*(st.integers(1, most) for most in (3, 40, 9, 9))),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.sampled_from(["round_prefer_floor", "floor", "ceil"]),
    st.sampled_from(["asymmetric", "half_pixel"]),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_nearest_along_both_axes(shape, sizes, rounding, transform, threads, seed):
    """Of planes, and of what a convolution leaves with channels last."""
    rng = np.random.default_rng(seed)
    attributes = {"coordinate_transformation_mode": transform, "nearest_mode": rounding}
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["planes"], **attributes),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Resize", ["c", "", "", "sizes"], ["images"], **attributes),
        helper.make_node("Conv", ["images", "w"], ["y"]),
    ]
    weights = {
        "sizes": np.array([*shape[:2], *sizes]),
        "w": rng.standard_normal((shape[1], shape[1], 1, 1)).astype(np.float32),
    }
    model = model_of(nodes, {"x": shape}, ["planes", "y"], weights)
    x = rng.standard_normal(shape).astype(np.float32)
    check(model, {"x": x}, INFERENCE_NUM_THREADS=threads, EXECUTION_MODE_HINT="ACCURACY")

"""Rows of a pixel's channels become images and rows again without a step, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import numpy_helper, parser

import partita
from partita.contract.profiling import Status


def model_of(sizes, other):
    """A convolution of tokens (batch, height x width, channels) between two normalizations."""
    n, c, h, w = sizes
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[{n}, {h * w}, {c}] x) => (float[a, b, c] y{", float[d, e, f] z" if other else ""}) {{
        r = LayerNormalization(x, scale) t = Transpose <perm = [0, 2, 1]> (r)
        image = Reshape(t, shape)
        made = Conv <pads = [1, 1, 1, 1], group = {c}> (image, weights)
        flat = Reshape(made, row) back = Transpose <perm = [0, 2, 1]> (flat)
        y = LayerNormalization(back, scale) {other} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(c)
    constants = {
        "shape": np.array(sizes),
        "row": np.array([n, c, -1]),
        "scale": rng.standard_normal(c).astype(np.float32),
        "weights": rng.standard_normal((c, 1, 3, 3)).astype(np.float32),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model, rng.standard_normal((n, h * w, c)).astype(np.float32)


@pytest.mark.parametrize(
    ("other", "moves"),
    [
        ("", False),
        ("z = Relu(flat)", True),
        ("z = Relu(t)", True),
        ("i = Relu(image) z = Reshape(i, row)", True),
    ],
)
def test_random_sizes(other, moves):
    rng = np.random.default_rng(len(other))
    for _ in range(6):
        sizes = [int(n) for n in rng.integers([1, 2, 2, 2], [4, 40, 9, 9])]
        model, x = model_of(sizes, other)
        compiled = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True})
        request = compiled.create_infer_request()
        found = [np.array(value) for value in request.infer({"x": x}).values()]
        for got, expected in zip(found, onnxruntime_results(model, {"x": x}), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
        steps = [s for s in request.get_profiling_info() if s.status is Status.EXECUTED]
        ran = {step.node_type for step in steps if step.exec_type != "view"}
        assert bool(ran & {"Transpose", "Permute"}) == moves


def heads(rng):
    """Rows of two sizes, which become images of one, joined for a convolution (SegFormer)."""
    n, c, h, w = (int(size) for size in rng.integers([1, 2, 2, 2], [3, 40, 9, 9]))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[{n}, {h * w}, {c}] x, float[{n}, {4 * h * w}, {c}] z) => (float[a, b, d] y) {{
        r = LayerNormalization(x, scale) t = Transpose <perm = [0, 2, 1]> (r)
        image = Reshape(t, small)
        large = Resize <mode = "linear"> (image, , , sizes)
        s = LayerNormalization(z, scale) u = Transpose <perm = [0, 2, 1]> (s)
        other = Reshape(u, sizes)
        all = Concat <axis = 1> (large, other)
        made = Conv(all, weights)
        flat = Reshape(made, row) back = Transpose <perm = [0, 2, 1]> (flat)
        y = Relu(back) }}"""
    constants = {
        "small": np.array([n, c, h, w]),
        "sizes": np.array([n, c, 2 * h, 2 * w]),
        "row": np.array([n, 20, -1]),
        "scale": rng.standard_normal(c).astype(np.float32),
        "weights": rng.standard_normal((20, 2 * c, 1, 1)).astype(np.float32),
    }
    model = parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    rows = (rng.standard_normal((n, size * h * w, c)).astype(np.float32) for size in (1, 4))
    return model, dict(zip("xz", rows, strict=True))


def test_rows_that_are_resized_and_joined_for_a_convolution():
    rng = np.random.default_rng(2)
    for _ in range(6):
        model, feeds = heads(rng)
        compiled = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True})
        request = compiled.create_infer_request()
        found = np.array(request.infer(feeds)[0])
        (expected,) = onnxruntime_results(model, feeds)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=5e-5)
        steps = [s for s in request.get_profiling_info() if s.status is Status.EXECUTED]
        ran = {step.node_type for step in steps if step.exec_type != "view"}
        assert not ran & {"Transpose", "Permute"}

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

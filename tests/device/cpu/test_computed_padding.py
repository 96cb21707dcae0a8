"""Padding computed of an image's shape is the convolution's own, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import numpy_helper, parser

import partita
from partita.contract.profiling import Status


def model_of(image, channels, last, filling):
    """Two convolutions; what the second lacks of whole strides is padded, as for "SAME"."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[{", ".join(map(str, image))}] x) => (float[a, b, c, d] y) {{
        first = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        relu = Relu(first)
        shape = Shape(relu) sizes = Slice(shape, two, four)
        lacks = Mod(sizes, two) rows, columns = Split(lacks)
        h = Add(rows, o) w = Add(columns, o)
        pads = Concat <axis = 0> (z, z, h, w, z, z, h, w)
        padded = Pad(relu, pads{filling})
        made = Conv <strides = [2, 2], group = {channels}> (padded, w2, b2)
        {last} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(channels)
    constants = {
        "two": np.array([2]),
        "four": np.array([4]),
        "z": np.array([0]),
        "bound": np.float32(2.5),
        "o": np.array([1]),
        "w1": rng.standard_normal((channels, 3, 3, 3)).astype(np.float32),
        "b1": rng.standard_normal(channels).astype(np.float32),
        "w2": rng.standard_normal((channels, 1, 3, 3)).astype(np.float32),
        "b2": rng.standard_normal(channels).astype(np.float32),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(
    ("last", "filling", "pads"),
    [
        ("low = Neg(bound) y = Clip(made, low, bound)", "", False),
        ("y = Relu(made)", "", False),
        ("y = Identity(made)", "", False),
        ("y = Add(made, made)", "", False),
        ("y = Relu(made)", ", bound", True),
    ],
)
def test_random_sizes(fixed, last, filling, pads):
    rng = np.random.default_rng(len(last))
    for channels in (4, 20):
        sizes = [(1, 3, *(int(n) for n in rng.integers(5, 40, 2))) for _ in range(3)]
        for shape in sizes if fixed else sizes[:1]:
            model = model_of(shape if fixed else ("N", 3, "H", "W"), channels, last, filling)
            request = (
                partita.Core()
                .compile_model(model, "CPU", {"PERF_COUNT": True})
                .create_infer_request()
            )
            for given in [shape] if fixed else sizes:
                x = rng.standard_normal(given).astype(np.float32)
                (found,) = request.infer({"x": x}).values()
                (wanted,) = onnxruntime_results(model, {"x": x})
                np.testing.assert_allclose(np.array(found), wanted, rtol=1e-4, atol=1e-4)
                steps = [s for s in request.get_profiling_info() if s.status is Status.EXECUTED]
                if fixed:
                    assert any(step.node_type == "Pad" for step in steps) == pads

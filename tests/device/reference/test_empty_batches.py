"""Batches of no rows on device REFERENCE, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import partita

CASES = {
    "convolution turned round": "(float[B,4,5,5] x, float[4,6,3,3] w) => (y) {"
    " y = ConvTranspose <strides=[2,2], pads=[1,1,1,1]> (x, w) }",
    "in groups": "(float[B,4,5,5] x, float[4,3,3,3] w) => (y) {"
    " y = ConvTranspose <group=2> (x, w) }",
    "global mean": "(float[B,4,5,5] x) => (y) { y = GlobalAveragePool (x) }",
    "places between pixels": "(float[B,4,5,5] x, float[B,2,3,2] g) => (y) {"
    " y = GridSample (x, g) }",
    "rows of length 1": "(float[B,4] x) => (float[B,4] y) { y = ai.onnx.ml.Normalizer (x) }",
    "range of nothing": "(float[B,4] x) => (y, s, z) { y, s, z = DynamicQuantizeLinear (x) }",
}


@pytest.mark.parametrize("graph", CASES.values(), ids=CASES)
def test_no_rows_are_computed(graph):
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g {graph}'
    )
    for batch in (0, 2):
        feeds = {
            port.name: np.ones([dim.dim_value or batch for dim in dims], np.float32)
            for port in proto.graph.input
            if (dims := port.type.tensor_type.shape.dim) is not None
        }
        wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
        found = partita.Core().compile_model(proto, "REFERENCE")(feeds).to_tuple()
        for result, want in zip(found, wanted, strict=True):
            assert (result.shape, result.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)

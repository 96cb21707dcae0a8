"""Batches of no rows on device REFERENCE, against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper, parser

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
    "columns of an image": "(float[B,12,9] x) => (y) <int64[2] i = {4,4}, int64[2] b = {2,2}> {"
    " y = Col2Im (x, i, b) }",
    "slices of rows": "(float[B,4,3] x, int64[B,2,1] i) => (y) {"
    " y = GatherND <batch_dims=1> (x, i) }",
    "loss of each row": "(float[B,4,2] x, int64[B,2] i) => (y) {"
    ' y = NegativeLogLikelihoodLoss <reduction="none"> (x, i) }',
    "sum of losses": "(float[B,4] x, int64[B] i) => (y) {"
    ' y = NegativeLogLikelihoodLoss <reduction="sum"> (x, i) }',
    "range of nothing": "(float[B,4] x) => (y, s, z) { y, s, z = DynamicQuantizeLinear (x) }",
}


@pytest.mark.parametrize("graph", CASES.values(), ids=CASES)
def test_no_rows_are_computed(graph):
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 1]> g {graph}'
    )
    for batch in (0, 2):
        feeds = {
            port.name: np.ones(
                [dim.dim_value or batch for dim in dims],
                helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type),
            )
            for port in proto.graph.input
            if (dims := port.type.tensor_type.shape.dim) is not None
        }
        wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
        found = partita.Core().compile_model(proto, "REFERENCE")(feeds).to_tuple()
        for result, want in zip(found, wanted, strict=True):
            assert (result.shape, result.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("reduction", "due"), [("none", []), ("sum", 0), ("mean", np.nan)])
def test_nothing_is_lost_where_there_are_no_rows(reduction, due):
    """Losses over logits, which onnxruntime fails at: sums and means of nothing are numpy's."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[B,4] x, int64[B] t) => (y, p) {'
        f' y, p = SoftmaxCrossEntropyLoss <reduction="{reduction}"> (x, t) }}'
    )
    feeds = {"x": np.zeros((0, 4), np.float32), "t": np.zeros(0, np.int64)}
    loss, logarithms = partita.Core().compile_model(proto, "REFERENCE")(feeds).to_tuple()
    np.testing.assert_array_equal(loss, np.float32(due))
    assert logarithms.shape == (0, 4)
    mean = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[B,4] x, int64[B] t) => (y) {'
        f' y = NegativeLogLikelihoodLoss <reduction="{reduction}"> (x, t) }}'
    )
    found = partita.Core().compile_model(mean, "REFERENCE")(feeds)[0]
    np.testing.assert_array_equal(found, np.float32(due))


def test_rows_of_no_batch_have_no_mean_square():
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 23]> g (float[B,3,4] x, float[4] s) => (y) {'
        " y = RMSNormalization (x, s) }"
    )
    feeds = {"x": np.zeros((0, 3, 4), np.float32), "s": np.ones(4, np.float32)}
    assert partita.Core().compile_model(proto, "REFERENCE")(feeds)[0].shape == (0, 3, 4)


def test_sums_of_half_precision_stay_in_float32():
    """What takes batches of no rows has the corrections of others as well."""
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 22]> g (bfloat16[1,2,4099] x) =>'
        " (bfloat16[1,2,1] y) {"
        " y = GlobalAveragePool (x) }"
    )
    compiled = partita.Core().compile_model(partita.Core().read_model(proto), "REFERENCE")
    x = np.full((1, 2, 4099), 1000, ml_dtypes.bfloat16)
    assert compiled({"x": x})[0].tolist() == [[[1000], [1000]]]

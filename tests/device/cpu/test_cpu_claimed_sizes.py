"""Sizes that models claim: tables for them are made by runs, not by compiling."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, parser

import partita
from partita.errors import CompileError
from partita.lowering.emission import builder

N = 2**26
CLAIMS = {
    "ConvInteger": f"g (uint8[1,1,3,3] x, uint8[{N},1,3,3] w) => (int32[a,b,c,d] y) "
    "{ y = ConvInteger(x, w) }",
    "MatMulInteger": f"g (uint8[2,3] x, uint8[3,{N}] w) => (int32[a,b] y) "
    "{ y = MatMulInteger(x, w) }",
    "AffineGrid": f"g (float[1,2,3] x) => (float[a,b,c,d] y) <int64[4] s = {{1, 1, 1, {N}}}> "
    "{ y = AffineGrid(x, s) }",
    "AveragePool": f"g (float[1,1,{N}] x) => (float[a,b,c] y) "
    "{ y = AveragePool <kernel_shape = [2]> (x) }",
    "Dropout": f"g (float[{N}] x) => (float[a] y, bool[a] m) {{ y, m = Dropout(x) }}",
    "EyeLike": f"g (float[4,{N}] x) => (float[a,b] y) {{ y = EyeLike(x) }}",
    "Trilu": f"g (float[4,{N}] x) => (float[a,b] y) {{ y = Trilu(x) }}",
    "GatherElements": f"g (float[4,{N}] x, int64[4,{N}] i) => (float[a,b] y) "
    "{ y = GatherElements(x, i) }",
    "GatherND": f"g (float[{N},2] x, int64[{N},1] i) => (float[a] y) "
    "{ y = GatherND <batch_dims = 1> (x, i) }",
    "LayerNormalization": f"g (float[2,{N}] x, float[1] s) => (float[a,b] y) "
    "{ y = LayerNormalization(x, s) }",
    "GRU": f"g (float[2,{N},1] x, float[1,3,1] w, float[1,3,1] r) => (float[a,b,c,d] y) "
    "{ y = GRU <hidden_size = 1> (x, w, r) }",
    "ReduceMax": f"g (float[{N},0] x) => (float[a,b] y) <int64[1] d = {{1}}> "
    "{ y = ReduceMax(x, d) }",
    "Resize": f"g (float[1,1,{N}] x) => (float[a,b,c] y) <float[3] s = {{1, 1, 1.5}}> "
    '{ y = Resize <mode = "linear"> (x, , s) }',
    "Resize by a stretched filter": f"g (float[1,1,{N}] x) => (float[a,b,c] y) "
    "<float[3] s = {1, 1, 0.01}> "
    '{ y = Resize <mode = "cubic", antialias = 1> (x, , s) }',
    "Resize of some elements": "g (float[1,1,2,1] x) => (float[a,b,c,d] y) "
    '<float[4] s = {1, 1, 20000000, 1}> { y = Resize <mode = "linear"> (x, , s) }',
    "Resize below a half": f"g (float[4,{N}] x) => (float[a,b] y) <int64[2] s = {{4, 1}}> "
    '{ y = Resize <mode = "linear", antialias = 1, keep_aspect_ratio_policy = "not_larger"> '
    "(x, , , s) }",
    "Resize of a region": "g (float[8,8] x) => (float[a,b] y) "
    "<float[4] r = {0, 0, 1, 2}, int64[2] s = {20000, 20000}> "
    '{ y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, , s) }',
}
"""Models of one operator with a dimension of 2**26, or as large a result."""


def model(text):
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')


@pytest.mark.parametrize("op_type", CLAIMS)
def test_compiling_makes_no_table_for_a_size_that_is_only_claimed(op_type):
    core = partita.Core()
    core.compile_model(model("g (float[4] x) => (float[4] y) { y = Abs(x) }"), "CPU")
    tracemalloc.start()
    try:
        core.compile_model(model(CLAIMS[op_type]), "CPU")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * N


def test_slices_of_a_volume_are_not_counted_where_they_are_too_many():
    """Whether its windows reach into the padding matters for few slices alone."""
    text = f"g (float[1,1,{N},1,1] x, float[1,1,{N},1,1] w) => (float[a,b,c,d,e] y) "
    tracemalloc.start()
    try:
        partita.Core().compile_model(model(text + "{ y = Conv(x, w) }"), "CPU")
        assert tracemalloc.get_traced_memory()[1] < N
    finally:
        tracemalloc.stop()


def test_groups_that_are_only_claimed_are_refused():
    text = f"g (float[1,{2 * N},1,1] x, float[{2 * N},1,3,3] w) => (float[a,b,c,d] y) "
    text += f"{{ y = ConvTranspose <group = {N}> (x, w) }}"
    with pytest.raises(CompileError, match=r"would take more than \d+ steps; check the shapes"):
        partita.Core().compile_model(model(text), "CPU")


SMALL = {
    "ConvInteger": "g (uint8[1,2,5,6] x, uint8[3,2,3,2] w) => (int32[a,b,c,d] y) "
    "{ y = ConvInteger(x, w) }",
    "MatMulInteger": "g (uint8[2,3] x, uint8[3,4] w) => (int32[a,b] y) { y = MatMulInteger(x, w) }",
    "AffineGrid": "g (float[2,2,3] x) => (float[a,b,c,d] y) <int64[4] s = {2, 1, 4, 5}> "
    "{ y = AffineGrid(x, s) }",
    "AffineGrid of volumes": "g (float[2,3,4] x) => (float[a,b,c,d,e] y) "
    "<int64[5] s = {2, 1, 3, 4, 5}> { y = AffineGrid <align_corners = 1> (x, s) }",
    "AveragePool": "g (float[1,2,9,7] x) => (float[a,b,c,d] y) "
    "{ y = AveragePool <kernel_shape = [3, 2], pads = [1, 0, 1, 1]> (x) }",
    "EyeLike": "g (float[4,6] x) => (float[a,b] y) { y = EyeLike <k = 1> (x) }",
    "Trilu": "g (float[4,6] x) => (float[a,b] y) { y = Trilu <upper = 0> (x) }",
    "LayerNormalization": "g (float[2,5] x, float[1] s) => (float[a,b] y) "
    "{ y = LayerNormalization(x, s) }",
    "GRU": "g (float[2,4,3] x, float[1,6,3] w, float[1,6,2] r) => (float[a,b,c,d] y) "
    "{ y = GRU <hidden_size = 2> (x, w, r) }",
    "Pad": "g (float[4,6] x) => (float[a,b] y) <int64[4] p = {1, 2, 0, 3}> "
    '{ y = Pad <mode = "reflect"> (x, p) }',
    "GatherElements": "g (float[4,6] x) => (float[a,b] y) <int64[2,3] i = {0, 5, -1, 2, 3, 1}> "
    "{ y = GatherElements <axis = 1> (x, i) }",
    "Resize": "g (float[1,2,5,7] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 1.7, 0.6}> "
    '{ y = Resize <mode = "linear"> (x, , s) }',
    "Resize by a stretched filter": "g (float[1,2,3,20] x) => (float[a,b,c,d] y) "
    "<float[4] s = {1, 1, 1.5, 0.3}> "
    '{ y = Resize <mode = "cubic", antialias = 1, exclude_outside = 1> (x, , s) }',
    "Resize of a region": "g (float[1,1,5,7] x) => (float[a,b,c,d] y) "
    "<float[8] r = {0, 0, -0.3, 0.2, 1, 1, 0.7, 1.4}, int64[4] s = {1, 1, 9, 6}> "
    '{ y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize", '
    "extrapolation_value = 3.5> (x, r, , s) }",
    "GatherND": "g (float[2,3,2] x) => (float[a,b] y) <int64[2,1] i = {2, 0}> "
    "{ y = GatherND <batch_dims = 1> (x, i) }",
}


def drawn(rng, tensor):
    shape = [d.dim_value for d in tensor.shape.dim]
    if tensor.elem_type == TensorProto.UINT8:
        return rng.integers(0, 256, shape, np.uint8)
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", SMALL)
def test_tables_of_the_run_are_right(name, monkeypatch):
    monkeypatch.setattr(builder, "MOST_TABLE_BYTES", -1)
    proto = model(SMALL[name])
    rng = np.random.default_rng(3)
    feeds = {port.name: drawn(rng, port.type.tensor_type) for port in proto.graph.input}
    expected = onnxruntime_results(proto, feeds)
    request = partita.Core().compile_model(proto, "CPU").create_infer_request()
    for _ in range(3):  # the third is a bound call
        found = request.infer(feeds).to_tuple()
        for one, due in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, due, rtol=1e-5, atol=1e-5)

"""Transposed convolutions of a given size: inferred shapes are those that onnxruntime returns."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

import partita


@pytest.mark.parametrize("opset", [11, 17, 22])
@pytest.mark.parametrize("dims", ["2,3,4,7", "N,3,4,7", "N,3,H,7"])
@pytest.mark.parametrize(
    "attributes",
    [
        "output_shape=[3,20], strides=[1,3]",
        "output_shape=[2,6], dilations=[2,1]",
        "output_shape=[4,7], output_padding=[0,1], strides=[1,2]",
        "output_shape=[9,15], strides=[2,2]",
    ],
)
def test_sizes_below_those_of_the_input(attributes, dims, opset):
    """Inference leaves such a result with two dimensions; devices were blamed for all four."""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[{dims}] x, float[3,5,2,2] w) => (float[a,b,c,d] z) {{
      y = ConvTranspose <{attributes}> (x, w)
      z = Relu (y)
    }}""")
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 7)).astype(np.float32)
    w = np.random.default_rng(2).standard_normal((3, 5, 2, 2)).astype(np.float32)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x, "w": w})
    model = partita.Core().read_model(proto)
    (node,) = (node for node in model.ir.graph if node.op_type == "ConvTranspose")
    assert "output_shape" in node.attributes  # the model itself stays as it is
    assert node.outputs[0].shape is not None
    for size, due in zip(node.outputs[0].shape, want.shape, strict=True):
        assert not isinstance(size, int) or size == due
    (found,) = partita.Core().compile_model(model, "REFERENCE")([x, w]).to_tuple()
    np.testing.assert_allclose(found, want, atol=1e-5)

"""Attention of sizes that vary: what is inferred is what onnxruntime returns, or is not known."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

import partita

HEADS = "q_num_heads=4, kv_num_heads=2"
SIZES = {"B": 2, "S": 3, "K": 5, "P": 4, "H": 32, "W": 16, "T": 9}


def attention(attributes, opset=23, **dims):
    inputs = [f"float[{dims[name]}] {name}" for name in dims]
    past = ", , pk, pv" if "pk" in dims else ""
    return parser.parse_model(f"""<ir_version: 10, opset_import: ["" : {opset}]>
    g ({", ".join(inputs)}) => (float[i,j,k] y, scores) {{
      y, present_key, present_value, scores = Attention <{attributes}> (q, k, v{past})
    }}""")


def sizes_of(dims):
    return [SIZES[dim] if dim in SIZES else int(dim) for dim in dims.split(",")]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(
    "dims",
    [
        {"q": "B,S,H", "k": "B,K,W", "v": "B,K,W"},
        {"q": "B,S,32", "k": "B,K,16", "v": "B,K,W"},
        {"q": "B,S,H", "k": "B,K,16", "v": "B,K,16"},
        {"q": "B,S,32", "k": "2,5,16", "v": "2,5,16", "pk": "B,2,P,8", "pv": "B,2,P,8"},
        {"q": "2,3,32", "k": "2,5,16", "v": "2,5,16", "pk": "2,2,4,8", "pv": "2,2,4,8"},
    ],
)
def test_sizes_are_those_of_another_engine_or_not_known(dims, opset):
    proto = attention(HEADS, opset, **dims)
    model = partita.Core().read_model(proto)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(sizes_of(d)).astype(np.float32) for name, d in dims.items()}
    wanted = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for port, result in zip(model.outputs, wanted, strict=True):
        known = (
            []
            if port.shape is None
            else [
                (found, size)
                for found, size in zip(port.shape, result.shape, strict=True)
                if isinstance(found, int)
            ]
        )
        assert all(found == size for found, size in known), (port.shape, result.shape)
    y = partita.Core().compile_model(model, "CPU")(feeds)["y"]
    np.testing.assert_allclose(y, wanted[0], rtol=1e-4, atol=1e-5)

"""Attributes that stand for yes or no: numbers but 0 that all engines take for a yes.

Those of others are refused when a model is read (tests/unit/frontends/test_hostile_models.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import partita
from tests.judge import onnxruntime_results

POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
CASES = {
    "transA": ("Gemm", [(4, 4), (4, 4)], {}),
    "transB": ("Gemm", [(4, 4), (4, 4)], {}),
    "count_include_pad": ("AveragePool", [(1, 1, 6, 6)], POOL),
    "align_corners": ("GridSample", [(1, 1, 4, 4), (1, 3, 3, 2)], {}),
}


@pytest.mark.parametrize("number", [-1, 2, 2**32])
@pytest.mark.parametrize("name", CASES)
def test_any_number_but_0_is_a_yes(name, number):
    op_type, shapes, attributes = CASES[name]
    rng = np.random.default_rng(7)
    feeds = {
        f"x{place}": rng.uniform(-1, 1, shape).astype(np.float32)
        for place, shape in enumerate(shapes)
    }
    node = helper.make_node(op_type, [*feeds], ["y"], **attributes, **{name: number})
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in feeds.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", ports, [y])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    (wanted,) = onnxruntime_results(model, feeds)
    for device in ("CPU", "OPENCL", "REFERENCE"):
        compiled = partita.Core().compile_model(model.SerializeToString(), device)
        np.testing.assert_allclose(compiled(feeds)["y"], wanted, 1e-4, 1e-5)

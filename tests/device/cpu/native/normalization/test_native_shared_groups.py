"""Groups of planes that several threads normalize together, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita_cpu.llvm.levels import EVERY

from ..networks.test_native_layout import compiled

F32 = TensorProto.FLOAT
STEPS = {"sum_parts", "square_parts", "normalize_by_parts"}

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""


def normalization(shape, groups):
    """Of groups of channels, or with 0 of each; behind a step that moves the mean far from 0."""
    rng = np.random.default_rng(0)
    kind, attrs = ("GroupNormalization", {"num_groups": groups}) if groups else ("Instance", {})
    kind = kind if groups else f"{kind}Normalization"
    weights = {name: rng.standard_normal(shape[1]).astype(np.float32) for name in "sb"}
    weights["far"] = np.full([1] * len(shape), 1000, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "far"], ["moved"]),
            helper.make_node(kind, ["moved", "s", "b"], ["y"], **attrs),
        ],
        "groups",
        [helper.make_tensor_value_info("x", F32, shape)],
        [helper.make_tensor_value_info("y", F32, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, weights


@pytest.mark.parametrize(
    ("shape", "groups"), [((1, 2, 40001), 0), ((1, 6, 37, 101), 1), ((2, 8, 65, 67), 2)]
)
@pytest.mark.parametrize("threads", [1, 5])
def test_few_groups_are_shared_by_all_threads(shape, groups, threads, level):
    model, weights = normalization(shape, groups)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    moved = (x + weights["far"]).astype(np.float64)
    rows = moved.reshape(shape[0], groups or shape[1], -1)
    rows = rows - rows.mean(-1, keepdims=True)
    wanted = (rows / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)).reshape(shape)
    column = (1, shape[1], *[1] * (len(shape) - 2))
    wanted = wanted * weights["s"].reshape(column) + weights["b"].reshape(column)
    device = compiled(model, INFERENCE_NUM_THREADS=threads)
    np.testing.assert_allclose(device(x).to_tuple()[0], wanted, atol=3e-6)
    specs = [(x.shape, x.dtype)]
    program = device.device_model.specializer.program(specs, None)
    found = {step.fn.__name__ for step in program.steps}
    assert (found >= STEPS) == (EVERY[level].native and threads > 1)

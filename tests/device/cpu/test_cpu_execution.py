"""What device CPU tells of how a run was executed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import partita
from partita.zoo import builtin

LATE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N] x) => (float[M] z) <int64[1] axis = {0}> {
  [found] y = NonZero(x)
  [late] c = Cast <to=1> (y)
  [last] z = ReduceSum <keepdims=0> (c, axis)
}
"""
"""How long z is, only the run tells."""


def steps_of(request):
    return [(step.name, step.how) for step in request.explain_execution().steps]


def test_nothing_is_told_before_the_first_run():
    compiled = partita.Core().compile_model(builtin.model("digits"), "CPU")
    assert steps_of(compiled.create_infer_request()) == []


@pytest.mark.parametrize("runs", [1, 5], ids=["a run", "bound calls"])
def test_every_step_with_its_kernel(runs):
    model = partita.Core().read_model(builtin.model("digits"))
    compiled = partita.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    port = compiled.inputs[0]
    x = np.zeros([dim if isinstance(dim, int) else 1 for dim in port.shape], np.float32)
    for _ in range(runs):
        request.infer({port.name: x})
    steps = steps_of(request)
    convolutions = {op.name for op in model.ops if op.op_type == "Conv"}
    assert convolutions
    assert convolutions <= {name for name, _ in steps}
    computed = {name.removesuffix("/layout") for name, _ in steps}
    assert computed <= {op.name for op in model.ops}
    kernels = dict(steps)
    assert kernels["is_sure"] == "combine_nest"
    assert kernels["best_digit"] == "position_above"


def test_what_a_run_itself_made_known_is_told_too():
    proto = parser.parse_model(LATE)
    request = partita.Core().compile_model(proto, "CPU").create_infer_request()
    result = request.infer({"x": np.array([1, 0, 2], np.float32)})
    np.testing.assert_array_equal(result[0], [0, 2])
    names = [name for name, _ in steps_of(request)]
    assert names.index("found") < names.index("last")

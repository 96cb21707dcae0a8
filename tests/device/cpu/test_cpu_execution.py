"""What device CPU tells of how a run was executed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import partita
from partita.lowering.recording.later_steps import LaterSteps
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

VARYING = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 64] x) => (float[N, 64] z) {
  [first] y = Softmax <axis = 0> (x)
  [second] t = Softmax <axis = 1> (y)
  [last] z = Div (t, t)
}
"""
"""Its programs are recorded for all N."""


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


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
def test_steps_of_a_size_are_made_for_who_asks_for_them(device, monkeypatch):
    """A decoder's second token took as long as eight, since steps were made to be told of."""
    asked = []
    step = LaterSteps.__getitem__
    monkeypatch.setattr(
        LaterSteps, "__getitem__", lambda self, index: asked.append(index) or step(self, index)
    )
    model = parser.parse_model(VARYING)
    request = partita.Core().compile_model(model, device).create_infer_request()
    for size in range(4, 12):
        request.infer({"x": np.ones((size, 64), np.float32)})
    asked.clear()
    x = np.ones((3, 64), np.float32)
    kept = [request.infer({"x": x}, share_outputs=True)[0] for _ in range(4)]
    kept.append(request.infer({"x": kept[-1]})[0])  # what was read is left to the application
    assert asked == []
    np.testing.assert_array_equal(kept[-1], x)
    assert "last" in {name for _, name, _ in request.explain_execution().rows()}
    assert asked != []

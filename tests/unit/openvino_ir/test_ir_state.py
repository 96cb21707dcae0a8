"""Variables of an OpenVINO IR: kept from run to run, read, set and reset as OpenVINO does.

What is expected was checked against OpenVINO 2026.4 once; here it follows from the definition: a
variable is what the last run assigned, and before the first run what ReadValue reads.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from irs import Net

import partita
from partita.contract.bound_call import BoundCall
from partita.errors import (
    BoundCallEndedError,
    DeviceMemoryError,
    InferError,
    InputError,
    ModelFormatError,
    RequestBusyError,
)
from partita.frontends.reader import read_model
from partita.model.model import Port
from partita.model.variables import METADATA_KEY, Variable
from partita.runtime.binding.input_binding import STAGED_BYTES
from partita.runtime.variable_state import RequestState

ONES = np.ones((1, 3), np.float32)
BEGINNINGS = {
    "constant": (lambda net, x: [net.const(np.full((1, 3), 5, np.float32))], 5),
    "computed": (lambda net, x: [net.op("Multiply", x, net.const(np.float32(10)))], 10),
    "zeros": (lambda net, x: [], 0),
}


def adder(begin="zeros", variable="sum", width=3):
    """y = 2 (sum + x), and sum becomes sum + x."""
    net = Net()
    x = net.parameter("x", "f32", (1, width))
    out = [("f32", (1, width))]
    before = net.op(
        "ReadValue", *BEGINNINGS[begin][0](net, x), out=out, version="opset6", name="reader",
        variable_id=variable, variable_type="f32", variable_shape=f"1,{width}",
    )  # fmt: skip
    after = net.op("Add", before, x, name="adder")
    net.op("Assign", after, version="opset6", variable_id=variable)
    net.result(net.op("Multiply", after, net.const(np.float32(2)), name="doubled", names="y"))
    return net


def gatherer():
    """Rows put behind one another; a variable of unknown length that begins without any."""
    net = Net()
    x = net.parameter("x", "f32", (-1, 3))
    first = net.const(np.zeros((0, 3), np.float32))
    before = net.op(
        "ReadValue", first, out=[("f32", (-1, 3))], version="opset6", variable_id="rows",
        variable_type="f32", variable_shape="?,3",
    )  # fmt: skip
    after = net.op("Concat", before, x, out=[("f32", (-1, 3))], axis="0")
    net.op("Assign", after, version="opset6", variable_id="rows")
    net.result(net.op("ReLU", after, names="y"))
    return net


def compiled(net, device="CPU", pins=()):
    core = partita.Core()
    model = core.read_model(net.bytes(), bytes(net.weights))
    for op in model.ops:
        op.affinity = dict(pins).get(op.name)
    return core.compile_model(model, device)


DEVICES = [("CPU", ()), ("HETERO:CPU,REFERENCE", [("adder", "REFERENCE")])]


@pytest.mark.parametrize("begin", BEGINNINGS)
@pytest.mark.parametrize(("device", "pins"), DEVICES)
def test_a_variable_is_handed_on_and_can_be_reset(begin, device, pins):
    request = compiled(adder(begin), device, pins).create_infer_request()
    factor = BEGINNINGS[begin][1]
    for _ in range(2):
        total = factor
        for step in range(1, 5):
            total += step
            if begin == "computed" and step == 1:
                total = 10 * step + step
            found = request.infer({"x": ONES * step})["y"]
            np.testing.assert_array_equal(found, ONES * 2 * total)
            (state,) = request.query_state()
            np.testing.assert_array_equal(state.state.data, ONES * total)
        request.reset_state()
        np.testing.assert_array_equal(state.state.data, ONES * 0)


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU,REFERENCE"])
def test_a_variable_may_grow(device):
    request = compiled(gatherer(), device).create_infer_request()
    rows = np.empty((0, 3), np.float32)
    for count in (1, 2, 3):
        fresh = np.full((count, 3), count, np.float32)
        rows = np.concatenate([rows, fresh])
        np.testing.assert_array_equal(request.infer(fresh)["y"], rows)
    assert request.query_state()[0].state.shape == (6, 3)


def test_each_request_has_its_own():
    model = compiled(adder())
    one, other = model.create_infer_request(), model.create_infer_request()
    one.infer({"x": ONES})
    one.start_async({"x": ONES})
    one.wait()
    other.infer({"x": ONES})
    assert [r.query_state()[0].state.data[0, 0] for r in (one, other)] == [2, 1]


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_a_value_that_is_set_is_where_the_next_run_begins(begin):
    request = compiled(adder(begin)).create_infer_request()
    (state,) = request.query_state()
    assert state.name == "sum"
    value = np.full((1, 3), 100, np.float32)
    state.state = partita.Tensor(value)
    value[:] = 0  # a copy is kept
    assert "float32[1, 3]" in repr(state)
    assert request.infer(ONES)[0][0, 0] == 202
    state.state = [[7, 7, 7]]
    assert request.infer([ONES])[0][0, 0] == 16
    state.reset()
    assert request.infer({"x": ONES, "sum": ONES * 50})["y"][0, 0] == 102
    with pytest.raises(InputError, match=r"Input 'sum' takes float32\[1, 3\]; found float32\[3\]"):
        state.state = np.zeros(3, np.float32)


class Failing(BoundCall):
    """A bound call that fails when it is told so, once it has overwritten what it writes."""

    def __init__(self, call):
        self.call, self.error = call, None

    def __call__(self):
        self.call()
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def with_bound_calls(request):
    """Replaces what the request's runner binds, and tells of what was bound and run."""
    found = SimpleNamespace(calls=[], runs=0)
    bind, run = request.runner.bind, request.runner.run

    def failing(inputs, outputs):
        call = bind(inputs, outputs)
        assert call is not None
        found.calls.append(Failing(call))
        return found.calls[-1]

    def counted(*args):
        found.runs += 1
        return run(*args)

    request.runner.bind, request.runner.run = failing, counted
    return found


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_bound_calls_hand_small_state_on(begin):
    request = compiled(adder(begin)).create_infer_request()
    bound = with_bound_calls(request)
    factor, total, computes = BEGINNINGS[begin][1], BEGINNINGS[begin][1], begin == "computed"
    (state,) = request.query_state()
    for step in range(1, 40):
        if step in (9, 10, 25):
            state.reset()
            total, computes = factor, begin == "computed"
        if step in (12, 30):
            state.state = ONES * 100
            total, computes = 100, False
        if step in (18, 19):
            found = request.infer({"x": ONES * step, "sum": ONES * 7})["y"]
            total, computes = 7 + step, False
        else:
            found = request.infer({"x": ONES * step})["y"]
            total, computes = (10 * step if computes else total) + step, False
        np.testing.assert_array_equal(found, ONES * 2 * total)
        np.testing.assert_array_equal(state.state.data, ONES * total)
    assert (bound.runs, len(bound.calls)) == (2, 1)  # all other runs are calls that were bound


def test_what_a_failing_bound_call_wrote_is_not_handed_on():
    request = compiled(adder()).create_infer_request()
    bound = with_bound_calls(request)
    (state,) = request.query_state()
    for _ in range(4):
        request.infer({"x": ONES})
    bound.calls[0].error = InferError("not today")
    with pytest.raises(InferError, match="not today"):
        request.infer({"x": ONES})
    np.testing.assert_array_equal(state.state.data, ONES * 4)
    assert request.infer({"x": ONES})["y"][0, 0] == 10
    bound.calls[0].error = BoundCallEndedError("another shape")
    assert request.infer({"x": ONES})["y"][0, 0] == 12
    assert request.infer({"x": ONES})["y"][0, 0] == 14
    np.testing.assert_array_equal(state.state.data, ONES * 7)


def test_runs_of_a_queue_hand_small_state_on():
    queue = partita.AsyncInferQueue(compiled(adder()), 1)
    for _ in range(10):
        queue.start_async({"x": ONES})
        queue.wait_all()
    (request,) = list(queue)
    np.testing.assert_array_equal(request.query_state()[0].state.data, ONES * 10)


def test_no_copy_is_made_of_large_state_that_is_handed_on():
    request = compiled(adder(width=STAGED_BYTES)).create_infer_request()
    seen = []
    for _ in range(8):
        request.infer({"x": np.ones((1, STAGED_BYTES), np.float32)})
        seen.append(request.get_tensor("sum").numpy().ctypes.data)
    assert len(set(seen[2:])) == 2
    assert seen[2:] == [seen[2], seen[3]] * 3


def test_a_running_request_keeps_its_variables():
    request = compiled(adder()).create_infer_request()
    (state,) = request.query_state()
    refused = []

    run = request.runner.run

    def changing(inputs, outputs=None):
        for change in (state.reset, request.reset_state, lambda: setattr(state, "state", ONES)):
            with pytest.raises(RequestBusyError):
                change()
            refused.append(change)
        return run(inputs, outputs)

    request.runner.run = changing
    request.infer({"x": ONES})
    assert len(refused) == 3


def test_a_failed_run_leaves_a_variable_as_it_was():
    request = compiled(adder()).create_infer_request()
    request.infer({"x": ONES})
    with pytest.raises(InputError):
        request.infer({"x": np.ones(3, np.float32)})
    assert request.infer({"x": ONES})["y"][0, 0] == 4


def test_variables_survive_saving_export_and_reshape(tmp_path):
    net = adder("constant")
    core = partita.Core()
    model = core.read_model(net.bytes(), bytes(net.weights))
    assert [port.name for port in model.inputs] == ["x", "sum", "sum/begun"]
    model.save(tmp_path / "net.onnx")
    again = core.compile_model(tmp_path / "net.onnx", "CPU")
    restored = core.import_model(again.export_model(), "CPU")
    reshaped = core.compile_model(model.reshape([1, 3]), "HETERO:CPU")
    for one in (again, restored, reshaped):
        assert [one(ONES)["y"][0, 0] for _ in range(3)] == [12, 14, 16]


def test_what_is_assigned_may_be_an_input_or_stay_as_it_was():
    net = Net()
    x = net.parameter("x", "f32", (1, 3))
    net.op("Assign", x, version="opset3", variable_id="last")
    for name in ("last", "never"):
        first = net.const(np.full((1, 3), 9, np.float32))
        read = net.op("ReadValue", first, version="opset3", variable_id=name)
        net.result(net.op("ReLU", read, names=f"y_{name}"))
    model = compiled(net)
    found = [model({"x": ONES * step}) for step in (1, 2)]
    assert [float(one["y_last"][0, 0]) for one in found] == [9, 1]
    assert [float(one["y_never"][0, 0]) for one in found] == [9, 9]


# ---------------------------------------------------------------------------- refused


def two(kind):
    net = adder()
    value = (0, 0, "f32", (1, 3))
    net.op(kind, value, version="opset6", variable_id="sum", variable_type="f32")
    return net


def unread():
    net = adder()
    net.op("Assign", (0, 0, "f32", (1, 3)), version="opset6", variable_id="other")
    return net


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (two("ReadValue"), "another layer reads the variable 'sum' too"),
        (two("Assign"), "another layer assigns the variable 'sum' too"),
        (unread(), "the variable 'other' is assigned, and no layer reads it"),
        (adder(variable=""), "attribute 'variable_id' is missing"),
    ],
)
def test_variables_that_make_no_sense(net, said):
    with pytest.raises(ModelFormatError) as caught:
        read_model(net.bytes(), weights=bytes(net.weights))
    assert said in str(caught.value)


def test_variables_inside_of_bodies_are_refused():
    net = Net()
    condition, x = net.parameter("c", "boolean", ()), net.parameter("x", "f32", (3,))
    inside = ""
    for branch in ("then", "else"):
        body = Net(net)
        value = body.parameter("inner", "f32", (3,))
        read = body.op("ReadValue", value, version="opset6", variable_id="v")
        result = body.result(read)
        inside += (
            f'<{branch}_port_map><input external_port_id="1" internal_layer_id="0"/>'
            f'<output external_port_id="2" internal_layer_id="{result}"/></{branch}_port_map>'
            f"<{branch}_body>{body.inner()}</{branch}_body>"
        )
    out = [("f32", (3,))]
    net.result(net.layer("If", [condition, x], out, version="opset8", inside=inside)[0])
    with pytest.raises(ModelFormatError, match="variables inside of a body are not read"):
        read_model(net.bytes(), weights=bytes(net.weights))


def test_a_variable_that_no_memory_holds():
    ports = (Port(0, "v", np.dtype("float32"), (2**61, 3)),)
    with pytest.raises(DeviceMemoryError, match=r"Variable 'big' .* has no room"):
        memory = SimpleNamespace(tensors={})
        RequestState([Variable("big", "v", "w")], ports, (), None, None, memory, None)


ENTRY = {"name": "v", "read": "sum", "written": "adder", "begun": ""}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "lists no variables"),
        ("[5]", "lists no variables"),
        ('[{"name": "v"}]', "lists no variables"),
        (json.dumps([ENTRY | {"read": 5}]), "something else than texts"),
        (json.dumps([ENTRY | {"read": "nowhere"}]), "the input 'nowhere', which the model lacks"),
        (json.dumps([ENTRY | {"written": "nowhere"}]), "the output 'nowhere', which the model"),
        (json.dumps([ENTRY, ENTRY]), "the input 'sum', which the model lacks or another variable"),
        ("[" * 100000, "lists no variables"),
    ],
)
def test_metadata_of_variables_is_checked(text, said):
    net = adder()
    model = read_model(net.bytes(), weights=bytes(net.weights))
    model.ir.metadata_props[METADATA_KEY] = text
    with pytest.raises(ModelFormatError) as caught:
        _ = model.variables
    assert said in str(caught.value)

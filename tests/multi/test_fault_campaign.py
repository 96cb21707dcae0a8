"""A part of the fault campaign (benchmarks/faults.py): nothing lost, wrong or left behind."""

from __future__ import annotations

import threading
import time

import faults
import numpy as np
import onnx_ir as ir
import pytest
from faulty import KINDS, Fault, FaultyDevice
from onnx import numpy_helper

from partita.errors import InferError

from .fakes import FakeDevice, core_with, evaluate
from .graphs import CHAIN, X, devices_of, model_of, node

MODES = len(faults.EXECUTORS) * len(faults.MODES)


@pytest.mark.parametrize("kind", KINDS)
def test_no_request_is_lost_or_wrong_and_nothing_is_left(kind):
    fired = 0
    for case, outcome in faults.campaign(MODES, seed=7, kinds=(kind,)):
        assert not outcome.problems, str(case)
        fired += outcome.fired
    assert (fired > 0) == (kind != "none")
    del case, outcome
    assert faults.left_behind() == {"runners": 0, "hanging threads": 0}


def chain_on(device, config=None):
    """Relu on the faulty device A, Neg and Abs on B; the model and its compiled form."""
    proto = model_of(
        [node("Relu", ["x"], "a"), node("Neg", ["a"], "b"), node("Abs", ["b"], "c")], ["c"]
    )
    core = core_with(device, FaultyDevice("B", Fault()))
    model = core.read_model(proto)
    for op in model.ops:
        op.affinity = "A" if op.name == "a" else "B"
    return proto, core.compile_model(model, "HETERO:A,B", config)


@pytest.mark.parametrize(
    ("kind", "memory", "message"),
    [
        ("runner", "host", "no queue left"),
        ("upload", "a", "the bus is dead"),
        ("download", "a", "the bus is dead"),
        ("no tensor", "host", "Device 'A' returned ndarray for 'a'"),
        ("vanish", "host", "fell off the bus"),
    ],
)
def test_what_fails_round_a_run_moves_the_part_too(kind, memory, message):
    config = {"PERF_COUNT": kind == "upload"}  # then uploads are steps of their own
    proto, compiled = chain_on(FaultyDevice("A", Fault(kind), memory), config)
    np.testing.assert_array_equal(compiled({"x": X})[0], evaluate(proto, {"x": X})[0])
    assert set(devices_of(compiled).values()) == {"B"}
    assert message in compiled.explain().notes[0]
    assert message in compiled.explain()["a"].refused["A"].detail


def test_a_device_that_cannot_be_asked_takes_nothing():
    _, compiled = chain_on(FaultyDevice("A", Fault("query")))
    row = compiled.explain()["a"]
    assert row.refused["A"].code == "QUERY_FAILED"
    assert "the driver does not answer" in row.refused["A"].detail


def test_many_requests_that_meet_one_fault_count_it_once():
    """Eight requests have started when the device fails for good: one submodel, one strike."""
    proto = model_of([node("Relu", ["x"], "a"), node("Exp", ["a"], "b")], ["b"])
    core = core_with(FakeDevice("A", refuses=["Exp"], fails_at_run=range(1, 99)), FakeDevice("B"))
    compiled = core.compile_model(proto, "HETERO:A,B")
    requests = [compiled.create_infer_request() for _ in range(8)]
    for request in requests:
        request.start_async({"x": X})
    for request in requests:
        request.wait()
        want = evaluate(proto, {"x": X})[0]
        np.testing.assert_allclose(request.get_output_tensor().numpy(), want, rtol=1e-6)
    assert len(compiled.explain().notes) == 1


def test_a_runner_that_hangs_is_not_used_again_even_if_strict():
    device = FaultyDevice("A", Fault("hang", lasting=False))
    config = {"HETERO_TIMEOUT_MS": 3000, "STRICT": True}  # long enough for who does not hang
    proto, compiled = chain_on(device, config)
    request = compiled.create_infer_request()
    with pytest.raises(InferError, match="did not answer within 3000 ms"):
        request.infer({"x": X})
    np.testing.assert_array_equal(request.infer({"x": X})[0], evaluate(proto, {"x": X})[0])
    device.release.set()
    assert faults.left_behind()["hanging threads"] == 0


def test_a_device_that_hangs_all_the_time_does_not_eat_threads():
    device = FaultyDevice("A", Fault("hang"))
    _, compiled = chain_on(device, {"HETERO_TIMEOUT_MS": 20, "STRICT": True})
    messages = []
    for _ in range(12):
        with pytest.raises(InferError) as caught:
            compiled({"x": X})
        messages.append(str(caught.value))
    assert "did not answer" in messages[7]
    assert "8 earlier calls have not answered" in messages[8]
    while device.fired < 8:  # the last one may be about to hang
        time.sleep(1e-3)
    assert device.fired == 8
    device.release.set()
    assert faults.left_behind()["hanging threads"] == 0


def symbolic():
    proto = model_of([node("Relu", ["x"], "a"), node("Add", ["a", "x"], "b")], ["b"])
    for dim in proto.graph.input[0].type.tensor_type.shape.dim[:1]:
        dim.Clear()
        dim.dim_param = "N"
    return proto


def test_an_answer_whose_shape_contradicts_a_symbol_counts_as_a_failure():
    proto = symbolic()
    core = core_with(FaultyDevice("A", Fault("wrong shape")), FaultyDevice("B", Fault()))
    model = core.read_model(proto)
    model.ops[0].affinity, model.ops[1].affinity = "A", "B"
    compiled = core.compile_model(model, "HETERO:A,B")
    np.testing.assert_array_equal(compiled({"x": X})[0], evaluate(proto, {"x": X})[0])
    assert "returned float32[1, 3] as 'a'; expected float32[N, 3]" in compiled.explain().notes[0]


def test_a_symbol_of_a_model_that_is_wrong_does_no_harm():
    """A file may claim a shape that is wrong; inference for the input's own shape settles it."""
    proto = symbolic()
    proto.graph.node.insert(1, node("Unsqueeze", ["a", "axes"], "u"))
    proto.graph.node[2].input[0] = "u"
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), name="axes"))
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    model = core.read_model(proto)
    for op, device in zip(model.ops, "ABA", strict=True):
        op.affinity = device
    compiled = core.compile_model(model, "HETERO:A,B", {"STRICT": True})
    wrong = next(v for v in model.ir.graph if v.name == "u").outputs[0]
    assert compiled({"x": X})[0].shape == (1, 2, 3)
    wrong.shape = ir.Shape(["N", "N", 3])
    compiled = core.compile_model(model, "HETERO:A,B", {"STRICT": True})
    np.testing.assert_array_equal(compiled({"x": X})[0], evaluate(proto, {"x": X})[0])


def test_compiled_submodels_that_failures_leave_behind_are_bounded():
    core = core_with(FakeDevice("A", fails_at_run=range(1, 500, 2)), FakeDevice("B"))
    compiled = core.compile_model(CHAIN, "HETERO:A,B")
    for _ in range(100):
        compiled({"x": X})
        compiled.device_model.enable_device("A")
    assert len(compiled.device_model.compilation.compiler.compiled_before) <= 70


def test_devices_that_fail_at_the_same_time_are_both_blamed():
    proto = model_of(
        [node("Relu", ["x"], "a"), node("Neg", ["x"], "b"), node("Add", ["a", "b"], "c")], ["c"]
    )
    meeting = threading.Barrier(2, timeout=60)
    core = core_with(
        FakeDevice("A", meet=meeting, fault="crash"),
        FakeDevice("B", meet=meeting, fault="crash"),
        FakeDevice("C"),
    )
    model = core.read_model(proto)
    for op in model.ops:
        op.affinity = op.name.upper()
    compiled = core.compile_model(model, "HETERO:A,B,C", {"HETERO_EXECUTOR": "PARALLEL"})
    np.testing.assert_array_equal(compiled({"x": X})[0], evaluate(proto, {"x": X})[0])
    assert set(devices_of(compiled).values()) == {"C"}
    first = compiled.explain().notes[:2]  # then each gets the other's operation
    assert {note.partition(",")[0].partition(" (from")[2] for note in first} == {
        " 'a') and failed to run them: KeyError: 'lost'",
        " 'b') and failed to run them: KeyError: 'lost'",
    }


def test_a_device_that_has_the_whole_model_and_cannot_give_its_result_loses_it():
    proto = model_of([node("Relu", ["x"], "a"), node("Neg", ["a"], "b")], ["b"])
    core = core_with(FaultyDevice("A", Fault("download"), "a"), FaultyDevice("B", Fault()))
    compiled = core.compile_model(proto, "HETERO:A,B")
    np.testing.assert_array_equal(compiled({"x": X})[0], evaluate(proto, {"x": X})[0])
    assert set(devices_of(compiled).values()) == {"B"}

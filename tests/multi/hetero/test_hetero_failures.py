"""Devices that refuse, fail or answer wrongly lose only their submodel."""

from __future__ import annotations

import contextlib
import gc
import threading
import traceback
import weakref

import numpy as np
import pytest

from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import (
    CompileError,
    DeviceNotFoundError,
    InferError,
    InputError,
    OperandError,
    UnsupportedOpError,
)
from partita.tensors.tensor import HostTensor

from ..fakes import FakeCompiled, FakeDevice, FakeRunner, core_with, evaluate
from ..graphs import CHAIN, X, devices_of, model_of, node, run


def raising(error):
    """A method that raises it."""

    def method(*args):
        raise error

    return method


def test_a_device_that_claims_and_cannot_compile_loses_only_its_part():
    core = core_with(FakeDevice("A", breaks_on=["Neg"], refuses=["Exp"]), FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B")
    assert devices_of(compiled) == {"a": "A", "b": "B", "c": "B", "d": "B"}
    row = compiled.explain()["c"]
    assert row.refused["A"].code is ReasonCode.COMPILE_FAILED
    assert "cannot compile Neg" in row.refused["A"].detail
    assert "A claimed 2 operations" in compiled.explain().notes[0]


def test_a_device_that_names_what_it_cannot_compile_keeps_the_rest():
    class Choosy(FakeDevice):
        def compile_model(self, model, properties):
            driver = Reason(ReasonCode.DRIVER_FAULT, "the driver dies of it")
            answers = {op.name: driver if op.op_type == "Neg" else None for op in model.ops}
            QueryResult.of("A", answers).require_all(model)
            return super().compile_model(model, properties)

    compiled = run(core_with(Choosy("A"), FakeDevice("B")), CHAIN, "HETERO:A,B")
    assert devices_of(compiled) == {"a": "A", "b": "A", "c": "B", "d": "A"}
    assert str(compiled.explain()["c"].refused["A"]) == "DRIVER_FAULT: the driver dies of it"


def test_submodels_that_did_not_change_are_not_compiled_again():
    good = FakeDevice("A", refuses=["Exp"])
    core = core_with(good, FakeDevice("B", breaks_on=["Exp"]))
    run(core, CHAIN, "HETERO:A,B,REFERENCE")
    assert len(good.compiled) == 2


def test_strict_raises_what_the_device_raised():
    core = core_with(FakeDevice("A", breaks_on=["Neg"]), FakeDevice("B"))
    with pytest.raises(CompileError, match=r"Device 'A' claimed 4 operations.*cannot compile Neg"):
        run(core, CHAIN, "HETERO:A,B", config={"STRICT": True})


def test_if_every_device_fails_the_error_names_all():
    core = core_with(FakeDevice("A", breaks_on=["Neg"]), FakeDevice("B", breaks_on=["Neg"]))
    with pytest.raises(UnsupportedOpError, match=r"A: COMPILE_FAILED.*B: COMPILE_FAILED"):
        run(core, CHAIN, "HETERO:A,B")


class Unfit(FakeDevice):
    """Finds that a model's operations do not fit what they read."""

    def compile_model(self, model, properties):
        raise OperandError("operation 'c' has no axis 5")


def test_another_device_may_do_with_what_one_finds_unfit():
    compiled = run(core_with(Unfit("A"), FakeDevice("B")), CHAIN, "HETERO:A,B")
    assert set(devices_of(compiled).values()) == {"B"}


@pytest.mark.parametrize("devices", ["A,B", "B,A"])
def test_if_no_device_does_the_fault_of_the_model_is_told(devices):
    core = core_with(Unfit("A"), FakeDevice("B", breaks_on=["Neg"]))
    with pytest.raises(OperandError, match=r"^operation 'c' has no axis 5$"):
        run(core, CHAIN, f"HETERO:{devices}")


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_a_failing_run_is_an_error_if_strict_and_the_request_can_be_used_again(executor):
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B", fails_at_run=[1]))
    config = {"HETERO_EXECUTOR": executor, "STRICT": True}
    compiled = core.compile_model(CHAIN, "HETERO:A,B", config)
    request = compiled.create_infer_request()
    with pytest.raises(InferError, match="fell over"):
        request.infer({"x": X})
    np.testing.assert_allclose(request.infer({"x": X})[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_a_device_that_fails_while_running_loses_only_its_part(executor):
    flaky = FakeDevice("A", refuses=["Exp"], fails_at_run=[1])
    core = core_with(flaky, FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B", config={"HETERO_EXECUTOR": executor})
    assert devices_of(compiled) == {"a": "B", "b": "B", "c": "A", "d": "A"}
    assert compiled.explain()["a"].refused["A"].code is ReasonCode.RUN_FAILED
    assert "A claimed 1 operations (from 'a') and failed to run" in compiled.explain().notes[0]


def test_after_three_failures_a_device_is_left_alone_until_it_is_enabled():
    flaky = FakeDevice("A", refuses=["Exp"], fails_at_run=[2, 4, 6])
    core = core_with(flaky, FakeDevice("B"))
    nodes = [node("Relu", ["x"], "v0")]
    for index in range(1, 9):
        nodes.append(node("Exp" if index % 2 else "Neg", [f"v{index - 1}"], f"v{index}"))
    proto = model_of(nodes, ["v8"])
    compiled = run(core, proto, "HETERO:A,B")
    assert "A" not in devices_of(compiled).values()
    assert "enable_device('A')" in compiled.explain().notes[-1]
    compiled.device_model.enable_device("A")
    assert devices_of(compiled)["v0"] == "A"
    assert not compiled.explain().notes
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(proto, {"x": X})[0], rtol=1e-5)
    with pytest.raises(DeviceNotFoundError, match="not among the devices"):
        compiled.device_model.enable_device("REFERENCE")


class Blaming(FakeDevice):
    """Raises an error of the kind in each run."""

    def __init__(self, name, kind, **options):
        super().__init__(name, **options)
        self.error = kind

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        runner = compiled.create_runner()
        runner.run = raising(self.error("index 7 is out of range"))
        compiled.create_runner = lambda: runner
        return compiled


@pytest.mark.parametrize("kind", [InputError, OperandError])
@pytest.mark.parametrize("device", ["HETERO:A,B", "AUTO:A,B", "MULTI:A,B", "HETERO:C,A,B"])
def test_inputs_at_fault_are_told_at_once(kind, device):
    other = FakeDevice("B")
    core = core_with(Blaming("A", kind), other, FakeDevice("C", fault="crash"))
    config = {"AUTO_SCHEDULE": "PRIORITY"} if device.startswith("AUTO") else {}
    compiled = core.compile_model(CHAIN, device, config)
    known = len(other.compiled)
    for _ in range(4):
        with pytest.raises(InputError, match="index 7 is out of range") as raised:
            compiled({"x": X})
        cause = raised.value.__cause__
        assert (
            cause is None or cause.__cause__ is not cause
        )  # whoever follows causes comes to an end
    assert len(other.compiled) == known
    assert other.runs == 0


class Gated(FakeDevice):
    """After its first run it compiles only once it is let."""

    def __init__(self, name, **options):
        super().__init__(name, **options)
        self.compiling, self.gate = threading.Event(), threading.Event()

    def compile_model(self, model, properties):
        if self.runs:
            self.compiling.set()
            assert self.gate.wait(60)
        return super().compile_model(model, properties)


def test_runs_go_on_while_a_device_that_was_enabled_compiles():
    flaky, other = Gated("A", refuses=["Exp"], fails_at_run=[1]), FakeDevice("B")
    compiled = run(core_with(flaky, other), CHAIN, "HETERO:A,B")
    assert devices_of(compiled)["a"] == "B"
    other.fault = "nan"  # which the run tells of, to what requests share
    found = []
    runs = threading.Thread(target=lambda: found.append(compiled({"x": X})[0]))
    enables = threading.Thread(target=compiled.device_model.enable_device, args=["A"])
    enables.start()
    assert flaky.compiling.wait(60)
    runs.start()
    runs.join(50)
    ended = not runs.is_alive()
    flaky.gate.set()
    for thread in (runs, enables):
        thread.join(60)
    assert ended
    assert np.isnan(found[0]).all()
    assert devices_of(compiled)["a"] == "A"


def test_what_fails_on_every_device_changes_nothing():
    core = core_with(FakeDevice("A", fails_at_run=[1]), FakeDevice("B", fails_at_run=[1]))
    compiled = core.compile_model(CHAIN, "HETERO:A,B")
    with pytest.raises(InferError, match="fell over"):
        compiled({"x": X})
    assert set(devices_of(compiled).values()) == {"A"}
    assert not compiled.explain().notes
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"returned float32\[1, 3\] as 'a'; expected float32\[2, 3\]"),
        ("dtype", "returned float64"),
        ("count", "returned 0 tensors; expected 1"),
        ("nan", "returned NaN in 'a'"),
        ("hang", r"did not answer within 3000 ms .*\nIt was device 'A', at 1 of the operations\.$"),
        ("crash", "KeyError"),
    ],
)
def test_wrong_answers_count_as_failures(fault, message):
    wrong = FakeDevice("A", refuses=["Exp"], fault=fault)
    core = core_with(wrong, FakeDevice("B"))
    evaluate(CHAIN, {"x": X})  # imports what B computes with
    config = {"REJECT_NAN": True, "HETERO_TIMEOUT_MS": 3000}
    compiled = run(core, CHAIN, "HETERO:A,B", config=config)
    assert set(devices_of(compiled).values()) == {"B"}
    strict = core.compile_model(CHAIN, "HETERO:A,B", {**config, "STRICT": True})
    with pytest.raises(InferError, match=message):
        strict({"x": X})
    wrong.answers.set()


def test_strict_says_which_device_raised_an_error_of_ours():
    core = core_with(FakeDevice("A", refuses=["Exp"], fails_at_run=[1, 2]), FakeDevice("B"))
    compiled = core.compile_model(CHAIN, "HETERO:A,B", {"STRICT": True})
    for _ in range(2):  # what the device raises may be one object
        with pytest.raises(
            InferError,
            match=r"^the device fell over\nIt was device 'A', at 1 of the operations\.$",
        ):
            compiled({"x": X})


@pytest.mark.parametrize(
    ("place", "answer", "detail"),
    [
        ("run", raising(MemoryError()), "MemoryError"),
        ("run", raising(KeyError("k")), "KeyError: 'k'"),
        ("run", raising(SystemExit("no licence")), "SystemExit: no licence"),
        ("create_runner", raising(SystemExit(2)), "SystemExit: 2"),
        ("run", lambda *_: None, "returned NoneType; expected a list of 1 tensors."),
        (
            "create_runner",
            lambda _: None,
            "answered create_runner with NoneType; expected a Runner. Tell its author.",
        ),
    ],
)
def test_what_breaks_the_contract_is_told_in_words(place, answer, detail):
    class Made(FakeRunner):
        pass

    class Compiled(FakeCompiled):
        def create_runner(self):
            return Made(self)

    class Broken(FakeDevice):
        def compile_model(self, model, properties):
            return Compiled(model, properties, self.device_name, self)

    setattr(Made if place == "run" else Compiled, place, answer)
    core = core_with(Broken("A", refuses=["Exp"]), FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B")
    assert set(devices_of(compiled).values()) == {"B"}
    assert compiled.explain()["a"].refused["A"].detail.endswith(detail)


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_a_device_that_returns_memory_of_its_input_loses_its_part(executor):
    class ReturnsInput(FakeRunner):
        def run(self, inputs, outputs=None):
            return [HostTensor(inputs[0].numpy())]

    class Compiled(FakeCompiled):
        def create_runner(self):
            return ReturnsInput(self)

    class Broken(FakeDevice):
        def compile_model(self, model, properties):
            return Compiled(model, properties, self.device_name, self)

    proto = model_of(
        [
            node("Sigmoid", ["x"], "a"),
            node("Identity", ["a"], "b"),
            node("Sigmoid", ["b"], "c"),
            node("Sigmoid", ["c"], "d"),
            node("Add", ["d", "b"], "e"),
        ],
        ["e"],
    )
    core = core_with(Broken("A", refuses=["Sigmoid", "Add"]), FakeDevice("B", refuses=["Identity"]))
    compiled = core.compile_model(proto, "HETERO:A,B,REFERENCE", {"HETERO_EXECUTOR": executor})
    for _ in range(4):
        np.testing.assert_allclose(compiled({"x": X})[0], evaluate(proto, {"x": X})[0], rtol=1e-6)
    assert "A" not in devices_of(compiled).values()
    told = compiled.explain()["b"].refused["A"].detail
    assert told == "Device 'A' returned memory of its input 0 as 'b'; expected memory of its own."


@pytest.mark.parametrize(
    ("member", "answer", "detail"),
    [
        ("in_place_outputs", lambda _: {17: 23}, "would write output 17 over input 23"),
        ("in_place_outputs", lambda _: {0: "x"}, "would write output 0 over input x"),
        ("in_place_outputs", lambda _: 3, "failed to answer in_place_outputs: TypeError"),
        (
            "optimal_number_of_infer_requests",
            "many",
            "requests with 'many'; expected a whole number",
        ),
    ],
)
def test_a_device_that_answers_nonsense_about_its_part_loses_it(member, answer, detail):
    class Compiled(FakeCompiled):
        pass

    class Broken(FakeDevice):
        def compile_model(self, model, properties):
            return Compiled(model, properties, self.device_name, self)

    setattr(Compiled, member, answer)
    compiled = run(core_with(Broken("A", refuses=["Exp"]), FakeDevice("B")), CHAIN, "HETERO:A,B")
    assert set(devices_of(compiled).values()) == {"B"}
    assert detail in compiled.explain()["a"].refused["A"].detail


def test_a_constant_that_crossed_and_then_follows_changes_its_reader():
    proto = model_of(
        [node("Neg", ["w"], "nw"), node("Add", ["x", "nw"], "a"), node("Exp", ["a"], "b")],
        ["b"],
        initializers=[("w", np.ones((2, 3), np.float32))],
    )
    core = core_with(FakeDevice("A", refuses=["Neg"], breaks_on=["Exp"]), FakeDevice("B"))
    compiled = run(core, proto, "HETERO:A,B")
    assert not any("failed to run" in note for note in compiled.explain().notes)


def chain_of(error):
    """An error and those that it comes from."""
    found, left = [], [error]
    while left:
        error = left.pop()
        if error is not None and error not in found:
            found.append(error)
            left += [error.__cause__, error.__context__]
    return found


def test_a_failed_run_does_not_keep_the_inputs():

    core = core_with(FakeDevice("A", fails_at_run=range(1, 99)))
    runner = core.compile_model(CHAIN, "HETERO:A").device_model.create_runner()
    x = X.copy()
    with pytest.raises(InferError) as caught:
        runner.run([HostTensor(x)])
    for error in chain_of(caught.value):  # frames hold the inputs as long as it lives
        traceback.clear_frames(error.__traceback__)
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None


def test_a_runner_keeps_no_error_that_was_handled():
    """An error holds the frames that it came through, and these the inputs."""
    core = core_with(FakeDevice("A", fails_at_run=range(1, 99)))
    runner = core.compile_model(CHAIN, "HETERO:A", {"STRICT": True}).device_model.create_runner()
    x = X.copy()
    with contextlib.suppress(InferError):
        runner.run([HostTensor(x)])
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None

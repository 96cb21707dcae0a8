"""The accuracy budget, on devices whose errors are known."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from partita.cli.main import main
from partita.contract.query import ReasonCode
from partita.errors import CompileError, InfeasiblePlanError, InputError, PropertyError
from partita.model.compare import relative_error

from ..fakes import FakeDevice, core_with, evaluate
from ..graphs import CHAIN, X, devices_of, model_of, node
from ..lossy import LossyDevice
from ..virtual_time import install

# Relu, Neg and Abs pass errors on as they are; so the errors of a chain add up.
LINEAR = model_of(
    [
        node("Relu", ["x"], "a"),
        node("Neg", ["a"], "b"),
        node("Abs", ["b"], "c"),
        node("Identity", ["c"], "d"),
        node("Reciprocal", ["d"], "y"),
    ],
    ["c", "y"],
)
POSITIVE = np.abs(X) + 1


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    install(monkeypatch)
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    np.savez(tmp_path / "x.npz", x=POSITIVE)
    return tmp_path


@pytest.fixture
def compiled(folder):
    def compile_for(devices, budget, names="HETERO:A,B", **config):
        core = core_with(*devices)
        samples = {"HETERO_SAMPLE_INPUTS": folder / "x.npz"}
        config = {"HETERO_ACCURACY_BUDGET": budget, **samples, **config}
        return core.compile_model(LINEAR, names, config)

    return compile_for


def error_of(compiled):
    """Of all outputs, against the reference evaluator."""
    got = compiled({"x": POSITIVE}).to_tuple()
    want = evaluate(LINEAR, {"x": POSITIVE})
    return max(map(relative_error, got, want))


def lossy(**more):
    return LossyDevice("A", {"Relu": 1e-4, "Neg": 1e-2, "Abs": 1e-3}, **more)


def test_without_a_budget_nothing_is_moved(compiled):
    model = compiled((lossy(), FakeDevice("B")), 0.0)
    assert set(devices_of(model).values()) == {"A"}
    assert error_of(model) == pytest.approx(0.0111, rel=0.02)


def test_a_budget_that_is_kept_moves_nothing(compiled):
    model = compiled((lossy(), FakeDevice("B")), 0.02)
    assert set(devices_of(model).values()) == {"A"}
    (note,) = model.explain().notes
    assert note == "Accuracy: outputs are within 0.011 of REFERENCE (budget 0.02)."


def test_the_fewest_operations_with_the_largest_errors_are_moved(compiled):
    model = compiled((lossy(), FakeDevice("B")), 2e-3)
    assert devices_of(model) == {"a": "A", "b": "B", "c": "A", "d": "A", "y": "A"}
    assert error_of(model) <= 2e-3
    why = model.explain()["b"]
    assert why.reason.code is ReasonCode.ACCURACY
    assert why.refused["A"].code is ReasonCode.ACCURACY
    assert why.refused["A"].detail == "relative error 0.01 here; the budget is 0.002"
    assert "Accuracy: 1 operations were moved for it." in model.explain().notes
    tighter = compiled((lossy(), FakeDevice("B")), 5e-4)
    assert devices_of(tighter) == {"a": "A", "b": "B", "c": "B", "d": "A", "y": "A"}
    assert error_of(tighter) <= 5e-4


def test_it_goes_to_a_device_that_is_better_and_not_just_the_next(compiled):
    worse = LossyDevice("B", {"Neg": 0.05})
    devices = (lossy(), worse, FakeDevice("C"))
    model = compiled(devices, 2e-3, "HETERO:A,B,C")
    assert devices_of(model)["b"] == "C"


def test_where_nobody_is_better_the_device_computes_in_float32(compiled):
    other = LossyDevice("B", {"Relu": 1.0, "Neg": 1.0, "Abs": 1.0})
    model = compiled((lossy(precise=True), other), 1e-5)
    assert set(devices_of(model).values()) == {"A"}
    assert error_of(model) <= 1e-5
    assert "Accuracy: A computes in float32 for it." in model.explain().notes


def test_of_moving_and_casting_the_faster_is_taken(compiled):
    everywhere = dict.fromkeys(["Relu", "Neg", "Abs", "Identity"], 1e-3)
    slow_to_reach = FakeDevice("B", delay_s=0.03)
    model = compiled((LossyDevice("A", everywhere, precise=True), slow_to_reach), 1e-4)
    assert set(devices_of(model).values()) == {"A"}
    assert error_of(model) <= 1e-4
    slow_if_exact = LossyDevice("A", everywhere, precise=True, exact_s=0.03)
    model = compiled((slow_if_exact, FakeDevice("B")), 2e-4)  # another budget is decided anew
    assert [devices_of(model)[op] for op in "abcdy"] == ["B", "B", "B", "B", "A"]
    assert error_of(model) <= 1e-4


def test_a_budget_that_nothing_keeps_names_what_blocks_it(compiled):
    other = LossyDevice("B", {"Neg": 6e-3, "Abs": 2e-3})
    with pytest.raises(InfeasiblePlanError) as caught:
        compiled((lossy(), other), 1e-5)
    message = str(caught.value)
    assert "No placement of 'm' is within the accuracy budget 1e-05; the best is" in message
    assert "Most comes from 'b' (Neg): 0.01 on A, 0.006 on B" in message
    assert message.endswith("Raise the budget, or add a more exact device to the list.")


def test_hard_pins_stay(compiled):
    with pytest.raises(InfeasiblePlanError) as caught:
        compiled((lossy(), FakeDevice("B")), 2e-3, HETERO_PINS=["b=A"])
    assert "(Neg): 0.01 on A, where the pin 'b=A' keeps it (0 on B)." in str(caught.value)


def test_a_pin_is_blamed_and_not_those_that_are_free(compiled):
    other = LossyDevice("B", {"Relu": 1e-5, "Abs": 2e-5})
    with pytest.raises(InfeasiblePlanError) as caught:
        compiled((lossy(), other), 2e-3, HETERO_PINS=["b=A"])
    message = str(caught.value)
    assert "Most comes from 'b' (Neg): 0.01 on A, where the pin 'b=A' keeps it" in message
    assert "'a' (Relu)" not in message
    assert "'c' (Abs)" not in message
    assert message.endswith("Raise the budget, drop a pin, or add a more exact device to the list.")


def test_a_second_compile_runs_nothing(compiled):
    first = compiled((lossy(), FakeDevice("B")), 2e-3)
    devices = lossy(), FakeDevice("B")
    second = compiled(devices, 2e-3)
    assert devices_of(second) == devices_of(first)
    assert devices[0].runs == devices[1].runs == 0
    assert list(second.explain().notes) == list(first.explain().notes)
    other = lossy(), FakeDevice("B")
    compiled(other, 3e-3)
    assert other[0].runs > 0


def test_raised_precision_is_remembered_too(compiled):
    def devices():
        return lossy(precise=True), LossyDevice("B", {"Relu": 1.0, "Neg": 1.0, "Abs": 1.0})

    compiled(devices(), 1e-5)
    again = devices()
    model = compiled(again, 1e-5)
    assert again[0].runs == 0
    assert error_of(model) <= 1e-5


def test_raised_precision_goes_into_an_exported_model(compiled):
    other = LossyDevice("B", {"Relu": 1.0, "Neg": 1.0, "Abs": 1.0})
    model = compiled((lossy(precise=True), other), 1e-5)
    again = core_with(lossy(precise=True), other).import_model(model.export_model(), "HETERO")
    assert error_of(again) <= 1e-5


def test_samples_and_reference_that_cannot_be_used(compiled, folder):
    devices = (lossy(), FakeDevice("B"))
    with pytest.raises(InputError, match=r"HETERO_SAMPLE_INPUTS: .*none.npz' cannot"):
        compiled(devices, 1e-3, HETERO_SAMPLE_INPUTS=folder / "none.npz")
    np.savez(folder / "z.npz", z=POSITIVE)
    with pytest.raises(InputError, match="an array for each input"):
        compiled(devices, 1e-3, HETERO_SAMPLE_INPUTS=folder / "z.npz")
    with pytest.raises(PropertyError, match="'HETERO_ACCURACY_BUDGET'"):
        compiled(devices, -1)
    refuses = FakeDevice("C", breaks_on=["Neg"])
    with pytest.raises(CompileError, match="'C' cannot run the model as the reference"):
        compiled((*devices, refuses), 1e-3, HETERO_ACCURACY_REFERENCE="C")


def test_the_budget_holds_where_times_decide(compiled):
    fast, slow = lossy(delay_s=0.01), FakeDevice("B", delay_s=0.1)
    model = compiled((fast, slow), 2e-3, HETERO_SCHEDULE="COST")
    assert devices_of(model)["b"] == "B"
    assert error_of(model) <= 2e-3
    assert model.explain().decision is not None
    free = compiled((fast, slow), 0.0, HETERO_SCHEDULE="COST")
    assert set(devices_of(free).values()) == {"A"}


def test_a_plan_keeps_the_budget(folder, monkeypatch, capsys):
    core = core_with(lossy(), FakeDevice("B", delay_s=0.01))
    monkeypatch.setattr("partita_hetero.cli.plan.Core", lambda: core)
    onnx.save(LINEAR, folder / "m.onnx")
    budget = "HETERO_ACCURACY_BUDGET=2e-3", f"HETERO_SAMPLE_INPUTS={folder / 'x.npz'}"
    argv = [text for pair in budget for text in ("--property", pair)]
    assert main(["plan", str(folder / "m.onnx"), "-d", "HETERO:A,B", *argv, "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert "B" in {task["device"] for task in tasks}


def test_random_samples_where_none_are_given(folder):
    core = core_with(LossyDevice("A", {"Exp": 1e-2}), FakeDevice("B"))
    model = core.compile_model(CHAIN, "HETERO:A,B", {"HETERO_ACCURACY_BUDGET": 1e-3})
    assert devices_of(model) == {"a": "A", "b": "B", "c": "A", "d": "A"}

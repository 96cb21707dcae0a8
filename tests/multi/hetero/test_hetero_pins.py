"""HETERO keeps pins and placement locks, and says why where it cannot."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from partita.contract.query import ReasonCode
from partita.errors import DeviceNotFoundError, PlanError, PropertyError, UnsupportedOpError
from partita_hetero.placement.lock_file import Lock, graph_digest

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN, X, devices_of, run


@pytest.fixture
def core():
    return core_with(FakeDevice("A"), FakeDevice("B", refuses=["Abs"]))


def pinned(core, *pins, **more):
    return run(core, CHAIN, "HETERO:A,B", config={"HETERO_PINS": list(pins), **more})


def test_pins_of_every_kind_move_operations(core):
    compiled = pinned(core, "type:Exp=B", "re:^c$=B", {"pattern": "a", "device": "B"})
    assert devices_of(compiled) == {"a": "B", "b": "B", "c": "B", "d": "A"}
    reason = compiled.explain()["b"].reason
    assert reason.code is ReasonCode.PINNED
    assert reason.detail == "pin 'type:Exp=B'"


def test_one_pin_may_be_a_text_by_itself(core):
    compiled = run(core, CHAIN, "HETERO:A,B", config={"HETERO_PINS": "type:Exp=B"})
    assert devices_of(compiled)["b"] == "B"


def test_a_hard_pin_on_a_device_that_refuses_names_operations_and_reasons(core):
    with pytest.raises(UnsupportedOpError) as caught:
        pinned(core, "type:Abs=B")
    assert str(caught.value) == (
        "The pin 'type:Abs=B' cannot be kept: 'd' (Abs) is pinned to 'B', which refuses it: "
        "UNSUPPORTED_OP: no Abs. Make the pin soft ('DEVICE?'), or change it."
    )


def test_a_soft_pin_on_a_device_that_refuses_is_let_go_quietly(core, caplog):
    compiled = pinned(core, "type:Abs=B?", STRICT=True)
    assert devices_of(compiled)["d"] == "A"
    assert compiled.explain()["d"].reason.detail == "pinned to 'B', which refuses it"
    assert not caplog.records


def test_affinities_still_warn_and_fall_back(core, caplog):
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"d": "B", "a": "B"})
    assert devices_of(compiled) == {"a": "B", "b": "A", "c": "A", "d": "A"}
    assert "'d' (Abs) is pinned to 'B', which refuses it" in caplog.text


def test_hard_pins_beat_affinities_and_these_beat_soft_pins(core):
    model = core.read_model(CHAIN)
    for op in model.ops:
        op.affinity = "B" if op.name in "ab" else None
    config = {"HETERO_PINS": ["a=A", "b=A?"]}
    assert devices_of(core.compile_model(model, "HETERO:A,B", config)) == {
        "a": "A",
        "b": "B",
        "c": "A",
        "d": "A",
    }


def test_pins_that_cannot_be_used(core):
    with pytest.raises(
        PropertyError, match=r"of device 'HETERO' cannot be 'a': 'a' is not a pin; write NAME="
    ):
        pinned(core, "a")
    with pytest.raises(PropertyError, match="is not a regular expression"):
        pinned(core, "re:(=A")
    with pytest.raises(PlanError, match="matches none of 4 operations"):
        pinned(core, "zz=A")
    with pytest.raises(
        DeviceNotFoundError, match="The pin 'a=NPU' names 'NPU', which is not a usable"
    ):
        pinned(core, "a=NPU")


def test_pins_go_into_an_exported_model_as_its_placement(core):
    compiled = pinned(core, "type:Exp=B")
    again = core.import_model(compiled.export_model(), "HETERO")
    assert devices_of(again) == devices_of(compiled)


# ---------------------------------------------------------------------------------------- lock


@pytest.fixture
def lock(core, tmp_path):
    """Writes a lock for CHAIN, with changes; returns the property that takes it back."""

    def write(**changes):
        facts = {
            "model": "m",
            "graph": graph_digest(core.read_model(CHAIN)),
            "devices": {"A": "fake", "B": "fake"},
            "ops": {"a": "B", "b": "A", "c": "B", "d": "A"},
        }
        path = tmp_path / "plan.toml"
        Lock(**(facts | changes)).save(path)
        return {"HETERO_PLACEMENT_LOCK": path}

    return write


def test_a_lock_is_taken_back(core, lock, caplog):
    compiled = run(core, CHAIN, "HETERO:A,B", config={**lock(), "STRICT": True})
    assert devices_of(compiled) == {"a": "B", "b": "A", "c": "B", "d": "A"}
    assert compiled.explain()["a"].reason.detail == "placement lock 'plan.toml'"
    assert not compiled.explain().notes
    assert not caplog.records


def test_what_a_lock_does_not_say_goes_by_priority(core, lock, caplog):
    config = lock(ops={"a": "B", "old": "A", "d": "B"}, graph="0")
    compiled = run(core, CHAIN, "HETERO:A,B", config=config)
    assert devices_of(compiled) == {"a": "B", "b": "A", "c": "A", "d": "A"}
    said = [
        "In the lock alone: 1 operation, 'old'.",
        "In the model alone: 2 operations, 'b', 'c'.",
        "Device 'B' refuses 1 operation that the lock gives it: 'd' (UNSUPPORTED_OP: no Abs).",
    ]
    assert list(compiled.explain().notes) == [f"Placement lock 'plan.toml': {s}" for s in said]
    for sentence in said:
        assert sentence in caplog.text


@pytest.mark.parametrize(
    ("model", "ops"),
    [
        ("m", {"p": "A", "q": "B"}),  # none of them is there
        ("other", {"a": "A", "q": "B"}),  # one by chance, in a model of another name
    ],
)
def test_a_lock_of_another_model_is_refused(core, lock, model, ops):
    with pytest.raises(PlanError) as caught:
        core.compile_model(CHAIN, "HETERO:A,B", lock(model=model, ops=ops, graph="0"))
    message = str(caught.value)
    assert f"was made for model '{model}', and this is 'm'" in message
    assert "of its 2 operations are not in it" in message
    assert "'partita plan MODEL --lock FILE'" in message


def test_a_lock_of_a_model_that_was_renamed_is_taken(core, lock):
    compiled = core.compile_model(CHAIN, "HETERO:A,B", lock(model="renamed"))
    assert devices_of(compiled) == {"a": "B", "b": "A", "c": "B", "d": "A"}


def test_a_strict_lock_must_hold(core, lock):
    other = lock(devices={"A": "fake", "B": "fake 2", "C": "?"}, ops={"a": "C"})
    with pytest.raises(PlanError) as caught:
        core.compile_model(CHAIN, "HETERO:A,B", {**other, "STRICT": True})
    message = str(caught.value)
    assert "plan.toml' does not hold any more. In the model alone: 3 operations" in message
    assert "Device 'C', which has 1 operation in the lock, is not in the list." in message
    assert "Device 'B' had driver 'fake 2' and has 'fake'" in message
    assert message.endswith("Write it anew with 'partita plan', or set STRICT=NO.")


def test_hard_pins_beat_the_lock(core, lock):
    config = {**lock(), "HETERO_PINS": ["a=A", "b=B?"]}
    compiled = core.compile_model(CHAIN, "HETERO:A,B", config)
    assert devices_of(compiled)["a"] == "A"
    assert devices_of(compiled)["b"] == "A"  # a soft pin is weaker


def test_a_lock_file_that_is_none(core, tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        core.compile_model(CHAIN, "HETERO:A", {"HETERO_PLACEMENT_LOCK": tmp_path / "no.toml"})


def test_notes_of_the_lock_stay_after_a_failure(lock, caplog):
    core = core_with(FakeDevice("A", fails_at_run=[1]), FakeDevice("B"))
    with caplog.at_level(logging.CRITICAL):
        config = lock(ops={"a": "A"})
        compiled = core.compile_model(CHAIN, "HETERO:A,B", config)
        compiled({"x": X})
    notes = list(compiled.explain().notes)
    assert sum("In the model alone" in note for note in notes) == 1
    assert any("failed to run" in note for note in notes)
    assert np.isfinite(compiled({"x": X})[0]).all()

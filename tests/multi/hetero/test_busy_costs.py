"""COST beside other processes: which costs and decisions are kept, made again, and marked."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest
from models import model_of, node, value

from partita.cli.main import main
from partita_hetero.cost.database import Database

from ..fakes import core_with
from ..paced import PacedDevice
from ..virtual_time import TIME, install

TYPES = ["Atan", "Sinh", "Tan", "Asinh"]
SLOW, FAST = 0.01, 0.0002


@pytest.fixture(autouse=True)
def time(tmp_path, monkeypatch):
    """Virtual time, in which other processes may use the processors."""
    install(monkeypatch)
    monkeypatch.setattr(TIME, "load", 0.0)
    monkeypatch.setattr(TIME, "loaded_until", float("inf"))
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    return TIME


def chain(*types):
    """Operations in a row."""
    nodes = [node(t, [f"v{i}"], f"v{i + 1}", t.lower()) for i, t in enumerate(types)]
    return model_of(nodes, [value("v0", [2, 3])], [f"v{len(types)}"])


def core_of_two(counts):
    times = dict.fromkeys(TYPES, FAST)
    return core_with(
        PacedDevice("A", {**times, "Sinh": SLOW}, counts=counts),
        PacedDevice("B", dict.fromkeys(TYPES, SLOW) | {"Sinh": FAST}, counts=counts),
    )


@pytest.fixture(params=[True, False], ids=["counters", "alone"])
def decide(request):
    """What COST decides for operations in a row, and how."""

    def decide(*types, load=0.0):
        TIME.load = load
        TIME.rest(10.0)  # the machine is looked at again
        core = core_of_two(request.param)
        compiled = core.compile_model(chain(*types), "HETERO:A,B", {"HETERO_SCHEDULE": "COST"})
        return compiled.explain().decision

    return decide


def kept_costs():
    """Device and operation to the seconds and the load in the file, but for launches."""
    with Database() as database, contextlib.closing(sqlite3.connect(database.path)) as file:
        rows = file.execute("SELECT device, work, seconds, busy FROM cost WHERE work != 'launch'")
        return {row[:2]: row[2:] for row in rows}


def notes_on_load(decision):
    return [note.partition(" were measured while")[0] for note in decision.notes if "while" in note]


def test_a_decision_of_a_quiet_machine_stays_and_needs_no_note(decide):
    decision = decide(*TYPES)
    assert decision.busy == 0
    assert notes_on_load(decision) == []
    assert decide(*TYPES, load=0.6).from_database


def test_a_decision_of_a_busy_machine_is_marked_and_made_again_when_it_is_quieter(decide):
    decision = decide(*TYPES, load=0.6)
    assert decision.busy == pytest.approx(0.6)
    assert notes_on_load(decision) == ["Operations on A", "Operations on B", "Placements"]
    again = decide(*TYPES, load=0.5)
    assert again.from_database
    assert notes_on_load(again) == notes_on_load(decision)
    quiet = decide(*TYPES)
    assert not quiet.from_database
    assert quiet.busy == 0
    assert notes_on_load(quiet) == []
    plan, slow = quiet["plan"].measured_us, decision["plan"].measured_us
    assert plan == pytest.approx(0.4 * slow, rel=0.02)
    assert decide(*TYPES).from_database


def test_a_decision_that_is_no_better_does_not_replace_the_one_before(decide):
    decide(*TYPES, load=0.6)
    TIME.load = 0.0
    look = TIME.others_seconds

    def busy_after_the_look():
        TIME.load = 0.9 if TIME.now > began else 0.0
        return look()

    TIME.rest(10.0)
    began = TIME.now + 0.2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("partita_hetero.cost.clock.others_seconds", busy_after_the_look)
        compiled = core_of_two(True).compile_model(
            chain(*TYPES), "HETERO:A,B", {"HETERO_SCHEDULE": "COST"}
        )
    assert compiled.explain().decision.from_database
    assert compiled.explain().decision.busy == pytest.approx(0.6)


def test_operations_are_measured_again_when_the_machine_is_quieter(decide):
    decide(*TYPES, load=0.5)
    slow = kept_costs()
    assert len(slow) == 2 * len(TYPES)
    assert [busy for _, busy in slow.values()] == pytest.approx([0.5] * len(slow))
    decide(*TYPES)
    for key, (seconds, busy) in kept_costs().items():
        assert busy == 0
        assert seconds == pytest.approx(0.5 * slow[key][0], rel=0.05)


def test_what_is_known_of_operations_from_a_quiet_machine_stays(decide):
    decide("Atan", "Sinh")
    known = kept_costs()
    decision = decide(*TYPES, load=0.5)
    costs = kept_costs()
    assert known.items() <= costs.items()
    others = [costs[key][1] for key in costs.keys() - known.keys()]
    assert others == pytest.approx([0.5] * 4)
    assert "Placements" in notes_on_load(decision)


def test_the_command_says_so(monkeypatch, tmp_path, capsys, time):
    time.load = 0.63
    monkeypatch.setattr("partita_hetero.cli.plan.Core", lambda: core_of_two(True))
    (path := tmp_path / "chain.onnx").write_bytes(chain(*TYPES).SerializeToString())
    assert main(["plan", str(path), "-d", "HETERO:A,B"]) == 0
    said = "Placements were measured while other processes used 63% of the processors"
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(path), "-d", "HETERO:A,B", "--json"]) == 0
    assert said in " ".join(json.loads(capsys.readouterr().out)["notes"])

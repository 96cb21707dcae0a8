"""``partita plan`` on devices: costs are measured, the lock is taken back, reasons are told."""

from __future__ import annotations

import json

import onnx
import pytest

from partita.cli.main import main
from partita_hetero import lock as locks
from partita_hetero.planner import table

from .fakes import FakeDevice, core_with
from .graphs import CHAIN, model_of, node

SECONDS = 0.002


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs a command line over devices A (slow) and B (refuses Abs); returns code, out, err."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "model.onnx"
    onnx.save(CHAIN, model)
    core = core_with(FakeDevice("A", delay_s=SECONDS), FakeDevice("B", refuses=["Abs"]))
    for module in ("partita_hetero.cli.plan", "partita.cli.run"):
        monkeypatch.setattr(f"{module}.Core", lambda: core)

    def run(name, *argv, on=model):
        code = main([name, str(on), *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_costs_are_measured_and_the_plan_is_told(command, tmp_path):
    costs = tmp_path / "costs.json"
    code, out, err = command("plan", "-d", "HETERO:A,B", "--save-costs", costs, "--json")
    assert code == 0, err
    data = json.loads(out)
    assert [use["device"] for use in data["devices"]] == ["A", "B"]
    assert {rival["name"] for rival in data["rivals"]} == {"only A", "only B", "greedy"}
    problem = table.load(costs)
    ops = [name for task in problem.tasks for name in task.ops]
    assert sorted(ops) == ["a", "b", "c", "d"]
    assert all(task.costs[0].us > 0 for task in problem.tasks)
    (last,) = [task for task in problem.tasks if "d" in task.ops]
    assert last.costs[1].us is None
    assert "no Abs" in last.costs[1].reason


def test_the_lock_is_taken_back_by_run(command, tmp_path):
    path = tmp_path / "plan.toml"
    code, _, err = command("plan", "-d", "HETERO:A,B", "--pin", "type:Exp=B", "--lock", path)
    assert code == 0, err
    lock = locks.load(path)
    assert list(lock.ops) == ["a", "b", "c", "d"]
    assert lock.ops["b"] == "B"
    assert lock.devices["B"] == "fake"
    code, out, err = command("run", "-d", "HETERO:A,B", "--lock", path, "--compare", "REFERENCE")
    assert code == 0, err
    assert "does not hold" not in err
    assert "ok" in out


def test_a_plan_from_a_table_knows_the_graph_of_a_model(command, tmp_path):
    costs, path = tmp_path / "costs.json", tmp_path / "plan.toml"
    command("plan", "-d", "HETERO:A,B", "--save-costs", costs)
    code, _, err = command("plan", "--costs", costs, "--lock", path)
    assert code == 0, err
    assert locks.load(path).graph


def test_pins_and_limits_reach_the_measured_plan(command):
    code, out, _ = command(
        "plan", "-d", "HETERO:A,B", "--pin", "a=B", "--memory", "A=1MiB", "--json"
    )
    assert code == 0
    data = json.loads(out)
    homes = {one["task"]: (one["device"], one["reason"]["code"]) for one in data["tasks"]}
    assert homes["a"] == ("B", "PINNED")
    assert {use["device"]: use["limit_bytes"] for use in data["devices"]}["A"] == 2**20
    assert "cannot be kept" in command("plan", "-d", "HETERO:A,B", "--pin", "d=B")[2]


def test_what_cannot_be_planned(command, tmp_path):
    code, _, err = command("plan", "-d", "A")
    assert code == 1
    assert "'A' is one device; a plan is for 'HETERO:A,...'" in err
    free = tmp_path / "free.onnx"
    onnx.save(model_of([node("Exp", ["x"], "y")], ["y"], shape=("n", 3)), free)
    code, _, err = command("plan", "-d", "HETERO:A,B", on=free)
    assert code == 1
    assert "Nothing can be measured: give --shape." in err
    assert command("plan", "-d", "HETERO:A,B", "--shape", "2x3", on=free)[0] == 0


def test_run_explains_on_demand(command):
    code, out, _ = command("run", "-d", "HETERO:A,B", "--pin", "b=B", "--explain")
    assert code == 0
    assert "PINNED: pin 'b=B'" in out
    assert "what would change it" in out
    code, out, _ = command("run", "-d", "HETERO:A,B", "--explain", "--json")
    assert json.loads(out)["explanation"]["ops"][0]["device"] == "A"

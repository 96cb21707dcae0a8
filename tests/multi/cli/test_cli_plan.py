"""``partita plan`` on devices: costs are measured, the lock is taken back, reasons are told."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from partita.cli.main import main
from partita_hetero.placement import lock_file as locks
from partita_hetero.planner.problem import problem_file

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN, model_of, node
from ..paced import PacedDevice
from ..virtual_time import install

SECONDS = 0.002


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs a command line over devices A (slow) and B (refuses Abs); returns code, out, err."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "model.onnx"
    onnx.save(CHAIN, model)
    core = core_with(FakeDevice("A", delay_s=SECONDS), FakeDevice("B", refuses=["Abs"]))
    for module in ("partita_hetero.cli.plan", "partita.cli.commands.run"):
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
    assert "on HETERO:A,B, with searches of 10 s in all (--time-limit)" in err.splitlines()[0]
    data = json.loads(out)
    assert [use["device"] for use in data["devices"]] == ["A", "B"]
    assert {rival["name"] for rival in data["rivals"]} == {"only A", "only B", "greedy"}
    problem = problem_file.load(costs)
    ops = [name for task in problem.tasks for name in task.ops]
    assert sorted(ops) == ["a", "b", "c", "d"]
    assert all(task.costs[0].us > 0 for task in problem.tasks)
    (last,) = [task for task in problem.tasks if "d" in task.ops]
    assert last.costs[1].us is None
    assert "no Abs" in last.costs[1].reason


THREE = model_of(
    [
        node(kind, [f"v{i}" if i else "x"], f"v{i + 1}")
        for i, kind in enumerate(["Atan", "Sinh", "Tan"])
    ],
    ["v3"],
    shape=(2, 3),
)
"""None of these is ever grouped with another one."""


def model_of_three(monkeypatch, tmp_path, **options):
    """A is slow at Sinh and B at all else; where a device has a submodel alone, options apply."""
    install(monkeypatch)
    fast, slow = 0.0002, 0.01
    devices = (
        PacedDevice("A", {"Atan": fast, "Sinh": slow, "Tan": fast}, **options),
        PacedDevice("B", {"Atan": slow, "Sinh": fast, "Tan": slow}, **options),
    )
    core = core_with(*devices)
    monkeypatch.setattr("partita_hetero.cli.plan.Core", lambda: core)
    path = tmp_path / "three.onnx"
    onnx.save(THREE, path)
    return path


def test_what_lost_its_race_is_not_recommended(command, monkeypatch, tmp_path):
    path = model_of_three(monkeypatch, tmp_path, parts=0.04, counts=True)
    lock = tmp_path / "plan.toml"
    code, out, err = command("plan", "-d", "HETERO:A,B", "--json", "--lock", lock, on=path)
    assert code == 0, err
    data = json.loads(out)
    by_name = {one["name"]: one for one in reversed(data["raced"])}  # the first plan
    assert by_name["plan"]["foreseen_us"] < by_name["only A"]["measured_us"]  # so it looked
    assert by_name["plan"]["measured_us"] > 2 * by_name["only A"]["measured_us"]
    assert data["kept"] == "only A"
    assert data["measured_us"] == by_name["only A"]["measured_us"]
    assert {one["device"] for one in data["parts"]} == {"A"}
    assert data["value_us"] == pytest.approx(data["measured_us"], rel=0.1)
    assert set(locks.load(lock).ops.values()) == {"A"}
    assert locks.load(lock).plan["measured_us"] == round(data["measured_us"], 3)


def test_what_won_its_race_is_told_with_the_noise(command, monkeypatch, tmp_path):
    path = model_of_three(monkeypatch, tmp_path)
    code, out, err = command("plan", "-d", "HETERO:A,B", "--json", on=path)
    assert code == 0, err
    data = json.loads(out)
    assert data["kept"] == "plan"
    assert [part["device"] for part in data["parts"]] == ["A", "B", "A"]
    assert 0 <= data["spread_us"] < data["measured_us"] / 10
    assert all(one["spread_us"] is not None for one in data["raced"] if one["measured_us"])
    code, out, _ = command("plan", "-d", "HETERO:A,B", on=path)
    assert "us, of the table: this placement is at most" in out
    assert "placement that was run" in out
    assert any(
        line.startswith("measured ") and "'plan' is kept" in line for line in out.split("\n")
    )


def test_nothing_that_runs_is_no_plan(command, monkeypatch, tmp_path):
    path = model_of_three(monkeypatch, tmp_path, fails_on=["Tan"])
    code, out, err = command("plan", "-d", "HETERO:A,B", on=path)
    assert (code, out) == (1, "")
    assert "No placement could be run. only A: it failed: " in err


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


def test_a_pin_to_a_last_resort_is_planned(command):
    code, out, err = command(
        "plan", "-d", "HETERO:A,REFERENCE", "--pin", "d=REFERENCE", "--objective", "PARALLEL",
        "--json",
    )  # fmt: skip
    assert code == 0, err
    assert {use["device"]: use["ops"] for use in json.loads(out)["devices"]} == {
        "A": 3,
        "REFERENCE": 1,
    }


@pytest.mark.parametrize("option", ["--context", "--prompt-tokens", "--new-tokens", "--chunk"])
def test_options_of_decoders_are_refused_for_other_models(command, option):
    code, _, err = command("plan", "-d", "HETERO:A,B", option, 7)
    assert code == 1
    assert f"{option} is for decoders; 'm' has no cache of tokens." in err


def test_a_table_of_another_model_is_refused(command, tmp_path):
    costs, lock, other = tmp_path / "costs.json", tmp_path / "plan.toml", tmp_path / "other.onnx"
    command("plan", "-d", "HETERO:A,B", "--save-costs", costs)
    onnx.save(model_of([node("Tan", ["x"], "y")], ["y"]), other)
    code, out, err = command("plan", "--costs", costs, "--lock", lock, on=other)
    assert (code, out) == (1, "")
    assert f"The cost table '{costs}' is of another model (" in err
    assert f"4 of its 4 operations are not in '{other}', 'a' first. Leave MODEL out" in err
    assert not lock.exists()


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
    onnx.save(model_of([node("Exp", ["x"], "y")], ["y"], shape=None), free)
    code, _, err = command("plan", "-d", "HETERO:A,B", on=free)
    assert code == 1
    assert "Nothing can be measured. COST needs to know how many axes input 'x' has" in err


def test_a_plan_where_input_shapes_vary(command, tmp_path):
    free = tmp_path / "free.onnx"
    onnx.save(model_of([node("Exp", ["x"], "y")], ["y"], shape=("n", 3)), free)
    for options, note in (
        (["--property", "HETERO_SAMPLE_SHAPES=x=2x3"], "Measured at x=2x3."),
        ([], "Measured at x=1x3, sizes that are assumed"),
    ):
        code, out, err = command("plan", "-d", "HETERO:A,B", *options, on=free)
        assert code == 0
        assert note in out
        hint = (
            "input 'x' is float32[n, 3]; its free sizes are assumed: 1x3 (set them with "
            "--shape x=...)"
        )
        assert (hint in err) == (not options)
    code, out, _ = command("plan", "-d", "HETERO:A,B", "--shape", "2x3", on=free)
    assert code == 0
    assert "Measured at" not in out


@pytest.mark.parametrize(
    ("columns", "measured", "told"),
    [
        (3, "1x1x48x1", "Measured at x=1x1x48x1"),
        (1000, "1x1x224x1", "Nothing runs at x=1x1x224x1, sizes that are assumed: name some"),
    ],
)
def test_sizes_that_a_model_takes_are_found_or_asked_for(
    command, tmp_path, columns, measured, told
):
    nodes = [node("Reshape", ["x", "target"], "r"), node("Exp", ["r"], "y")]
    target = [("target", np.array([-1, columns]))]
    path = tmp_path / "lines.onnx"
    onnx.save(model_of(nodes, ["y"], initializers=target, shape=("n", 1, "h", 1)), path)
    code, out, err = command("plan", "-d", "HETERO:A,B", on=path)
    assert f"its free sizes are assumed: {measured} (set" in err
    assert told in (err if code else out)


def test_run_explains_on_demand(command):
    code, out, _ = command("run", "-d", "HETERO:A,B", "--pin", "b=B", "--explain")
    assert code == 0
    assert "PINNED: pin 'b=B'" in out
    assert "what would change it" in out
    code, out, _ = command("run", "-d", "HETERO:A,B", "--explain", "--json")
    assert json.loads(out)["explanation"]["ops"][0]["device"] == "A"

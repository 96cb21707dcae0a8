"""The planner's data: a hand-counted run, the cost table's round trip, and its messages."""

from __future__ import annotations

import codecs
import json
from dataclasses import replace

import pytest

from partita.errors import InfeasiblePlanError, PlanError
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.problem_file import from_json, load, save, to_json
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Pin, Task, Value
from partita_hetero.planner.search.solve import solve
from partita_hetero.planner.simulation.simulate import simulate
from partita_hetero.planner.simulation.timeline import Span, Timeline, chrome_trace


def diamond(**changes):
    """a -> (b, c) -> d on a host device and an accelerator; x goes in and y comes out."""
    fields = {
        "devices": (
            Device("CPU", host_memory=True, launch_us=1),
            Device("GPU", 1000, launch_us=5),
        ),
        "tasks": (
            Task("a", (Cost(10), Cost(4)), weight_bytes=100),
            Task("b", (Cost(20), Cost(6, "estimated")), ("b1", "b2"), ("Conv", "Relu"), 200),
            Task("c", (Cost(30), Cost(None, reason="UNSUPPORTED_OP")), group=None),
            Task("d", (Cost(40), Cost(8)), weight_bytes=300),
        ),
        "values": (
            Value("x", None, (0,), 80),
            Value("va", 0, (1, 2), 40),
            Value("vb", 1, (3,), 20),
            Value("vc", 2, (3,), 10, transfer_us=7),
            Value("y", 3, (), 4, is_output=True),
        ),
        "links": (Link(HOST, 1, 2, 10), Link(1, HOST, 3, 20)),
        "pins": (Pin(0, 1, hard=False, penalty_us=0.5),),
        "name": "diamond",
    }
    return Problem(**{**fields, **changes})


def test_a_sequential_run_is_what_it_is_by_hand():
    run = simulate(diamond(), [1, 1, 0, 1], "LATENCY")
    # x in 2+8, launch 5, a 4, b 6, va out 3+2; launch 1, c 30; vc in 7, launch 5, d 8, y out 3+.2
    assert run.latency_us == pytest.approx(10 + 5 + 4 + 6 + 5 + 1 + 30 + 7 + 5 + 8 + 3.2)
    assert run.load_us() == pytest.approx({"CPU": 31, "GPU": 53.2})
    assert run.bytes_moved() == 80 + 40 + 10 + 4
    assert run.time_us("launch") == 11
    # weights 600; at d: vb 20 + vc 10 + y 4; at a: x 80 + va 40, the most
    assert run.peak_bytes["GPU"] == 600 + 120


def test_a_parallel_run_overlaps_independent_parts():
    problem = diamond(pins=(), values=diamond().values[1:4])
    run = simulate(problem, [0, 1, 0, 0], "PARALLEL")
    # a on CPU until 11; b on GPU: va in 6, launch 5, 6, vb out 4 -> 32; c 31 -> 42; d 41 -> 83
    assert run.latency_us == pytest.approx(83)
    run = simulate(problem, [1, 1, 0, 0], "PARALLEL")
    # a on GPU: 5, 4, va out 5 -> 14; c on CPU 31 -> 45; d 41 -> 86; b meanwhile
    assert run.latency_us == pytest.approx(86)


def test_a_cost_table_comes_back_the_same(tmp_path):
    problem = diamond()
    save(problem, tmp_path / "table.json")
    on_windows = codecs.BOM_UTF8 + (tmp_path / "table.json").read_bytes()
    (tmp_path / "edited.json").write_bytes(on_windows)
    assert load(tmp_path / "edited.json") == load(tmp_path / "table.json")
    assert load(tmp_path / "table.json") == problem
    assert from_json(json.loads(json.dumps(to_json(problem)))) == problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(version=2), "'partita-costs' version 2; this version of Partita reads"),
        (lambda t: t.pop("schema"), "schema is missing."),
        (lambda t: t.update(extra=1), "extra is unknown."),
        (lambda t: t.update(tasks={}), "tasks is {}: Input should be a valid list"),
        (lambda t: t["tasks"].append(3), "tasks[4] is 3; it must be an object."),
        (lambda t: t["tasks"][1].update(nam="b"), "tasks[1].nam is unknown."),
        (
            lambda t: t["tasks"][1].update(name=None),
            "tasks[1].name is null: Input should be a valid string",
        ),
        (
            lambda t: t["tasks"][1].update(ops=[1]),
            "tasks[1].ops[0] is 1: Input should be a valid str",
        ),
        (
            lambda t: t["tasks"][1].update(weight_bytes=1.5),
            "tasks[1].weight_bytes is 1.5: Input should be a valid int",
        ),
        (lambda t: t["tasks"][1]["costs"].pop("GPU"), "tasks[1].costs.GPU is missing."),
        (
            lambda t: t["tasks"][1]["costs"]["GPU"].update(us="4"),
            'tasks[1].costs.GPU.us is "4": Input should be a',
        ),
        (
            lambda t: t["tasks"][1]["costs"]["GPU"].update(us=True),
            "us is true: Input should be a valid number",
        ),
        (lambda t: t["tasks"][1]["costs"]["GPU"].update(refused="x"), "either 'us' or 'refused'"),
        (lambda t: t["tasks"][1]["costs"].update(GPU={}), "must have either 'us' or 'refused'"),
        (lambda t: t["tasks"][1]["costs"].update(NPU={"us": 1}), "tasks[1].costs names 'NPU'"),
        (lambda t: t.update(name="x" * 99, tasks=["y" * 99]), "...; it must be an object"),
        (
            lambda t: t["tasks"][1]["costs"]["GPU"].update(us=-4),
            "tasks[1] 'b': cost on 'GPU' is -4",
        ),
        (
            lambda t: t["tasks"][1]["costs"]["GPU"].update(source="guess"),
            "Input should be 'measured' or 'estimated'",
        ),
        (lambda t: t["values"][1].update(name="x"), "values[1]: the name 'x' is used twice"),
        (lambda t: t["values"][1].update(name=""), "values[1]: the name is empty"),
        (
            lambda t: t["values"][1].update(producer="z"),
            "values[1].producer names 'z', which does not exist",
        ),
        (lambda t: t["values"][1].update(consumers=["b", "b"]), "a consumer is named twice"),
        (lambda t: t["values"][2].update(consumers=["a"]), "does not come after 'b'"),
        (lambda t: t["devices"][1].update(slots=0), "'slots' is 0; it must be 1 or more"),
        (lambda t: t["devices"][1].update(launch_us=float("nan")), "launch_us is nan"),
        (lambda t: t["links"].pop(), "there is none from 'GPU' to 'host'"),
        (lambda t: t["links"].append(t["links"][0]), "another link from 'host' to 'GPU'"),
        (lambda t: t["links"][0].update(bytes_per_us=0), "'bytes_per_us' is 0.0; it must be above"),
        (lambda t: t["links"][0].update(source="CPU"), "works in host memory; make 'host' the sou"),
        (lambda t: t["links"][0].update(source="GPU"), "it leads from 'GPU' to 'GPU'"),
        (
            lambda t: t["pins"][0].update(device="NPU"),
            "pins[0].device names 'NPU', which does not exist",
        ),
        (
            lambda t: t["pins"][0].update(hard=1),
            "pins[0].hard is 1: Input should be a valid boolean",
        ),
    ],
)
def test_a_bad_cost_table_is_refused_where_it_is_bad(change, message):
    table = json.loads(json.dumps(to_json(diamond())))
    change(table)
    with pytest.raises(PlanError) as error:
        from_json(table)
    assert message in str(error.value)


def test_a_file_that_is_no_cost_table(tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        load(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PlanError, match=r"bad.json' is not JSON"):
        load(tmp_path / "bad.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(PlanError, match=r"deep.json' is not JSON"):
        load(tmp_path / "deep.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(PlanError, match=r"list.json': the table is \[\]; it must be an object"):
        load(tmp_path / "list.json")


def test_a_problem_made_by_hand_is_checked_too():
    with pytest.raises(PlanError, match="needs at least one device"):
        diamond(devices=())
    with pytest.raises(PlanError, match="1 costs for 2 devices"):
        diamond(tasks=(Task("a", (Cost(1),)),), values=(), pins=())
    with pytest.raises(PlanError, match="'host' stands for the host's memory"):
        diamond(devices=(Device("CPU", host_memory=True), Device("host", host_memory=True)))
    with pytest.raises(PlanError, match=r"pins\[0\]: task 9 does not exist; there are 4"):
        diamond(pins=(Pin(9, 0),))
    with pytest.raises(PlanError, match="There is no device 'NPU'; there are 'CPU', 'GPU'"):
        diamond().device_index("NPU")
    with pytest.raises(PlanError, match="Device 'GPU' refuses task 'c'"):
        simulate(diamond(), [1, 1, 1, 1], "LATENCY")


def test_a_plan_says_what_it_is_worth():
    plan = solve(diamond(), "LATENCY", time_limit_s=1)
    assert plan.value_us >= plan.bound_us >= 0
    assert 0 <= plan.gap <= 1
    assert plan.timeline.latency_us + 0.5 * (plan.assignment[0] != 1) == pytest.approx(
        plan.value_us
    )


def test_what_no_placement_can_keep_is_named():
    with pytest.raises(
        InfeasiblePlanError, match="'c' is pinned to 'GPU', which refuses it: UNSUPP"
    ):
        solve(diamond(pins=(Pin(2, 1),)))
    with pytest.raises(InfeasiblePlanError, match="'a' is pinned to 'GPU', but 'a' to 'CPU'"):
        solve(diamond(pins=(Pin(0, 0), Pin(0, 1))))
    refused = replace(diamond().tasks[2], costs=(Cost(None), Cost(None, reason="DYNAMIC_SHAPE")))
    tasks = (*diamond().tasks[:2], refused, diamond().tasks[3])
    with pytest.raises(
        InfeasiblePlanError, match="No device takes task 'c': 'CPU' refuses it; 'GP"
    ):
        solve(diamond(tasks=tasks))
    grouped = [replace(task, group="g") for task in (diamond().tasks[0], refused)]
    tasks = (grouped[0], diamond().tasks[1], grouped[1], diamond().tasks[3])
    with pytest.raises(InfeasiblePlanError, match="No device takes tasks 'a', 'c', which share"):
        solve(diamond(tasks=tasks))


def test_timelines_side_by_side_in_a_trace():
    one = Timeline((Span("CPU", "a", 0, 5), Span("GPU", "v", 5, 7, "transfer", 64)), "predicted")
    two = Timeline((Span("CPU", "a", 0, 6),), "measured", devices=("GPU", "CPU"))
    events = chrome_trace([one, two])["traceEvents"]
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert names == {(0, "predicted"), (1, "measured")}
    runs = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["tid"], e["ts"], e["dur"], e["cat"]) for e in runs] == [
        (0, 0, 0, 5, "compute"),
        (0, 1, 5, 2, "transfer"),
        (1, 1, 0, 6, "compute"),
    ]
    assert runs[1]["args"] == {"bytes": 64}
    assert one.load_us() == {"CPU": 5, "GPU": 2}
    assert one.to_json()["bytes_moved"] == 64

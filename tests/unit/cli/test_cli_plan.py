"""``partita plan`` on cost tables: no device of them exists."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from partita.cli.main import main
from partita_hetero.planner.problem import problem_file
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Task, Value
from partita_hetero.tuning.plan_report import PlanOptions, make_plan

MB = 1_000_000


def chain(nbytes=MB):
    """Four tasks in a row. NPU is ten times as fast on a and b, refuses c; moves take 5 + 10 us."""
    times = {"a": (10, 100), "b": (20, 200), "c": (None, 40), "d": (9, 10)}
    tasks = tuple(
        Task(
            name,
            (
                Cost(npu, reason="UNSUPPORTED_OP: no Sort" if npu is None else ""),
                Cost(cpu, "estimated" if name == "d" else "measured"),
            ),
            op_types=("Sort" if name == "c" else "Conv",),
            weight_bytes=MB,
        )
        for name, (npu, cpu) in times.items()
    )
    values = (
        Value("x", None, (0,), nbytes),
        Value("ab", 0, (1,), nbytes),
        Value("bc", 1, (2,), nbytes),
        Value("cd", 2, (3,), nbytes),
        Value("y", 3, (), nbytes, is_output=True),
    )
    devices = (
        Device("NPU", launch_us=2.0),
        Device("HOSTCPU", launch_us=1.0, host_memory=True),
    )
    links = (Link(HOST, 0, 5, MB / 10), Link(0, HOST, 5, MB / 10))
    return Problem(devices, tasks, values, links, name="chain")


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "costs.json"
    problem_file.save(chain(), path)
    return path


@pytest.fixture
def plan(costs, capsys):
    """Runs ``partita plan --costs ...``; returns exit code, stdout and stderr."""

    def run(*argv):
        code = main(["plan", "--costs", str(costs), *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def planned(plan):
    """The same, as JSON, which must succeed."""

    def run(*argv):
        code, out, err = plan("--json", *argv)
        assert code == 0, err
        return json.loads(out)

    return run


def where(data):
    return {one["task"]: one["device"] for one in data["tasks"]}


def test_a_plan_without_any_hardware(planned):
    data = planned()
    assert where(data) == {"a": "NPU", "b": "NPU", "c": "HOSTCPU", "d": "HOSTCPU"}
    # in 15, launch 2, a 10, b 20, out 15, launch 1, c 40, d 10
    assert data["latency_us"] == pytest.approx(113)
    assert data["value_us"] == pytest.approx(113)
    assert 0 <= data["bound_us"] <= 113
    assert data["bytes_moved"] == 2 * MB
    assert data["estimated"] == 1
    assert [(p["device"], p["ops"], p["us"]) for p in data["parts"]] == [
        ("NPU", 2, 30),
        ("HOSTCPU", 2, 50),
    ]
    use = {u["device"]: u for u in data["devices"]}
    assert use["NPU"]["load_us"] == pytest.approx(62)
    assert use["HOSTCPU"]["load_us"] == pytest.approx(51)
    assert use["NPU"]["weight_bytes"] == 2 * MB
    assert use["NPU"]["peak_bytes"] == 4 * MB  # weights, x and ab, or ab and bc


def test_it_is_compared_with_single_devices_and_greedy(planned):
    rivals = {r["name"]: r for r in planned()["rivals"]}
    assert rivals["only HOSTCPU"]["value_us"] == pytest.approx(351)
    assert rivals["only NPU"]["value_us"] is None
    assert rivals["only NPU"]["obstacle"] == "refuses 1 of 4 tasks, 'c' first"
    # greedy comes back for d: in 15, launch 2, d 9, out 15 instead of d 10
    assert rivals["greedy"]["value_us"] == pytest.approx(113 + 41 - 10)


def test_every_task_has_its_reason_and_what_would_change_it(planned):
    why = {one["task"]: one for one in planned()["tasks"]}
    assert why["b"]["reason"]["code"] == "CHEAPER_BY"
    assert why["b"]["reason"]["detail"] == "180 us less than on HOSTCPU"
    assert why["b"]["extra_us"] == pytest.approx(180)
    assert why["b"]["change"] == "HOSTCPU being 180 us faster here"
    assert why["c"]["reason"]["code"] == "UNSUPPORTED_OP"
    assert why["c"]["reason"]["detail"] == (
        "no other device takes it; NPU: UNSUPPORTED_OP: no Sort"
    )
    assert why["c"]["change"] == "NPU taking it"
    assert why["d"]["reason"]["code"] == "MERGED"
    assert why["d"]["reason"]["detail"] == (
        "by itself 1 us faster on NPU, but going there costs 32 us"
    )
    assert why["d"]["extra_us"] == pytest.approx(31)


def test_pins_hard_and_soft(planned, plan):
    data = planned("--pin", "type:Conv=HOSTCPU", "--pin", "a=NPU?")
    assert set(where(data).values()) == {"HOSTCPU"}
    why = {one["task"]: one for one in data["tasks"]}
    assert why["b"]["reason"] == {"code": "PINNED", "detail": "pinned to HOSTCPU"}
    assert where(planned("--pin", "re:^[ab]$=HOSTCPU?"))["a"] == "HOSTCPU"
    assert where(planned("--pin", "c=NPU?"))["c"] == "HOSTCPU"  # refused, so let go
    code, _, err = plan("--pin", "c=NPU")
    assert code == 1
    assert "Task 'c' is pinned to 'NPU', which refuses it: UNSUPPORTED_OP: no Sort." in err
    assert "matches none of 4 operations" in plan("--pin", "zz=NPU")[2]
    assert "There is no device 'GPU'; there are 'NPU', 'HOSTCPU'" in plan("--pin", "a=GPU")[2]
    assert "'zz' is not a pin; write NAME=DEVICE" in plan("--pin", "zz")[2]


def two_gpus(*limits, alike=("GPU", "GPU"), sort_us=None):
    """A chain that no cut halves: 7 us of which one task takes 4; moves take no time."""
    tasks = tuple(
        Task(name, (Cost(us), Cost(us), Cost(30 * us)), weight_bytes=MB, op_types=(name.title(),))
        for name, us in {"sinh": 1, "atan": 4, "tan": 1, "sort": 1}.items()
    )
    if sort_us is not None:
        costs = (Cost(None), Cost(None), Cost(sort_us))
        tasks = (*tasks[:3], Task("sort", costs, weight_bytes=MB))
    rooms = [*limits, None, None]
    gpus = [Device(f"GPU.{i}", rooms[i], alike=alike[i]) for i in range(2)]
    links = [Link(*ends) for i in range(2) for ends in ((HOST, i), (i, HOST))]
    values = tuple(Value(f"v{i}", i, (i + 1,)) for i in range(3))
    devices = (*gpus, Device("CPU", host_memory=True))
    return Problem(devices, tasks, values, tuple(links))


THROUGHPUT = ("--objective", "THROUGHPUT")


@pytest.mark.parametrize("asked", [THROUGHPUT, ("--property", "PERFORMANCE_HINT=THROUGHPUT")])
def test_devices_that_compute_alike_have_replicas(costs, planned, plan, tmp_path, asked):
    problem_file.save(two_gpus(), costs)
    data = planned(*asked)
    assert set(where(data).values()) == {"GPU.0 or GPU.1"}
    assert {one["reason"]["code"] for one in data["tasks"]} == {"REPLICATED"}
    assert data["value_us"] == pytest.approx(3.5)
    assert data["method"] == "replicas on GPU.0, GPU.1"
    lock = tmp_path / "plan.toml"
    assert plan(*asked, "--lock", lock)[0] == 0
    read = tomllib.loads(lock.read_text())
    assert set(read["ops"].values()) == {"GPU.0 or GPU.1"}
    assert read["plan"]["shares"] == "0.500 0.500"


def test_what_replicas_share_works_for_all_of_them(costs, planned):
    """Of 7 us the GPUs have 6, which is 3 for a request on the average; so have CPUs of 1.5."""
    problem_file.save(two_gpus(sort_us=2), costs)
    data = planned(*THROUGHPUT)
    assert where(data)["sort"] == "CPU"
    assert where(data)["atan"] == "GPU.0 or GPU.1"
    assert data["value_us"] == pytest.approx(3)
    assert data["method"] == "replicas on GPU.0, GPU.1 with CPU"
    loads = {use["device"]: use["load_us"] for use in data["devices"]}
    assert loads == pytest.approx({"GPU.0": 3, "GPU.1": 3, "CPU": 2})


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (two_gpus(), ("--objective", "LATENCY")),
        (two_gpus(), ("--property", "PERFORMANCE_HINT=THROUGHPUT", "--objective", "LATENCY")),
        (two_gpus(), (*THROUGHPUT, "-d", "HETERO:GPU.1,CPU")),
        (two_gpus(), (*THROUGHPUT, "--pin", "tan=GPU.1")),
        (two_gpus(), (*THROUGHPUT, "--pin", "tan=GPU.1?")),
        (two_gpus(), (*THROUGHPUT, "--memory", "GPU.1=3MB")),
        (two_gpus(alike=("GPU", "")), THROUGHPUT),
        (two_gpus(alike=("", "")), THROUGHPUT),
        (two_gpus(alike=("GPU", "other")), THROUGHPUT),
    ],
)
def test_there_are_no_replicas(costs, planned, problem, options):
    problem_file.save(problem, costs)
    data = planned(*options)
    assert not any(" or " in one["device"] for one in data["tasks"])
    assert "replicas" not in data["method"]


def test_memory_limits(costs, planned, plan):
    problem_file.save(chain(nbytes=1000), costs)  # weights of a and b do not fit together
    data = planned("--memory", "NPU=1.5MB")
    assert where(data) == {"a": "HOSTCPU", "b": "NPU", "c": "HOSTCPU", "d": "HOSTCPU"}
    why = {one["task"]: one for one in data["tasks"]}
    assert why["a"]["reason"]["code"] == "MEMORY_LIMIT"
    assert "NPU would be 91 us faster, but: " in why["a"]["reason"]["detail"]
    assert "more than its limit of 1500000" in why["a"]["reason"]["detail"]
    assert why["a"]["change"] == "a higher limit for NPU"
    use = {u["device"]: u for u in data["devices"]}
    assert use["NPU"]["limit_bytes"] == 1_500_000
    assert use["NPU"]["peak_bytes"] == MB + 2000
    code, _, err = plan("--memory", "HOSTCPU=1MB")
    assert code == 1
    assert "HOSTCPU" in err
    with pytest.raises(SystemExit):
        plan("--memory", "NPU=lots")
    assert "There is no device 'GPU'" in plan("--memory", "GPU=1GiB")[2]


def test_a_choice_of_devices(planned, plan):
    assert where(planned("-d", "HETERO:HOSTCPU")) == dict.fromkeys("abcd", "HOSTCPU")
    swapped = planned("-d", "HETERO:HOSTCPU,NPU")
    assert [u["device"] for u in swapped["devices"]] == ["HOSTCPU", "NPU"]
    assert swapped["value_us"] == pytest.approx(113)
    code, _, err = plan("-d", "HETERO:NPU")
    assert code == 1
    assert "No device takes task 'c': 'NPU' refuses it (UNSUPPORTED_OP: no Sort)" in err
    assert "There is no device 'GPU'" in plan("-d", "HETERO:GPU")[2]


def test_files(planned, plan, tmp_path):
    lock, again, trace = tmp_path / "plan.toml", tmp_path / "again.json", tmp_path / "trace.json"
    code, _, err = plan("--lock", lock, "--save-costs", again, "--trace", trace)
    assert code == 0
    assert f"wrote {lock}" in err
    read = tomllib.loads(lock.read_text())
    assert read["ops"] == {"a": "NPU", "b": "NPU", "c": "HOSTCPU", "d": "HOSTCPU"}
    assert read["plan"]["latency_us"] == 113
    assert read["plan"]["objective"] == "LATENCY"
    assert "# Sort" in lock.read_text()
    assert problem_file.load(again) == chain()
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X"} >= {"a", "b", "c", "d"}


def test_a_page_and_a_picture(plan, tmp_path):
    page, picture = tmp_path / "plan.html", tmp_path / "plan.svg"
    assert plan("--gantt", page)[0] == plan("--gantt", picture)[0] == 0
    text = page.read_text(encoding="utf-8")
    (record,) = json.loads(re.search('id="placements">(.*?)</script>', text)[1])
    assert record["run_us"] == 113
    assert [op["device"] for op in record["operations"]] == ["NPU", "NPU", "HOSTCPU", "HOSTCPU"]
    assert record["operations"][3]["elsewhere"]["HOSTCPU"] == {"us": 10, "is_measured": False}
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


def test_the_table_for_people(plan):
    code, out, _ = plan("--explain", "--objective", "THROUGHPUT")
    assert code == 0
    assert "CHEAPER_BY: " in out
    assert "objective  THROUGHPUT" in out
    assert "only NPU" in out
    assert "refuses 1 of 4 tasks" in out
    assert "estimated  1 of 4 tasks" in out


def test_wrong_usage(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["plan"])
    assert caught.value.code == 2
    assert "give a MODEL, or --costs" in capsys.readouterr().err
    assert main(["plan", "--costs", str(tmp_path / "no.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_a_search_that_time_ended_is_told(plan, costs, busy_clock):
    machines = (Device("CPU", host_memory=True, slots=1), Device("GPU", slots=1))
    tasks = tuple(Task(f"t{i}", (Cost(2 + i % 3), Cost(1 + i % 4))) for i in range(60))
    values = tuple(Value(f"v{i}", i, (i + 1, i + 2), transfer_us=1 + i % 2) for i in range(58))
    links = (Link(HOST, 1, 1), Link(1, HOST, 1))
    ended = "before the search was through"
    assert ended not in plan()[1]  # few placements are all tried, whatever the time
    problem_file.save(Problem(machines, tasks, values, links), costs)
    assert ended in plan("--objective", "PARALLEL", "--time-limit", "1")[1]


def test_what_tasks_cost_elsewhere_is_looked_for_no_longer_than_the_limit():
    for seconds, exactly in ((10.0, True), (1e-9, False)):
        planned = make_plan(chain(), PlanOptions(time_limit_s=seconds))
        found = [one.alternative for one in planned.why if one.alternative is not None]
        assert {one.exact for one in found if one.own_us is not None} == {exactly}

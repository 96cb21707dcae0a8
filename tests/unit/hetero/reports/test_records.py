"""What pages tell: the run in the middle, times joined with operations, costs elsewhere."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from partita import Core
from partita.contract.execution import Execution
from partita.contract.explanation import Boundary, Explanation, OpPlacement
from partita.contract.profiling import ProfilingInfo, Status
from partita.contract.query import Reason, ReasonCode
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.value_sizes import sizes_of
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Task, Value
from partita_hetero.planner.report.reasons import reasons
from partita_hetero.planner.report.summary import summarize
from partita_hetero.planner.search.solve import solve
from partita_hetero.planner.simulation.timeline import Span, Timeline
from partita_hetero.reports.plan_record import plan_record
from partita_hetero.reports.record import Crossing, DeviceCost
from partita_hetero.reports.run_record import Run, median_run, op_bytes, run_record

WHY = Reason(ReasonCode.PRIORITY, "first")


def run_of(us, counters=(), spans=()):
    return Run(us, counters, Timeline(tuple(spans), "measured") if spans else None, Execution())


@pytest.mark.parametrize(
    ("times", "told"), [([5.0], 5.0), ([9.0, 1.0, 5.0], 5.0), ([1.0, 90.0, 5.0, 6.0], 5.0)]
)
def test_an_outlier_is_not_told(times, told):
    assert median_run([run_of(us) for us in times]).us == told


def explained(*ops):
    placed = [OpPlacement(name, "Relu", device, part, WHY) for name, device, part in ops]
    crossing = Boundary("x", 1, 2, "upload", 24, "blocked", ("f16 on B",))
    return Explanation("m", placed, ["A", "B"], [crossing], ["one note"])


def test_times_belong_to_operations_of_the_run_in_the_middle():
    counters = [
        ProfilingInfo("subgraph1: 1. a", "Relu", "fused", real_time_us=3.0, covers=("b",)),
        ProfilingInfo("subgraph1: 2. b", "Relu"),
        ProfilingInfo("permute x (host to B)", "Permute", real_time_us=1.0),
        ProfilingInfo("subgraph2: 1. subgraph9: 1. c", "Relu", "plain", real_time_us=2.0),
        ProfilingInfo("subgraph2: 2. d", "Relu", "", Status.OPTIMIZED_OUT),
    ]
    slow = [ProfilingInfo("subgraph1: 1. a", "Relu", real_time_us=900.0)]
    spans = [Span("A", "subgraph1", 0, 4), Span("B", "subgraph2", 5, 8)]
    runs = [run_of(10.0, counters, spans), run_of(950.0, slow), run_of(9.0, slow)]
    why = explained(("a", "A", 1), ("b", "A", 1), ("subgraph9: 1. c", "B", 2), ("d", "B", 2))
    costs = {"a": {"B": DeviceCost(7.0, True)}}
    record = run_record("m", "HETERO:A,B", runs, why, [1, None, 3, 4], costs, None, {})
    assert record.run_us == 10.0
    assert record.run == "the median of 3 runs"
    told = [(op.us, op.kernel, op.computed_with, op.nbytes) for op in record.operations]
    assert told == [
        (3, "fused", "", 1),
        (None, "", "a", None),
        (2, "plain", "", 3),
        (None, "", "", 4),
    ]
    assert record.operations[0].elsewhere == costs["a"]
    assert [(part.device, part.ops, part.us) for part in record.parts] == [("A", 2, 4), ("B", 2, 3)]
    assert record.crossings == [Crossing("x", 1, 2, "upload, blocked, f16 on B", 24)]
    assert "one note" in record.notes


def test_bytes_of_operations():
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"], name="mul"),
        helper.make_node("Cast", ["y"], ["z"], name="cast", to=TensorProto.FLOAT16),
    ]
    ports = [
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT16, [2, 3])],
    ]
    graph = helper.make_graph(nodes, "g", *ports, [weights])
    versions = [helper.make_opsetid("", 17)]
    model = Core().read_model(helper.make_model(graph, opset_imports=versions, ir_version=8))
    op_graph = OpGraph.of(model)
    assert op_bytes(op_graph, sizes_of(model, {})) == [24 + 12 + 24, 24 + 12]
    assert op_bytes(op_graph, {"x": 24, "y": None}) == [None, None]


def test_a_plan_tells_what_tasks_cost_on_each_device():
    tasks = (
        Task("a", (Cost(5.0), Cost(50.0)), ("a0", "a"), ("Conv", "Relu"), 100),
        Task("b", (Cost(None, reason="no kernel"), Cost(7.0, "estimated")), ("b",), ("Exp",)),
    )
    values = (
        Value("in", None, (0,), 8),
        Value("x", 0, (1,), 16),
        Value("out", 1, (), 32, is_output=True),
    )
    links = (Link(0, HOST, 1.0), Link(HOST, 0, 1.0))
    problem = Problem(
        (Device("G"), Device("C", host_memory=True)), tasks, values, links, name="net"
    )
    plan = solve(problem, "LATENCY")
    why = reasons(problem, plan)
    record = plan_record(problem, plan, why, summarize(problem, plan, why))
    first, second = record.operations
    assert (first.device, first.part, first.us, first.nbytes) == ("G", 1, 5.0, 100 + 8 + 16)
    assert first.op_type == "Conv, Relu"
    assert first.elsewhere == {"G": DeviceCost(5.0, True), "C": DeviceCost(50.0, True)}
    assert second.elsewhere == {"C": DeviceCost(7.0, False)}
    assert record.crossings == [
        Crossing("in", None, 1, "moved", 8),
        Crossing("x", 1, 2, "moved", 16),
        Crossing("out", 2, None, "shared", 32),
    ]
    assert record.run_us == plan.timeline.latency_us == 14.0

"""What a contest learns from runs: factors of submodels, and what each submodel takes on top."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from models import model_of, node, value

from partita.contract.query import Reason, ReasonCode
from partita.frontends.reader import read_model
from partita_hetero.compile.replicas import ReplicaSet
from partita_hetero.cost.cost_table import CostTable, DeviceCosts
from partita_hetero.cost.fusion_groups import group
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.planner.simulation.timeline import Timeline
from partita_hetero.tuning.contest import Contest
from partita_hetero.tuning.contestant import Entry
from partita_hetero.tuning.profiler import Profile
from partita_hetero.tuning.sized_model import SizedModel
from partita_hetero.tuning.trial_run import Run

OPS = ("Atan", "Sinh", "Tan")  # none of these is ever grouped with another one


def contest_of(keys, refusals=None):
    proto = model_of(
        [node(op, [f"v{i}"], f"v{i + 1}", op.lower()) for i, op in enumerate(OPS)],
        [value("v0", [2, 3])],
        ["v3"],
    )
    model = read_model(proto)
    op_graph = OpGraph.of(model)
    groups = group(op_graph, lambda op: 0)
    devices = [
        DeviceCosts(name, key, "cpu", groups=dict.fromkeys(range(3), 1e-3))
        for name, key in keys.items()
    ]
    refused = [(refusals or {}).get(index, {}) for index in range(3)]
    table = CostTable(op_graph, groups, devices, refused, {}, {})
    compilation = SimpleNamespace(op_graph=op_graph, devices=SimpleNamespace(names=list(keys)))
    signatures = SimpleNamespace(of=str, label=str)
    sized = SizedModel(model, op_graph, {}, {})
    profile = Profile(compilation, sized, table, None, signatures)
    samples = SimpleNamespace(tensors=list, synthetic=True)
    return Contest(compilation, {}, [], table, profile, "LATENCY", samples)


def learn(contest, places, parts, whole):
    """As if a placement had run, of so many seconds by submodel and as a whole."""
    submodels, number = [], 0
    for op, place in enumerate(places):
        if op and places[op - 1] == place:
            submodels[-1].ops += (op,)
        else:
            number += 1
            submodels.append(SimpleNamespace(number=number, device=place, ops=(op,)))
    trial = SimpleNamespace(assembly=SimpleNamespace(submodels=submodels))
    entry = Entry("tried", ReplicaSet.single(SimpleNamespace(device=list(places))), trial)
    entry.run = Run(whole, dict(enumerate(parts, 1)), Timeline(()), 3)
    contest.correct_entry(entry)
    problem = contest.problem()
    costs = [[cost.us for cost in task.costs] for task in problem.tasks]
    return costs, [device.launch_us for device in problem.devices]


def test_devices_that_are_the_same_cost_the_same():
    contest = contest_of({"A": "one", "B": "one", "C": "other"})
    costs, _ = learn(contest, "AAA", [6e-3], 6e-3)
    for row in costs:
        assert row == pytest.approx([2e3, 2e3, 1e3])
    costs, _ = learn(contest, "BBB", [4.5e-3], 4.5e-3)
    for row in costs:
        assert row == pytest.approx([1.5e3, 1.5e3, 1e3])


def test_in_one_run_each_device_has_what_it_took():
    contest = contest_of({"A": "one", "B": "one"})
    costs, _ = learn(contest, "ABA", [2e-3, 3e-3, 4e-3], 9e-3)
    assert [row[0] for row in costs] == pytest.approx([2e3, 3e3, 4e3])
    assert [row[1] for row in costs] == pytest.approx([2e3, 3e3, 4e3])


def test_nothing_is_learned_of_what_a_device_refuses():
    no = Reason(ReasonCode.UNSUPPORTED_OP, "no kernel")
    contest = contest_of({"A": "one", "B": "one"}, {1: {"B": no}})
    costs, _ = learn(contest, "AAA", [6e-3], 6e-3)
    assert costs[1][1] is None
    assert contest.scales.keys() == {(0, "A"), (1, "A"), (2, "A"), (0, "B"), (2, "B")}


def test_what_submodels_take_on_top_shows_only_where_there_are_several():
    contest = contest_of({"A": "a", "B": "b"})
    _, launches = learn(contest, "AAA", [3e-3], 5e-3)  # a moment of noise, or the request's own
    assert launches == [0.0, 0.0]
    _, launches = learn(contest, "ABA", [1e-3, 1e-3, 1e-3], 3.3e-3)
    assert launches == pytest.approx([100, 100])
    _, launches = learn(contest, "BBB", [3e-3], 3e-3)
    assert launches == pytest.approx([100, 100])

"""Cost tables: what becomes of a model, its devices and their times as a placement problem."""

from __future__ import annotations

import math

import numpy as np
import pytest
from models import model_of, node, value, weight

from partita.contract.query import Reason, ReasonCode
from partita.frontends.reader import read_model
from partita_hetero.cost.cost_table import CostTable, DeviceCosts
from partita_hetero.cost.database import LinkCost
from partita_hetero.cost.fusion_groups import group
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.planner.problem.records import HOST

NO = Reason(ReasonCode.UNSUPPORTED_OP, "no kernel")


def table(**options):
    """conv -> relu -> (pool, pool2) -> concat, with constants computed from weights."""
    proto = model_of(
        [
            node("Conv", ["x", "w"], "a", "conv"),
            node("Relu", ["a"], "b", "relu"),
            node("MaxPool", ["b"], "c", "pool", kernel_shape=[1, 1]),
            node("AveragePool", ["b"], "d", "pool2", kernel_shape=[1, 1]),
            node("Exp", ["v"], "e", "constant"),
            node("Concat", ["c", "d", "e"], "y", "concat", axis=1),
        ],
        [value("x", [1, 2, 4, 4])],
        ["y", "c"],
        [
            weight("w", np.ones((3, 2, 1, 1), np.float32)),
            weight("v", np.ones((1, 1, 4, 4), np.float32)),
        ],
    )
    op_graph = OpGraph.of(read_model(proto))
    groups = group(op_graph, lambda op: 0)
    devices = [
        DeviceCosts(
            "GPU",
            "g",
            "gpu",
            1000,
            5e-6,
            (LinkCost("host", "g", 1e-5, 1e-9), LinkCost("g", "host", 2e-5, 0.0)),
        ),
        DeviceCosts("CPU", "c", "cpu", launch=1e-6, slots=2),
    ]
    sizes = {"x": 128, "b": 192, "c": 192, "d": 192, "y": None}
    refusals = [dict(options.get("refusals", {}).get(i, {})) for i in range(len(groups))]
    return CostTable(op_graph, groups, devices, refusals, options.get("pins", {}), sizes, name="m")


def test_tasks_and_values():
    costs = table()
    costs.devices[1].groups.update({0: 1e-3, 1: 2e-3, 2: 3e-3, 3: 4e-3})
    problem = costs.problem({}, 0.0)
    assert [task.name for task in problem.tasks] == ["relu", "pool", "pool2", "concat"]
    assert problem.tasks[0].ops == ("conv", "relu")
    assert problem.tasks[0].op_types == ("Conv", "Relu")
    assert problem.tasks[0].weight_bytes == 24
    assert [task.costs[1].us for task in problem.tasks] == pytest.approx([1e3, 2e3, 3e3, 4e3])
    values = {v.name: v for v in problem.values}
    assert set(values) == {"x", "b", "c", "d", "y"}
    assert (values["x"].producer, values["x"].consumers) == (None, (0,))
    assert (values["b"].producer, values["b"].consumers, values["b"].nbytes) == (0, (1, 2), 192)
    assert values["c"].is_output
    assert values["c"].consumers == (3,)
    assert (values["y"].is_output, values["y"].consumers, values["y"].nbytes) == (True, (), 0)


def test_devices_and_links():
    problem = table().problem({}, 2e-6)
    gpu, cpu = problem.devices
    assert (gpu.memory_bytes, gpu.launch_us, gpu.host_memory) == (1000, pytest.approx(7), False)
    assert (cpu.launch_us, cpu.host_memory, cpu.slots) == (pytest.approx(3), True, 2)
    there, back = problem.link(HOST, 0), problem.link(0, HOST)
    assert (there.latency_us, there.bytes_per_us) == (pytest.approx(10), pytest.approx(1000))
    assert (back.latency_us, back.bytes_per_us) == (pytest.approx(20), math.inf)


def test_refusals_pins_and_scales():
    costs = table(refusals={1: {"GPU": NO}}, pins={2: "CPU"})
    costs.devices[1].groups.update({0: 1e-3, 1: 2e-3})
    problem = costs.problem({(0, "CPU"): 3.0}, 0.0)
    assert problem.tasks[1].costs[0].us is None
    assert problem.tasks[1].costs[0].reason == "UNSUPPORTED_OP: no kernel"
    assert problem.tasks[0].costs[1].us == pytest.approx(3e3)
    assert [(pin.task, pin.device, pin.hard) for pin in problem.pins] == [(2, 1, True)]
    costs.refuse({(0, "CPU"): NO, (4, "CPU"): NO})
    assert costs.problem({}, 0.0).tasks[0].costs[1].us is None


def test_what_is_not_measured_is_estimated_and_says_so():
    costs = table()
    costs.devices[1].groups[0] = 5.0
    problem = costs.problem({}, 0.0)
    assert problem.tasks[0].costs[1].source == "measured"
    assert problem.tasks[1].costs[1].source == "estimated"
    slow = problem.tasks[1].costs[1].us
    costs.devices[1].groups[0] = 10.0
    assert costs.problem({}, 0.0).tasks[1].costs[1].us == pytest.approx(2 * slow)

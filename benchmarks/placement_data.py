"""Reads the published placement workloads as problems of the planner, and scores plans their way.

The workloads are those of "Efficient Algorithms for Device Placement of DNN Graph Operators"
(Tarnawski et al., NeurIPS 2020). An accelerator takes in what its submodel reads from main memory,
runs the submodel and brings out what others read; processor cores pay for no move.
"""

from __future__ import annotations

import json
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

from partita_hetero.planner.problem import HOST, Cost, Device, Link, Problem, Task, Value


def read(path: Path, latency: bool) -> Problem:
    """A workload as a problem; its unit of time counts as a microsecond."""
    data = json.loads(path.read_text())
    nodes = {node["id"]: node for node in data["nodes"]}
    readers: dict[int, list[int]] = defaultdict(list)
    sources: dict[int, list[int]] = {node: [] for node in nodes}
    cost: dict[int, float] = {}
    for edge in data["edges"]:
        source, target = edge["sourceId"], edge["destId"]
        if target not in readers[source]:
            readers[source].append(target)
            sources[target].append(source)
        cost[source] = edge["cost"]
    order = list(TopologicalSorter(sources).static_order())
    at = {node: index for index, node in enumerate(order)}
    accelerators = data["maxFPGAs"]
    host = Device("CPU", slots=None if latency else data["maxCPUs"], host_memory=True)
    if latency:
        host = Device("CPU", slots=None, host_memory=True, per_task=True)
    limit = int(data["maxSizePerFPGA"])
    devices = (host, *(Device(f"ACC.{i}", limit) for i in range(accelerators)))
    links = [Link(*ends) for i in range(1, accelerators + 1) for ends in ((HOST, i), (i, HOST))]
    tasks = []
    for node in (nodes[key] for key in order):
        there = Cost(node["fpgaLatency"] if node["supportedOnFpga"] else None)
        color = node.get("colorClass")
        tasks.append(
            Task(
                f"{node['id']}",
                (Cost(node["cpuLatency"]), *[there] * accelerators),
                weight_bytes=int(node["size"]),
                group=None if color is None else f"{color}",
            )
        )
    values = [
        Value(f"{node}", at[node], tuple(sorted(at[r] for r in readers[node])), 0, False, us)
        for node, us in cost.items()
    ]
    return Problem(
        devices, tuple(tasks), tuple(values), tuple(links), (), path.stem, early_handover=False
    )

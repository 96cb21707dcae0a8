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

from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Task, Value


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


def published_latency(path: Path, place: dict[str, int]) -> float:
    """Latency of a placement as the publication counts it, worked out from the file alone.

    Args:
        path: The workload.
        place: Node to device, 0 for processor cores; each accelerator has one contiguous submodel.
    """
    data = json.loads(path.read_text())
    node = {entry["id"]: entry for entry in data["nodes"]}
    device = {key: place[str(key)] for key in node}
    piece = {key: ("node", key) if at == 0 else ("acc", at) for key, at in device.items()}
    inside: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key in node:
        inside[piece[key]].append(key)
    cost = {edge["sourceId"]: edge["cost"] for edge in data["edges"]}
    edges = {(edge["sourceId"], edge["destId"]) for edge in data["edges"]}
    waits: dict[tuple[str, int], set[tuple[str, int]]] = {name: set() for name in inside}
    comes: dict[tuple[str, int], set[int]] = defaultdict(set)
    goes: dict[tuple[str, int], set[int]] = defaultdict(set)
    for source, target in edges:
        if piece[source] != piece[target]:
            waits[piece[target]].add(piece[source])
            comes[piece[target]].add(source)
            goes[piece[source]].add(source)
    end: dict[tuple[str, int], float] = {}
    for name in TopologicalSorter(waits).static_order():
        end[name] = max((end[other] for other in waits[name]), default=0.0)
        if name[0] == "node":
            end[name] += node[name[1]]["cpuLatency"]
        else:
            end[name] += sum(node[key]["fpgaLatency"] for key in inside[name])
            end[name] += sum(cost[key] for key in comes[name] | goes[name])
            if sum(node[key]["size"] for key in inside[name]) > data["maxSizePerFPGA"]:
                raise ValueError(f"accelerator {name[1]} is too full")
    _check_colors(node, device)
    return max(end.values())


def published_load(path: Path, place: dict[str, int]) -> float:
    """Load of the busiest device as the publication counts it, from the file alone."""
    data = json.loads(path.read_text())
    node = {entry["id"]: entry for entry in data["nodes"]}
    device = {key: place[str(key)] for key in node}
    load: dict[int, float] = defaultdict(float)
    size: dict[int, float] = defaultdict(float)
    for key, entry in node.items():
        load[device[key]] += entry["fpgaLatency"] if device[key] else entry["cpuLatency"]
        size[device[key]] += entry["size"]
    cost = {edge["sourceId"]: edge["cost"] for edge in data["edges"]}
    readers: dict[int, set[int]] = defaultdict(set)
    for edge in data["edges"]:
        readers[edge["sourceId"]].add(device[edge["destId"]])
    for source, targets in readers.items():
        others = targets - {device[source]}
        for at in others | ({device[source]} if others else set()):
            load[at] += cost[source] if at else 0.0
    if any(at and bytes_ > data["maxSizePerFPGA"] for at, bytes_ in size.items()):
        raise ValueError("an accelerator is too full")
    _check_colors(node, device)
    return max(load.values())


def _check_colors(node: dict[int, dict], device: dict[int, int]) -> None:
    """Nodes of one colour must share a device."""
    where: dict[int, int] = {}
    for key, entry in node.items():
        color = entry.get("colorClass")
        if color is not None and where.setdefault(color, device[key]) != device[key]:
            raise ValueError(f"nodes of colour {color} are on different devices")

"""The record of a placement that was run: what was explained joined with what was counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.contract.execution import Execution
from partita.contract.explanation import Explanation
from partita.contract.profiling import DeviceSpan, ProfilingInfo, Status
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.simulation.timeline import Timeline
from partita_hetero.reports.record import (
    Crossing,
    DeviceCost,
    Operation,
    PlacementRecord,
    SubmodelRecord,
)

_BEFORE_NAME = re.compile(r"subgraph\d+: \d+\. ")
"""What HETERO puts before the name of an operation in counters."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a request.

    Attributes:
        us: How long it took, in microseconds.
        counters: What devices counted in it.
        timeline: When each step began and ended; ``None`` where one device does everything.
        execution: By what its steps were executed.
        spans: When which device was busy with it, by the clock of this process.
    """

    us: float
    counters: Sequence[ProfilingInfo]
    timeline: Timeline | None
    execution: Execution
    spans: Sequence[DeviceSpan] = ()


def median_run(runs: Sequence[Run]) -> Run:
    """The run in the middle by its time; of two the faster one."""
    return sorted(runs, key=lambda run: run.us)[(len(runs) - 1) // 2]


def op_bytes(graph: OpGraph, sizes: Mapping[str, int | None]) -> list[int | None]:
    """What each operation reads and writes, weights included; ``None`` where a size is missing."""
    found: list[int | None] = []
    for op, (reads, writes) in enumerate(zip(graph.reads, graph.writes, strict=True)):
        constants = graph.weights_of(op, sizes)
        passing = [sizes.get(name) for name in (*reads, *writes) if name not in constants]
        known = [nbytes for nbytes in passing if nbytes is not None]
        whole = len(known) == len(passing)
        found.append(sum(known) + sum(constants.values()) if whole else None)
    return found


def costs_elsewhere(problem: Problem) -> dict[str, dict[str, DeviceCost]]:
    """What tasks cost on each device that takes them, by the name of the task's operation."""
    return {
        task.name: {
            device.name: DeviceCost(cost.us, cost.source == "measured")
            for device, cost in zip(problem.devices, task.costs, strict=True)
            if cost.us is not None
        }
        for task in problem.tasks
    }


def run_record(
    model: str,
    device: str,
    runs: Sequence[Run],
    explanation: Explanation,
    nbytes: Sequence[int | None],
    elsewhere: Mapping[str, Mapping[str, DeviceCost]],
    predicted: Timeline | None,
    facts: Mapping[str, str],
) -> PlacementRecord:
    """The record of some runs, all of it of the one in the middle.

    Args:
        model: As the user named it.
        device: The device string.
        runs: The median one is described.
        explanation: Where everything is, and why.
        nbytes: What each operation reads and writes.
        elsewhere: Operation to what it costs by device, where that was asked.
        predicted: The run that was foreseen, if one was.
        facts: What else there is to say.
    """
    run = median_run(runs)
    timelines = [one for one in (predicted, run.timeline) if one is not None]
    decision = [] if explanation.decision is None else explanation.decision.lines()
    shapes = [f"planned for inputs near {explanation.planned_for}"]
    shapes = shapes if explanation.planned_for else []
    shapes += [f"near {where}: {one.summary()}" for where, one in explanation.near.items()]
    spread = [explanation.spread()] if explanation.replicas else []
    operations = _operations(run, explanation, nbytes, elsewhere)
    return PlacementRecord(
        model,
        device,
        "the one run" if len(runs) == 1 else f"the median of {len(runs)} runs",
        run.us,
        facts,
        [explanation.summary(), *spread, *explanation.notes, *shapes, *decision],
        operations,
        _submodels(run, explanation, operations),
        [
            Crossing(
                one.value,
                one.source,
                one.target,
                ", ".join([one.how, *([one.layout] if one.layout else []), *one.casts]),
                one.nbytes,
            )
            for one in explanation.boundaries
        ],
        timelines,
        tuple(run.execution.rows()),
    )


def _operations(
    run: Run,
    explanation: Explanation,
    nbytes: Sequence[int | None],
    elsewhere: Mapping[str, Mapping[str, DeviceCost]],
) -> list[Operation]:
    names = {op.name for op in explanation.ops}
    times: dict[str, float] = {}
    kernels: dict[str, str] = {}
    leader: dict[str, str] = {}
    for info in run.counters:
        name = info.node_name
        if name not in names:
            name = _BEFORE_NAME.sub("", name, count=1)
        if info.status is not Status.EXECUTED:
            continue
        times[name] = times.get(name, 0.0) + info.real_time_us
        kernels[name] = info.exec_type
        leader |= dict.fromkeys(info.covers, name)
    return [
        Operation(
            op.name,
            op.op_type,
            op.where,
            op.subgraph,
            times.get(op.name) if op.name not in leader else None,
            size,
            kernels.get(op.name, ""),
            leader.get(op.name, ""),
            str(op.reason.code),
            op.why,
            op.elsewhere,
            op.change,
            elsewhere.get(op.name, {}),
        )
        for op, size in zip(explanation.ops, nbytes, strict=True)
    ]


def _submodels(
    run: Run, explanation: Explanation, operations: Sequence[Operation]
) -> list[SubmodelRecord]:
    """The submodels; a request of one device is timed as a whole."""
    spans = () if run.timeline is None else run.timeline.spans
    took = {span.name: span.duration_us for span in spans}
    counts: dict[int | None, int] = {}
    for op in operations:
        counts[op.part] = counts.get(op.part, 0) + 1
    alone = run.us if len(explanation.subgraph_devices) == 1 else None
    return [
        SubmodelRecord(number, device, counts.get(number, 0), took.get(f"subgraph{number}", alone))
        for number, device in enumerate(explanation.subgraph_devices, 1)
    ]

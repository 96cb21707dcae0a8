"""Interference: devices that slow each other down, found by runs with and without pauses.

An engine whose idle threads keep looking for work takes processors from the device that runs next;
and where these are scarce its own threads have used up their share when its next turn comes. So a
plan is run as requests run it, and with pauses wherever another device has its turn, each of them
as long as threads of this process are still at work. What a submodel takes after a pause is what it
takes alone, with caches as in the plan; what threads did in the pause tells whose they are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partita.tensors.tensor import Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.cost import clock
from partita_hetero.executors import Cancelled, Executor, RunStep, Schedule
from partita_hetero.runtime.bound_request import BoundRequest
from partita_hetero.runtime.failover import Failover

if TYPE_CHECKING:
    from partita.contract.core_api import CoreAPI
    from partita_hetero.compile.pipeline import Compilation

SPINNING = "ALLOW_SPINNING"
"""The property by which devices keep idle threads at work, or not."""

THREADS = "INFERENCE_NUM_THREADS"

WARM, RUNS = 2, 5
"""So often the plan is run each way, first to make buffers and bind calls; medians count."""

MOST_S = 0.5
"""After so many seconds no further run begins: what is slow loses little to threads that spin."""

SLOWED = 1.3
"""Submodels that take so many times as long beside others are reported."""

LEAST_S = 1e-4
"""What they lose must be more than this."""

SLICE_S = 0.004
"""A pause is made of slices; it ends with the first one in which hardly anything was computed."""

QUIET = 0.1
"""Share of a slice that a quiet process computes at most."""

LONGEST_S = 0.4
"""A process that is not quiet after such a pause has other work: nothing can be concluded."""

SPUN_S = 1e-3
"""Threads that took so much of the processors in a pause did spin."""

EXPLAINED = 0.5
"""What spins must have taken this share of what submodels lost, or that is not why."""


@dataclass(frozen=True)
class Slowdown:
    """A device whose submodels take longer beside another one's.

    Attributes:
        device: The device.
        neighbours: The other one, or several.
        beside_s: Seconds of its submodels in the plan.
        alone_s: Seconds of the same submodels after pauses.
        submodels: How many these are.
        spinner: Whose idle threads took most of the processors, the device's or the neighbour's.
        spun_s: Processor seconds that they took in a pause, in the mean.
    """

    device: str
    neighbours: tuple[str, ...]
    beside_s: float
    alone_s: float
    submodels: int
    spinner: str
    spun_s: float

    @property
    def lost_s(self) -> float:
        """Seconds that its submodels lose."""
        return self.beside_s - self.alone_s

    @property
    def spins(self) -> bool:
        """Whether it is idle threads that these are lost to."""
        return self.spun_s >= max(SPUN_S, EXPLAINED * self.lost_s / self.submodels)

    def describe(self, core: CoreAPI) -> str:
        """A sentence for people: the slowdown, and which property to set against it."""
        text = (
            f"{self.device} ran {self.beside_s / self.alone_s:.1f} times slower beside "
            f"{', '.join(self.neighbours)}: {self.beside_s * 1e3:.2f} ms in the plan, "
            f"{self.alone_s * 1e3:.2f} ms after a pause"
        )
        if not self.spins:
            return (
                f"{text}. They compute on the same processors at the same time: set {THREADS} of "
                "each, so that all together have a thread for each processor."
            )
        if core.accepts_property(self.spinner, SPINNING):
            advice = f"set {SPINNING}=NO for {self.spinner}"
        else:
            advice = f"set the option of {self.spinner}'s engine that lets idle threads sleep"
            if core.accepts_property(self.spinner, THREADS):
                advice += f", or a lower {THREADS}"
        return (
            f"{text}. Threads of {self.spinner} spin: {self.spun_s * 1e3:.1f} ms of processor "
            f"time in a pause; {advice}."
        )


def slowdowns(
    compilation: Compilation, assembly: Assembly, inputs: Sequence[Tensor]
) -> list[Slowdown]:
    """Runs a plan of several devices both ways; whose submodels take longer beside others.

    Takes some pauses and fourteen requests, of slow ones two.

    Args:
        compilation: What the assembly comes from.
        assembly: The compiled placement.
        inputs: What it is run on.

    Raises:
        SubmodelFailedError: A device failed.
    """
    if len({submodel.device for submodel in assembly.submodels}) < 2:
        return []
    properties = compilation.devices.properties
    counting = properties.model_copy(update={"STRICT": True, "PERF_COUNT": True})
    failover = Failover(compilation, assembly, counting)
    paused = _Paused()
    beside = _submodel_seconds(failover, assembly, inputs, properties.executor)
    alone = _submodel_seconds(failover, assembly, inputs, paused)
    if paused.gave_up:
        return []
    found: dict[tuple[str, tuple[str, ...]], list[tuple[float, float]]] = {}
    in_order = properties.executor.one_at_a_time
    for device, before, number in _turns(assembly, in_order):
        found.setdefault((device, before), []).append((beside[number], alone[number]))
    measured = [
        Slowdown(
            device,
            others,
            sum(both for both, _ in pairs),
            sum(apart for _, apart in pairs),
            len(pairs),
            *paused.spinner((*others, device)),
        )
        for (device, others), pairs in found.items()
    ]
    return [one for one in measured if _counts(one, in_order)]


def _counts(found: Slowdown, in_order: bool) -> bool:
    """Whether it is reported; those that run in turns disturb each other by spinning alone."""
    slowed = found.alone_s > 0 and found.beside_s >= SLOWED * found.alone_s
    return slowed and found.lost_s >= LEAST_S and (found.spins or not in_order)


def _turns(assembly: Assembly, in_order: bool) -> list[tuple[str, tuple[str, ...], int]]:
    """For each submodel its device, that of the one before (or all others), and its number."""
    used = list(dict.fromkeys(submodel.device for submodel in assembly.submodels))
    turns: list[tuple[str, tuple[str, ...], int]] = []
    last = ""
    for submodel in assembly.submodels:
        device = submodel.device
        others = tuple(name for name in used if name != device and (name == last or not in_order))
        if others:
            turns.append((device, others, submodel.number))
        last = device
    return turns


def _submodel_seconds(
    failover: Failover, assembly: Assembly, inputs: Sequence[Tensor], executor: Executor
) -> dict[int, float]:
    """Median seconds of each submodel."""
    request = BoundRequest(failover, assembly, executor)
    taken: list[dict[int, float]] = []
    try:
        start = clock.seconds()
        for number in range(WARM + RUNS):
            request.run(inputs, None, lambda: False)
            is_late = clock.seconds() - start > MOST_S
            if request.times is not None and (is_late or number >= WARM):
                taken.append(request.times.submodel_seconds())
            if is_late:
                break
    finally:
        request.close()
    return {number: statistics.median(run[number] for run in taken) for number in taken[0]}


@dataclass
class _Paused(Executor):
    """The steps in their order, with a pause wherever another device has its turn.

    Attributes:
        gave_up: Whether the process did not become quiet in a pause.
        spun: Device to the processor seconds taken in each of the pauses behind its submodels.
        last: The device that ran last, in this run or the one before.
    """

    gave_up: bool = False
    last: str = ""
    spun: dict[str, list[float]] = field(default_factory=dict)

    def run(self, schedule: Schedule, run: RunStep, cancelled: Cancelled) -> None:
        """Runs the steps."""
        for index in range(schedule.count):
            device = schedule.devices[index]
            if device and device != self.last:
                spun = 0.0 if self.gave_up else _pause()
                self.gave_up |= math.isinf(spun)
                self.spun.setdefault(self.last, []).append(spun)
                self.last = device
            run(index)

    def spinner(self, devices: Sequence[str]) -> tuple[str, float]:
        """Behind whose submodels threads took most of the processors, and how much, in the mean."""
        spun = {device: statistics.fmean(self.spun.get(device, [0.0])) for device in devices}
        most = max(spun, key=spun.__getitem__)
        return most, spun[most]


def _pause() -> float:
    """Sleeps until this process is quiet; the processor seconds that it took till then.

    Infinite if it does not become quiet.
    """
    spent, start = 0.0, clock.seconds()
    while clock.seconds() - start < LONGEST_S:
        before = clock.processor_seconds()
        clock.sleep(SLICE_S)
        taken = clock.processor_seconds() - before
        if taken <= QUIET * SLICE_S:
            return spent
        spent += taken
    return math.inf

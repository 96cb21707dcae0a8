"""A placement run for real: how long the whole takes, each submodel, and each operation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.runtime.compiled_model import CompiledModel
from partita.runtime.infer_queue import AsyncInferQueue
from partita.tensors.tensor import Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.pipeline import Compilation
from partita_hetero.cost import clock
from partita_hetero.cost.machine_load import LoadWatch
from partita_hetero.cost.timing import Effort, repeat
from partita_hetero.device_model import HeteroModel
from partita_hetero.planner.simulation.timeline import Timeline
from partita_hetero.runtime.failover import Failover
from partita_hetero.runtime.request_runner import HeteroRunner

EFFORT = Effort(warm=4, least=5, most=41, seconds=0.4, warm_seconds=0.1)
WATCHED = Effort(warm=2, least=3, most=15, seconds=0.3)
TURN_SECONDS = 0.004
WARM_RUNS = 4
"""Of each request, before throughput is measured: the first ones bind kernels and memory."""
COUNTED = Effort(warm=2, least=2, most=5, seconds=0.3)

DISTURBED = 2.0
"""Runs that take so many times as long when they are watched are watched again: some drivers load
programs behind the first runs, and hold up all others meanwhile.
"""

_WATCHES = 4


Counters = Mapping[tuple[str, ...], float]
"""Names of operations that were computed together to their seconds."""


@dataclass(frozen=True)
class Run:
    """What some runs of a placement took.

    Attributes:
        seconds: Median of the whole.
        submodel_seconds: Median seconds of each submodel, by number.
        timeline: The last run.
        samples: How many runs.
        busy: The share of the processors that others used meanwhile.
    """

    seconds: float
    submodel_seconds: Mapping[int, float]
    timeline: Timeline
    samples: int
    busy: float = 0.0


class Trial:
    """A placement with the requests that it is tried with.

    Args:
        compilation: What the assembly comes from.
        assembly: The compiled placement.
        inputs: What it is run on.

    Attributes:
        assembly: The compiled placement.
        inputs: What it is run on.
        compiled: The placement as an application has a model.
    """

    def __init__(
        self, compilation: Compilation, assembly: Assembly, inputs: Sequence[Tensor]
    ) -> None:
        self.assembly = assembly
        self.inputs = list(inputs)
        properties = compilation.devices.properties
        # A failure shows, instead of moving something.
        plain = properties.model_copy(update={"STRICT": True, "PERF_COUNT": False})
        self.compiled = CompiledModel(HeteroModel(compilation, assembly, plain))
        self._request = self.compiled.create_infer_request()
        self._request.set_input_tensors(dict(enumerate(inputs)))
        ports = self.compiled.inputs
        self._arrays = {port.name: one.numpy() for port, one in zip(ports, inputs, strict=True)}
        self._queue: AsyncInferQueue | None = None
        timed = plain.model_copy(update={"PERF_COUNT": True})
        self._timed = HeteroRunner(Failover(compilation, assembly, timed))

    def run(self) -> float:
        """Runs once, as an application would; returns the seconds."""
        start = clock.seconds()
        self._request.infer(share_outputs=True)
        return clock.seconds() - start

    def take_turn(self) -> float:
        """Median seconds of runs one after another, for a while.

        A run that follows another placement's finds other things in the caches, and cores that the
        other's threads have not left yet.
        """
        start = clock.seconds()
        times: list[float] = []
        while not times or clock.seconds() - start < TURN_SECONDS:
            times.append(self.run())
        return statistics.median(times)

    def measure(self, effort: Effort = EFFORT) -> Run:
        """Runs several times as an application would, then noting each submodel's time."""
        load = LoadWatch()
        times = repeat(self.run, effort)
        whole = statistics.median(times)
        by_submodel: dict[int, list[float]] = {
            submodel.number: [] for submodel in self.assembly.submodels
        }

        def watch() -> float:
            seconds = self.run_watched()
            for number, taken in self._timed.submodel_seconds().items():
                by_submodel[number].append(taken)
            return seconds

        for _ in range(_WATCHES):
            watched = repeat(watch, WATCHED)
            slowed = max(1.0, statistics.median(watched) / whole)  # by being watched
            if slowed < DISTURBED:
                break
        return Run(
            whole,
            {
                number: statistics.median(taken[-len(watched) :]) / slowed
                for number, taken in by_submodel.items()
            },
            self._timed.timeline(),
            len(times),
            load.share(),
        )

    def run_watched(self) -> float:
        """Runs once, noting the time of each submodel; returns the seconds."""
        start = clock.seconds()
        self._timed.run(self.inputs)
        return clock.seconds() - start

    def count(self, effort: Effort = COUNTED) -> dict[int, Counters]:
        """Runs several times; what the devices' own counters say, by submodel.

        Means, in seconds; empty for a submodel whose device keeps no counters.
        """
        counted: list[dict[int, Counters]] = []

        def once() -> float:
            seconds = self.run_watched()
            counted.append(
                {
                    number: {
                        (info.node_name, *info.covers): info.real_time_us * 1e-6 for info in infos
                    }
                    for number, infos in self._timed.counters().items()
                }
            )
            return seconds

        counted = counted[-len(repeat(once, effort)) :]
        return {
            number: {
                names: statistics.fmean(run[number].get(names, 0.0) for run in counted)
                for names in counted[-1][number]
            }
            for number in counted[-1]
        }

    @property
    def requests_at_once(self) -> int:
        """How many requests its devices work on at the same time."""
        return max(2, self.compiled.optimal_number_of_infer_requests)

    def seconds_per_request(self, requests: int, at_once: int) -> float:
        """Time between results when several requests are in flight, all of which have run before.

        They go through a queue, as an application's would: it copies inputs to memory from which
        devices read quickly.
        """
        if self._queue is None or len(self._queue) != at_once:
            self._queue = AsyncInferQueue(self.compiled, at_once)
            self._flow(self._queue, WARM_RUNS * at_once)
        return self._flow(self._queue, requests) / requests

    def _flow(self, queue: AsyncInferQueue, requests: int) -> float:
        """Seconds of some requests."""
        start = clock.seconds()
        for _ in range(requests):
            queue.start_async(self._arrays)
        queue.wait_all()
        return clock.seconds() - start

    def close(self) -> None:
        """Frees what the requests hold."""
        for request in (self._request, *(self._queue or ())):
            request.runner.close()
        self._timed.close()

"""A candidate placement with its measured times, and the rule by which one of several is kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partita_hetero.compile.replicas import ReplicaSet
from partita_hetero.placement.by_priority import Placement
from partita_hetero.tuning.trial_run import Run, Trial

PLAN = "plan"

MARGIN = 0.01
MAJORITY = 0.75
"""A plan replaces a simpler placement only if it is faster by more than the margin in the median,
and faster in that share of the rounds: on a busy machine medians of equal placements differ."""


@dataclass
class Entry:
    """One placement.

    Attributes:
        name: For reports.
        replica_set: A device for every operation; with replicas, several.
        trial: What runs it; ``None`` if that failed.
        run: Its first runs.
        submodels: How many there are.
        scales: Factors for the costs of groups, learned from the run.
        overhead: Seconds of each submodel beyond its device's launch, learned from the run.
        foreseen_us: What the cost model said before it ran.
        predicted_us: What it says once each submodel was timed, before the race.
        failure: Why it cannot be kept.
        times: Seconds of a request, or between results, in the race.
    """

    name: str
    replica_set: ReplicaSet
    trial: Trial | None = None
    run: Run | None = None
    submodels: int = 0
    scales: Mapping[tuple[int, str], float] = field(default_factory=dict)
    overhead: float = 0.0
    foreseen_us: float | None = None
    predicted_us: float | None = None
    failure: str = ""
    times: list[float] = field(default_factory=list)

    @property
    def placement(self) -> Placement:
        """The placement; with replicas the first one."""
        return self.replica_set.placements[0]

    @property
    def is_replicated(self) -> bool:
        """Whether requests are spread over replicas."""
        return len(self.replica_set.placements) > 1

    @property
    def median(self) -> float:
        """Median of the race's times."""
        return statistics.median(self.times) if self.times else math.inf

    @property
    def noise(self) -> float | None:
        """Within so much of the median half of the race's times lie; unknown of one time."""
        if len(self.times) < 2:
            return None
        return statistics.median(abs(time - self.median) for time in self.times)

    def close(self) -> None:
        """Frees what its requests hold."""
        if self.trial is not None:
            self.trial.close()


def best(entries: Sequence[Entry], present: Entry | None = None) -> Entry | None:
    """What is kept; ``None`` if nothing has run.

    Args:
        entries: What raced.
        present: What the model has already, for other shapes: only what surely beats it is kept.
    """
    ran = sorted((entry for entry in entries if entry.times), key=lambda entry: entry.median)
    simple = next((e for e in ran if e.name != PLAN and not e.is_replicated), None)
    if present in ran:
        simple = present
    return next((e for e in ran if simple is None or e is simple or _beats(e, simple)), None)


def _beats(plan: Entry, simple: Entry) -> bool:
    """Whether a plan is surely faster than a simpler placement that ran in turns with it.

    Of one that dropped out, the best round counts: it ran in the first ones alone, in which others
    may have been slow, while a driver assembled kernels behind them.
    """
    if len(simple.times) < len(plan.times):
        return plan.median * (1 + MARGIN) < min(simple.times)
    pairs = list(zip(plan.times, simple.times, strict=False))  # the plan may have dropped out
    won = sum(ours < theirs for ours, theirs in pairs)
    return plan.median * (1 + MARGIN) < simple.median and won >= MAJORITY * len(pairs)


def decided(racing: Sequence[Entry]) -> bool:
    """Whether one has always been faster than any other ever was."""
    ranked = sorted(racing, key=lambda entry: entry.median)
    return not ranked or all(max(ranked[0].times) < min(other.times) for other in ranked[1:])

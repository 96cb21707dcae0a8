"""A plan: a placement with its value, a proven lower bound, and the gap between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from partita_hetero.planner.simulation.timeline import Timeline

Objective = Literal["LATENCY", "PARALLEL", "THROUGHPUT"]
OBJECTIVES: tuple[Objective, ...] = ("LATENCY", "PARALLEL", "THROUGHPUT")
"""What is minimized: the time of one request run step by step; of one request whose independent
submodels run at the same time; of the busiest device when requests are pipelined."""


@dataclass(frozen=True)
class Plan:
    """A device for each task.

    Attributes:
        assignment: Device index of each task.
        objective: What was minimized.
        value_us: The objective, penalties of soft pins included.
        bound_us: No placement is better than this.
        method: What found it.
        order: Tasks in the order in which they start.
        timeline: The simulated run.
        seconds: Time that planning took.
        proof: What gave the bound.
        tried: Method to the value that it reached.
        replicas: The assignment of each further replica, if requests are spread over some.
        shares: The share of the requests of each replica, the first one's first.
        cut: Whether a method was left out or ended before it was through, for want of time or room,
            so that there may be a better plan; never if this one is proven to be optimal.
    """

    assignment: tuple[int, ...]
    objective: Objective
    value_us: float
    bound_us: float
    method: str
    order: tuple[int, ...]
    timeline: Timeline
    seconds: float = 0.0
    proof: str = ""
    tried: dict[str, float] = field(default_factory=dict)
    cut: bool = False
    replicas: tuple[tuple[int, ...], ...] = ()
    shares: tuple[float, ...] = (1.0,)

    @property
    def assignments(self) -> tuple[tuple[int, ...], ...]:
        """Those of all replicas."""
        return (self.assignment, *self.replicas)

    @property
    def gap(self) -> float:
        """How far the value can at most be from the optimum, as a share of the value."""
        if self.value_us <= 0:
            return 0.0
        return max(0.0, 1.0 - self.bound_us / self.value_us)

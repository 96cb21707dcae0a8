"""The state of a search: the best placement so far, the best bound, and the attempts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.arrays.blocks import Blocks, contract
from partita_hetero.planner.arrays.device_kinds import Kind, kinds
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays, flatten
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.search.memory_fit import repair
from partita_hetero.planner.simulation.feasible import broken_rules, is_contiguous
from partita_hetero.planner.simulation.plan import Objective
from partita_hetero.planner.simulation.simulate import objective_value, simulate
from partita_hetero.planner.simulation.timeline import Timeline

CLOSE = 1e-5
"""A value this close to the bound is optimal: minimum cuts count in rounded times."""

FEW = 2000
"""Up to so many placements are all tried."""

NEIGHBOURS = 5000
"""Up to so many placements that differ from the best one in few units are all tried."""

CAUTION = 1.2
"""How much more room is left for live values than a refused placement needed."""


@dataclass(frozen=True)
class Found:
    """A placement that keeps every rule.

    Attributes:
        method: What found it.
        place: Device of each unit.
        value: What is minimized.
        timeline: The simulated run.
    """

    method: str
    place: Array
    value: float
    timeline: Timeline


@dataclass
class Search:
    """What is known so far about one problem.

    Attributes:
        objective: What is minimized.
        contiguous: Whether each device gets one contiguous subgraph.
        best: The best plan so far.
        bound: The best lower bound so far.
        proof: What gave it.
        tried: Method to the best value it reached.
        broken: Rules that the last refused placement broke.
        lost: Whether a better placement was refused for what its live values take.
        cut: Whether a method was left out or ended early, for want of time or room.
        whole: The problem in arrays, for bounds.
        arrays: The same with limits that leave room for live values, for searching.
        limited: Whether a device has a memory limit.
        alive: Whether live values count against it.
        surcharges: Shares of the launches that searches put on moves, see :func:`with_surcharge`.
        alike: The kinds of devices.
        through_host: Whether there is no direct link between devices.
        blocks: What a contiguous placement keeps together, where that matters.
    """

    problem: Problem
    objective: Objective
    contiguous: bool
    best: Found | None = None
    bound: float = 0.0
    proof: str = "none"
    tried: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    lost: bool = False
    cut: bool = False

    def __post_init__(self) -> None:
        self.full_arrays: Arrays = flatten(self.problem)
        self.arrays = self.full_arrays
        self.limited = bool(np.isfinite(self.full_arrays.limit).any())
        self.alive = self.limited and any(value.nbytes for value in self.problem.values)
        self.surcharges = (0.0, 0.5, 1.0) if self.full_arrays.launch.any() else (0.0,)
        self._seen: dict[bytes, float] = {}
        self._most_alive = np.zeros(len(self.problem.devices))
        self.alike: list[Kind] = kinds(self.full_arrays)
        self.through_host = not self.full_arrays.is_direct.any()
        self.blocks: Blocks | None = None
        if self.contiguous or self.objective != "LATENCY":
            self.blocks = contract(self.full_arrays)

    @property
    def done(self) -> bool:
        """Whether the best plan is proven to be optimal."""
        return self.best is not None and self.best.value <= self.bound * (1 + CLOSE)

    def offer(self, method: str, place: Array) -> None:
        """Simulates a placement and keeps it if it is the best that breaks no rule."""
        if self.contiguous and not is_contiguous(self.problem, self.full_arrays.tasks(place)):
            return
        known = self._seen.get(place.tobytes())
        quick = float(self._quick_value(place)) if known is None else known
        self._seen[place.tobytes()] = quick
        if known == np.inf:
            return
        if known is not None or (self.best is not None and quick >= self.best.value):
            self.tried[method] = min(quick, self.tried.get(method, quick))
            return
        assignment = self.full_arrays.tasks(place)
        timeline = simulate(self.problem, assignment, self.objective)
        value = float(objective_value(self.problem, assignment, self.objective, timeline))
        broken = broken_rules(self.problem, assignment, timeline)
        if broken:
            self.broken = broken
            self._seen[place.tobytes()] = np.inf
            if self.best is None or value < self.best.value:
                self._reserve(place, timeline)
            return
        self._seen[place.tobytes()] = value
        self.tried[method] = min(value, self.tried.get(method, value))
        if self.best is None or value < self.best.value:
            self.best = Found(method, place.copy(), value, timeline)

    def leave_room(self) -> None:
        """Tightens the limits for searching by what live values were seen to take."""
        self.lost = False
        room = np.maximum(self.full_arrays.limit - self._most_alive, 0.0)
        self.arrays = self.full_arrays._replace(limit=room)

    def _quick_value(self, place: Array) -> float:
        """The value of a placement, launches apart, in compiled loops."""
        from partita_hetero.planner.arrays.flow_time import parallel_us
        from partita_hetero.planner.arrays.loads import device_loads

        if self.objective == "PARALLEL":
            device = place[self.full_arrays.unit_of]
            return float(parallel_us(self.full_arrays, device, self.problem.early_handover, False))
        load = device_loads(self.full_arrays, place)[0]
        if self.objective == "LATENCY":
            return float(load.sum())
        slots = np.where(self.full_arrays.slots > 0, self.full_arrays.slots, np.inf)
        return float((load / slots).max())

    def offer_repaired(self, method: str, place: Array) -> None:
        """Offers a placement after moving away what does not fit."""
        fixed = repair(self.arrays, place)
        if fixed is not None:
            self.offer(method, fixed)

    def prove(self, proof: str, bound: float) -> None:
        """Keeps a lower bound if it is the best so far."""
        if bound > self.bound:
            self.bound, self.proof = float(bound), proof

    def try_all(self) -> bool:
        """Whether there were so few placements that all could be tried, which proves the best."""
        choices = self._choices()
        if math.prod(map(len, choices)) > FEW:
            return False
        for place in itertools.product(*choices):
            self.offer("all placements", np.array(place, np.int64))
        if self.best is not None:
            self.prove("all placements", self.best.value)
        self.lost = False
        return True

    def try_neighbours(self, end: float) -> None:
        """Moves two and three units at a time while that finds something better.

        Annealing moves one, or neighbours to the same device: of few units it misses exchanges.

        Args:
            end: When to stop, as `search_clock` counts.
        """
        choices = self._choices()
        most = max(map(len, choices), default=0)
        for size in (2, 3):
            is_better = math.comb(len(choices), size) * most**size <= NEIGHBOURS
            while is_better and self.best is not None and not self.done:
                before = self.best
                for units in itertools.combinations(range(len(choices)), size):
                    if search_clock.seconds() >= end:
                        return
                    for devices in itertools.product(*(choices[unit] for unit in units)):
                        place = before.place.copy()
                        place[list(units)] = devices
                        self.offer("neighbours", place)
                is_better = self.best is not before

    def _choices(self) -> list[Array]:
        """By unit the devices that take it."""
        return [np.flatnonzero(row) for row in np.isfinite(self.full_arrays.unit_cost)]

    def _reserve(self, place: Array, timeline: Timeline) -> None:
        """Leaves as much room for live values as a refused placement would have needed."""
        used = np.bincount(place, self.full_arrays.unit_weight, len(self._most_alive))
        for index, device in enumerate(self.problem.devices):
            live = timeline.peak_bytes[device.name] - used[index]
            if device.memory_bytes is not None and live > self._most_alive[index]:
                self._most_alive[index] = CAUTION * live
                self.lost = True

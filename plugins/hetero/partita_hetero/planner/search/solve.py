"""Finds a placement: runs the methods that suit the problem and keeps the best plan.

===========  ==========================================  =======================================
objective    searched by                                 bounded by
===========  ==========================================  =======================================
LATENCY      minimum cut, annealing of loads, MILP       minimum cut with prices for memory, MILP
PARALLEL     stretches, annealing of the simulated run   critical path, divisible load, chains
THROUGHPUT   stretches, ideals, annealing, MILP          divisible load, MILP; ideals are exact
===========  ==========================================  =======================================

All start from greedy placement, single devices and list schedules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from partita.errors import InfeasiblePlanError
from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays
from partita_hetero.planner.bounds import lower_bounds
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.search.incumbent import Search
from partita_hetero.planner.search.memory_fit import fit
from partita_hetero.planner.simulation.plan import Objective, Plan
from partita_hetero.planner.simulation.timeline import Timeline

ROUNDS = 4
"""How often limits are tightened by what live values take, which the methods do not see."""


def solve(
    problem: Problem,
    objective: Objective = "LATENCY",
    time_limit_s: float = 10.0,
    contiguous: bool = False,
) -> Plan:
    """The best placement that the planner finds.

    Args:
        problem: What everything costs.
        objective: What is minimized.
        time_limit_s: How long methods may search in all; a plan comes in any case, and says
            whether it was cut. Infinite: until each method is through, so that the plan depends
            on the problem alone, not on how fast or busy the machine is.
        contiguous: Each device gets one subgraph that can run without a break; devices that run
            tasks by themselves are free of that.

    Raises:
        InfeasiblePlanError: No placement keeps the limits and hard pins; says what blocks it.
    """
    start = search_clock.seconds()
    search = Search(problem, objective, contiguous)
    fits = fit(problem, search.full_arrays)
    for attempt in range(ROUNDS):
        left = time_limit_s - (search_clock.seconds() - start)
        _run(search, fits, max(left / (1 if attempt else 1.5), 0.1) if search.alive else left)
        left = time_limit_s - (search_clock.seconds() - start)
        if not search.lost or (search.best is not None and left < time_limit_s / 4):
            break
    if search.best is None:
        raise InfeasiblePlanError(
            "No placement was found that keeps the limits. " + " ".join(search.broken)
        )
    found = search.best
    return Plan(
        search.full_arrays.tasks(found.place),
        objective,
        found.value,
        min(search.bound, found.value),
        found.method,
        order_of(found.timeline, problem),
        found.timeline,
        search_clock.seconds() - start,
        search.proof,
        search.tried,
        search.cut and not search.done,
    )


def _run(search: Search, fits: Array, seconds: float) -> None:
    """Runs all methods with limits that leave room for the live values seen before."""
    end = search_clock.seconds() + seconds
    if search.try_all():
        return
    if search.objective == "LATENCY" and not search.limited:
        _cut_sequence(search, seconds)
        if search.done:
            return
    for _ in range(ROUNDS if search.limited else 1):
        search.leave_room()
        search.offer_repaired("first fit", fits)
        if not search.lost:
            break
    for method, place in _starts(search.arrays, search.problem):
        search.offer_repaired(method, place)
    searches = {
        "LATENCY": _search_sequential,
        "PARALLEL": _search_parallel,
        "THROUGHPUT": _search_throughput,
    }
    searches[search.objective](search, max(end - search_clock.seconds(), 0.1))
    search.try_neighbours(end)


def _starts(arrays: Arrays, problem: Problem) -> Iterator[tuple[str, Array]]:
    """Placements that are made without searching."""
    from partita_hetero.planner.search.list_scheduling import list_schedules

    allowed = np.isfinite(arrays.unit_cost)
    for index, device in enumerate(problem.devices):
        if allowed[:, index].all() and arrays.unit_weight.sum() <= arrays.limit[index]:
            yield f"single {device.name}", np.full(arrays.units, index)
    yield "greedy", allowed.argmax(axis=1)
    for name, place in list_schedules(arrays):
        if place is not None:
            yield name, place


def _cut_sequence(search: Search, seconds: float) -> None:
    """Minimum cuts: of all devices for the bound, and of the first and each other one."""
    from partita_hetero.planner.bounds.minimum_cut import minimum_cut, two_devices

    target = np.inf if search.best is None else search.best.value
    bound, priced = lower_bounds.cut_bound(search.full_arrays, search.alike, seconds / 4, target)
    search.prove("minimum cut", bound + _least_launch(search.full_arrays))
    for place in priced:
        search.offer_repaired("minimum cut", place)
    devices = search.problem.devices
    if search.done or (len(devices) > 2 and not devices[0].host_memory):
        return
    for share in search.surcharges:
        charged = with_surcharge(search.arrays, share)
        for other in range(1, len(devices)):
            _, second = minimum_cut(charged, two_devices(charged, 0, other))
            place = np.where(second, other, 0)
            if np.isfinite(charged.unit_cost[np.arange(len(place)), place]).all():
                search.offer_repaired("minimum cut", place)


def _search_sequential(search: Search, seconds: float) -> None:
    from partita_hetero.planner.search.anneal import anneal_loads

    end = search_clock.seconds() + seconds
    if search.limited:
        _cut_sequence(search, seconds)
    for number, share in enumerate(search.surcharges):
        left = end - search_clock.seconds()
        if search.best is None or search.done:
            break
        if left <= 0:
            search.cut = True
            break
        charged = with_surcharge(search.arrays, share)
        spend = left / (len(search.surcharges) - number) / (2 if _small(search.full_arrays) else 1)
        found = anneal_loads(charged, search.best.place, False, spend)
        search.cut |= not found.full
        search.offer("annealing", found.place)
    _search_milp(search, False, end)


def _search_milp(search: Search, busiest: bool, end: float) -> None:
    from partita_hetero.planner.search.milp import solve_milp

    left = end - search_clock.seconds()
    if search.best is None or search.done or search.contiguous:
        return
    if not (_small(search.full_arrays) and search.through_host):
        return
    if left < 0.2:
        search.cut = True
        return
    complete, bound, place = solve_milp(search.full_arrays, busiest, search.best.value, left)
    search.cut |= not complete
    search.prove("MILP", bound)
    if place is not None:
        search.offer("MILP", place)


def _search_parallel(search: Search, seconds: float) -> None:
    from partita_hetero.planner.bounds.chain_bound import chain_bound
    from partita_hetero.planner.bounds.minimum_cut import minimum_cut, two_devices
    from partita_hetero.planner.search.anneal import anneal_parallel

    arrays, whole = search.arrays, search.full_arrays
    early = search.problem.early_handover
    end = search_clock.seconds() + seconds
    search.prove("critical path", lower_bounds.critical_path(whole))
    if (whole.slots > 0).all() and not whole.per_task.any():
        search.prove("divisible load", lower_bounds.divisible_load(whole))
    for other in range(1, len(search.problem.devices)):
        _, second = minimum_cut(arrays, two_devices(arrays, 0, other))
        place = np.where(second, other, 0)
        if np.isfinite(arrays.unit_cost[np.arange(len(place)), place]).all():
            search.offer_repaired("minimum cut", place)
    _offer_stretches(search, busiest=False)
    blocks = search.blocks if search.contiguous and search.through_host and not early else None
    if blocks is not None and blocks.hold(whole):
        search.prove("chain", chain_bound(whole, blocks, search.alike, seconds / 2))
    seed, full = 1, False
    while search.best is not None and not search.done and search_clock.seconds() < end - 0.05:
        left = end - search_clock.seconds()
        found = anneal_parallel(
            arrays, search.best.place, early, search.contiguous, max(left / 2, 0.05), seed
        )
        before = search.best.value
        search.offer("annealing", found.place)
        full |= found.full
        seed += 1
        late = left < seconds / 16 or seconds == math.inf
        if late and search.best.value >= before:
            break
    search.cut |= not full


def _search_throughput(search: Search, seconds: float) -> None:
    from partita_hetero.planner.search.anneal import anneal_loads
    from partita_hetero.planner.search.ideals import best_contiguous

    arrays, whole = search.arrays, search.full_arrays
    end = search_clock.seconds() + seconds
    search.prove("divisible load", lower_bounds.divisible_load(whole))
    _offer_stretches(search, busiest=True)
    exact = not any(kind.reusable for kind in search.alike) and (whole.slots > 0).all()
    if exact and search.blocks is not None and search.through_host and not search.done:
        below = np.inf if search.best is None else search.best.value
        share = seconds if search.contiguous else seconds / 4
        complete, value, place = best_contiguous(
            arrays, search.blocks, search.alike, below * (1 - 1e-12), share
        )
        search.cut |= not complete
        if place is not None:
            search.offer("ideals", place)
        proven = complete and search.blocks.hold(whole)
        if proven and search.contiguous and not whole.launch.any():
            search.prove("ideals", min(value, below))
    if search.contiguous:
        return
    shares = search.surcharges * (3 // len(search.surcharges))
    for number, share in zip((3, 2, 1), shares, strict=True):
        left = end - search_clock.seconds()
        if search.best is None or search.done:
            break
        if left <= 0.05:
            search.cut = True
            break
        spend = left / number / (1.3 if _small(whole) else 1)
        charged = with_surcharge(arrays, share)
        found = anneal_loads(charged, search.best.place, True, spend, number)
        search.cut |= not found.full
        search.offer("annealing", found.place)
    _search_milp(search, True, end)


def _offer_stretches(search: Search, busiest: bool) -> None:
    from partita_hetero.planner.bounds.intervals import MAX_BLOCKS, best_stretches

    blocks = search.blocks
    if blocks is None or blocks.count > MAX_BLOCKS:
        return
    for order in blocks.orders():
        place = best_stretches(search.arrays, blocks, order, search.alike, busiest)
        if place is not None:
            search.offer("stretches", place)


def with_surcharge(arrays: Arrays, share: float) -> Arrays:
    """Adds a share of a device's launch to each move to it.

    Launches depend on how the whole model is cut; where values cross stands in for that.
    """
    if not share:
        return arrays
    extra = share * arrays.launch
    direct = np.where(arrays.is_direct, arrays.direct + extra[None, None, :], arrays.direct)
    return arrays._replace(up=arrays.up + extra, direct=direct)


def _least_launch(arrays: Arrays) -> float:
    """At least one submodel is launched."""
    return float(arrays.launch.min()) if arrays.units else 0.0


def _small(arrays: Arrays) -> bool:
    from partita_hetero.planner.search.milp import MAX_BINARIES

    return arrays.unit_cost.size <= MAX_BINARIES


def order_of(timeline: Timeline, problem: Problem) -> tuple[int, ...]:
    """Tasks in the order in which the run starts them."""
    runs = [span for span in timeline.spans if span.kind == "compute"]
    runs.sort(key=lambda span: span.start_us)
    return tuple(problem.task_index[span.name] for span in runs)

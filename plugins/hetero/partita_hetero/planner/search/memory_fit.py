"""Placements that keep the memory limits, or the reason why there are none."""

from __future__ import annotations

import numpy as np

from partita.errors import InfeasiblePlanError
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays
from partita_hetero.planner.problem.problem import Problem

SEARCH_SECONDS = 10.0


def fit(problem: Problem, arrays: Arrays) -> Array:
    """A placement whose weights fit, cheap if that is easy.

    Returns:
        Device of each unit.

    Raises:
        InfeasiblePlanError: There is none; names the tasks or devices and the bytes missing.
    """
    _check_units(problem, arrays)
    choices = np.isfinite(arrays.unit_cost).sum(axis=1)
    weight = arrays.unit_weight
    fast = np.where(np.isfinite(arrays.unit_cost), arrays.unit_cost, np.nan)
    gain = np.nanmax(fast, axis=1) - np.nanmin(fast, axis=1)
    for order in (
        np.lexsort((-gain / np.maximum(weight, 1), choices)),
        np.lexsort((-weight, choices)),
    ):
        place = _first_fit(arrays, order)
        if place is not None:
            return place
    return _packed(problem, arrays)


def _first_fit(arrays: Arrays, order: Array) -> Array | None:
    room = arrays.limit.copy()
    place = np.zeros(arrays.units, np.int64)
    for unit in order:
        cost = np.where(arrays.unit_weight[unit] <= room, arrays.unit_cost[unit], np.inf)
        device = int(cost.argmin())
        if not np.isfinite(cost[device]):
            return None
        place[unit] = device
        room[device] -= arrays.unit_weight[unit]
    return place


def repair(arrays: Arrays, place: Array) -> Array | None:
    """Moves units off devices that are too full, those first whose bytes go cheapest.

    Returns:
        Device of each unit; None if that does not help.
    """
    place = place.copy()
    used = np.bincount(place, arrays.unit_weight, len(arrays.limit))
    for device in np.flatnonzero(used > arrays.limit):
        inside = np.flatnonzero((place == device) & (arrays.unit_weight > 0))
        others = arrays.unit_cost[inside].copy()
        others[:, device] = np.inf
        loss = others.min(axis=1) - arrays.unit_cost[inside, device]
        for unit in inside[np.argsort(loss / arrays.unit_weight[inside])]:
            if used[device] <= arrays.limit[device]:
                break
            weight = arrays.unit_weight[unit]
            fits = used + weight <= arrays.limit
            fits[device] = False
            cost = np.where(fits, arrays.unit_cost[unit], np.inf)
            target = int(cost.argmin())
            if np.isfinite(cost[target]):
                place[unit] = target
                used[target] += weight
                used[device] -= weight
    return place if bool((used <= arrays.limit).all()) else None


def _check_units(problem: Problem, arrays: Arrays) -> None:
    """Raises if a unit alone is too large, or the units that only some devices take together."""
    allowed = np.isfinite(arrays.unit_cost)
    largest = np.where(allowed, arrays.limit, 0.0).max(axis=1)
    for unit in np.flatnonzero(arrays.unit_weight > largest):
        names = _names(problem, arrays, int(unit))
        device = int(np.where(allowed[unit], arrays.limit, -1.0).argmax())
        need, room = float(arrays.unit_weight[unit]), float(arrays.limit[device])
        raise InfeasiblePlanError(
            f"{names} needs {int(need)} bytes, {int(need - room)} more than "
            f"{problem.end(device)} holds ({int(room)}), and no device that takes it holds more."
        )
    for choice in np.unique(allowed, axis=0):
        inside = ~(allowed & ~choice).any(axis=1)
        need, room = float(arrays.unit_weight[inside].sum()), float(arrays.limit[choice].sum())
        if need > room:
            devices = ", ".join(problem.end(int(device)) for device in np.flatnonzero(choice))
            heaviest = np.flatnonzero(inside)[arrays.unit_weight[inside].argsort()[::-1][:3]]
            examples = "; ".join(_names(problem, arrays, int(unit)) for unit in heaviest)
            raise InfeasiblePlanError(
                f"{int(inside.sum())} tasks or groups run only on {devices} and need {int(need)} "
                f"bytes, {int(need - room)} more than there is room for ({int(room)}). The largest "
                f"are: {examples}."
            )


def _names(problem: Problem, arrays: Arrays, unit: int) -> str:
    """Quoted names of a unit's tasks, the first three."""
    tasks = arrays.unit_tasks[arrays.unit_start[unit] : arrays.unit_start[unit + 1]]
    names = ", ".join(f"'{problem.tasks[int(task)].name}'" for task in tasks[:3])
    if len(tasks) == 1:
        return f"Task {names}"
    return f"Group of {names}{' and others' if len(tasks) > 3 else ''}"


def _packed(problem: Problem, arrays: Arrays) -> Array:
    """Asks a mixed-integer programme whether the units can be packed at all."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    units, devices = arrays.unit_cost.shape
    limited = np.flatnonzero(np.isfinite(arrays.limit))
    row = np.repeat(np.arange(units), devices)
    column = np.arange(units * devices)
    chosen = coo_array((np.ones(units * devices), (row, column)), shape=(units, units * devices))
    where = np.concatenate([np.arange(units) * devices + device for device in limited])
    of_device = np.repeat(np.arange(len(limited)), units)
    weights = np.tile(arrays.unit_weight, len(limited))
    load = coo_array((weights, (of_device, where)), shape=(len(limited), units * devices))
    result = milp(
        np.zeros(units * devices),
        integrality=np.ones(units * devices),
        bounds=Bounds(0, np.isfinite(arrays.unit_cost).ravel().astype(float)),
        constraints=[
            LinearConstraint(chosen.tocsr(), 1, 1),
            LinearConstraint(load.tocsr(), 0, arrays.limit[limited]),
        ],
        options={"time_limit": SEARCH_SECONDS},
    )
    if result.x is None:
        need, room = arrays.unit_weight.sum(), arrays.limit[limited].sum()
        names = ", ".join(problem.end(int(device)) for device in limited)
        raise InfeasiblePlanError(
            f"No packing of the tasks into the limits of {names} was found: together they need "
            f"{int(need)} bytes of {int(room)}, but single tasks and groups are too large to fill "
            "what is left. Raise a limit."
        )
    return np.asarray(result.x.reshape(units, devices).argmax(axis=1), np.int64)

"""Lower bounds on the objectives: critical path, divisible load, and minimum cut."""

from __future__ import annotations

import numpy as np

from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.arrays.device_kinds import Kind
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays
from partita_hetero.planner.bounds.minimum_cut import Sides, minimum_cut

ROUNDS = 30


def critical_path(arrays: Arrays) -> float:
    """The longest path if each task ran where it is fastest and nothing had to be moved."""
    quick = arrays.task_cost.min(axis=1)
    length = quick.copy()
    for task in range(len(length)):
        preds = arrays.pred[arrays.pred_start[task] : arrays.pred_start[task + 1]]
        if len(preds):
            length[task] += length[preds].max()
    return float(length.max(initial=0.0))


def divisible_load(arrays: Arrays) -> float:
    """The least largest load if units could be divided between devices and nothing were moved.

    For any weights of the devices that add up to one, the weighted sum of what each unit costs
    where it is cheapest so weighted is a bound; the weights follow the loads for some rounds.
    """
    slots = np.where(arrays.slots > 0, arrays.slots, np.inf)
    cost = (arrays.unit_cost + arrays.penalty) / slots
    cost[np.isnan(cost)] = np.inf
    weight = np.full(len(slots), 1.0 / len(slots))
    best = float(cost.min(axis=1, initial=np.inf).max(initial=0.0))
    for step in range(1, 200):
        weighted = cost * weight
        choice = weighted.argmin(axis=1)
        units = np.arange(len(choice))
        best = max(best, float(weighted[units, choice].sum()))
        load = np.bincount(choice, cost[units, choice], len(slots))
        weight *= np.exp(load / max(load.max(), 1e-12) / np.sqrt(step))
        weight /= weight.sum()
    return best


def cut_bound(
    arrays: Arrays, alike: list[Kind], seconds: float, target: float
) -> tuple[float, list[Array]]:
    """A bound on the sum of loads: each kind of device against all others merged into one.

    What lies between the others is free then, and the choice is a minimum cut. Memory limits enter
    as prices for bytes (Lagrange multipliers), raised where a cut takes too many, by steps that
    would reach the target (Polyak).

    Args:
        arrays: The problem.
        alike: The devices, those that compute alike together.
        seconds: After which prices are raised no further.
        target: Microseconds of the best placement that is known, towards which prices are raised.

    Returns:
        The bound, and the placements of the last prices, which nearly keep the limits.
    """
    end = search_clock.seconds() + seconds
    best = 0.0
    places = []
    for kind in alike[: 1 if len(alike) == 2 else None]:  # the second of two is the same cut
        bound, place = _priced_cut(arrays, kind, end, target)
        best = max(best, bound)
        places.append(place)
    return best, places


def _priced_cut(arrays: Arrays, kind: Kind, end: float, target: float) -> tuple[float, Array]:
    limited = np.isfinite(arrays.limit)
    price = np.zeros(len(arrays.limit))
    own = np.zeros(len(arrays.limit), bool)
    own[list(kind.devices)] = True
    best, where = -np.inf, np.zeros(arrays.units, np.int64)
    eager = 1.0
    for _ in range(ROUNDS):
        cost = arrays.unit_cost + arrays.penalty + price * arrays.unit_weight[:, None]
        sides, at_first, at_second = _merged(arrays, cost, own)
        bound, second = minimum_cut(arrays, sides)
        bound -= float((price[limited] * arrays.limit[limited]).sum())
        place = np.where(second, at_second, at_first)
        eager = eager if bound > best else eager / 2
        if bound > best:
            best, where = bound, place
        used = np.bincount(place, arrays.unit_weight, len(price))
        over = np.where(limited, used - arrays.limit, 0.0)
        over[(over < 0) & (price == 0)] = 0.0
        if not over.any() or search_clock.seconds() > end:
            break
        aim = target if np.isfinite(target) else 2 * abs(bound) + 1  # no placement is known yet
        step = eager * max(aim - bound, 1e-3 * aim) / float((over**2).sum())
        price = np.maximum(0.0, price + step * over)
    return best, where


def _merged(arrays: Arrays, cost: Array, own: Array) -> tuple[Sides, Array, Array]:
    """One side for some devices and one for all others, each at its best for every unit."""
    sides = []
    choices = []
    for group in (np.flatnonzero(own), np.flatnonzero(~own)):
        if len(group) == 0:
            sides.append(np.full(arrays.units, np.inf))
            choices.append(np.zeros(arrays.units, np.int64))
            continue
        choices.append(group[cost[:, group].argmin(axis=1)])
        sides.append(cost[np.arange(arrays.units), choices[-1]])
    made = arrays.producer >= 0
    unit = arrays.unit_of[arrays.producer]
    out = made & arrays.output
    for side, group in zip(sides, (own, ~own), strict=True):
        if group.any():
            np.add.at(side, unit[out], arrays.down[out][:, group].min(axis=1))

    def way(source: Array, target: Array) -> Array:
        if not source.any() or not target.any():
            return np.zeros(len(made))
        up = arrays.up[:, target].min(axis=1)
        down = arrays.down[:, source].min(axis=1)
        between = up + np.where(arrays.output, 0.0, down)
        for one in np.flatnonzero(source):
            for other in np.flatnonzero(target & arrays.is_direct[one]):
                between = np.minimum(between, arrays.direct[:, one, other])
        return np.asarray(np.where(made, between, up))

    return Sides(sides[0], sides[1], way(own, ~own), way(~own, own)), choices[0], choices[1]

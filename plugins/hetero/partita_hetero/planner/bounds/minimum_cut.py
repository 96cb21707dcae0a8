"""The minimum cut: the optimal placement on two devices that run in sequence.

Units are nodes; those on the source's side go to the first device. A unit has an edge to both
terminals, with its costs as capacities, and each value is a hyperedge that pays once per direction
however many read it: a helper node stands for "somebody over there reads it" (Stone 1977;
hyperedges as in Ihler et al. 1993). Launches and memory limits are not part of a cut, so with them
the cut is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita_hetero.planner.arrays.problem_arrays import Array, Arrays

CAPACITY = 2**29
"""Times become 32-bit integers, rounded down so that the cut stays a bound; this is their sum."""

FOREVER = 2**30
"""More than all times together; with a flow against it, it still is a 32-bit integer."""


@dataclass(frozen=True)
class Sides:
    """A choice of side for each unit and what the choice is about.

    Attributes:
        first: Cost of each unit on the source's side.
        second: Cost of each unit on the other side.
        there: Cost of bringing each value from the source's side to the other; for an input of the
            model, of bringing it to the other side at all.
        back: The same for the other direction.
    """

    first: Array
    second: Array
    there: Array
    back: Array


def two_devices(arrays: Arrays, one: int = 0, other: int = 1) -> Sides:
    """The choice between two devices of a problem."""
    cost = arrays.unit_cost + arrays.penalty
    first, second = cost[:, one].copy(), cost[:, other].copy()
    made = arrays.producer >= 0
    unit = arrays.unit_of[arrays.producer]
    out = made & arrays.output
    np.add.at(first, unit[out], arrays.down[out, one])
    np.add.at(second, unit[out], arrays.down[out, other])

    def way(source: int, target: int) -> Array:
        if arrays.is_direct[source, target]:
            between = arrays.direct[:, source, target]
        else:
            between = arrays.up[:, target] + np.where(arrays.output, 0.0, arrays.down[:, source])
        return np.where(made, between, arrays.up[:, target])

    return Sides(first, second, way(one, other), way(other, one))


def minimum_cut(arrays: Arrays, sides: Sides) -> tuple[float, Array]:
    """The cheapest choice of sides.

    Returns:
        A lower bound on its cost, exact but for rounding, and whether each unit is on the second
        side.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    base, tails, heads, times = _network(arrays, sides)
    finite = times[np.isfinite(times)]
    scale = CAPACITY / max(float(finite.sum()), 1e-9)
    capacity = np.full(len(times), FOREVER, np.int64)
    capacity[np.isfinite(times)] = np.floor(finite * scale)
    nodes = 2 + arrays.units + 2 * len(arrays.producer)
    # Both directions of each wire are stored, as maximum_flow would otherwise add them itself.
    both = coo_array(
        (
            np.concatenate([capacity, np.zeros_like(capacity)]),
            (np.concatenate([tails, heads]), np.concatenate([heads, tails])),
        ),
        shape=(nodes, nodes),
    ).tocsr()
    both.data = np.minimum(both.data, FOREVER).astype(np.int32)
    result = maximum_flow(both, 0, 1)
    left = both - result.flow
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    reached = breadth_first_order(left, 0, return_predecessors=False)
    second = np.ones(nodes, bool)
    second[reached] = False
    return base + result.flow_value / scale, second[2 : 2 + arrays.units]


def _network(arrays: Arrays, sides: Sides) -> tuple[float, Array, Array, Array]:
    """What every choice costs, and the wires: tails, heads and times (infinite for a must).

    Nodes 0 and 1 are source and sink, then come the units, then two helpers for each value.
    """
    units, values = arrays.units, len(arrays.producer)
    unit = 2 + np.arange(units)
    floor = np.minimum(sides.first, sides.second)
    wires = [
        (np.zeros(units, np.int64), unit, sides.second - floor),
        (unit, np.ones(units, np.int64), sides.first - floor),
    ]
    value_of, reader = _distinct_readers(arrays)
    made = arrays.producer >= 0
    maker = np.where(made, 2 + arrays.unit_of[arrays.producer], 0)
    foreign = 2 + reader != maker[value_of]
    value_of, reader = value_of[foreign], 2 + reader[foreign]
    number = np.bincount(value_of, minlength=values)
    single = number == 1
    there = 2 + units + np.arange(values)
    back = there + values
    one = single[value_of]
    forever = np.full(np.count_nonzero(~one), np.inf)
    sink = np.where(made, maker, 1)
    wires += [
        (maker[value_of[one]], reader[one], sides.there[value_of[one]]),
        (reader[one], sink[value_of[one]], sides.back[value_of[one]]),
        (there[value_of[~one]], reader[~one], forever),
        (reader[~one], back[value_of[~one]], forever),
    ]
    many = number > 1
    wires += [
        (maker[many], there[many], sides.there[many]),
        (back[many], sink[many], sides.back[many]),
    ]
    tails, heads, times = (np.concatenate(column) for column in zip(*wires, strict=True))
    useful = times > 0
    return float(floor.sum()), tails[useful], heads[useful], times[useful]


def _distinct_readers(arrays: Arrays) -> tuple[Array, Array]:
    """Value and unit of each pair such that the unit reads the value."""
    values = len(arrays.producer)
    value_of = np.repeat(np.arange(values), np.diff(arrays.reader_start))
    pairs = np.unique(value_of * max(arrays.units, 1) + arrays.unit_of[arrays.reader])
    return pairs // max(arrays.units, 1), pairs % max(arrays.units, 1)

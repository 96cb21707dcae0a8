"""A mixed-integer programme for sequential latency and throughput, solved by HiGHS.

A binary says where a unit is, and a variable for each value and device says that it is moved there,
or out of there. Nothing is switched by a large constant: a move is at least the difference of two
binaries, so the relaxation is that of the minimum cut, which for two devices is integral. Launches
count once for each device in use, which is what the model needs at least.
"""

from __future__ import annotations

import numpy as np

from partita_hetero.planner.arrays.problem_arrays import Array, Arrays

MAX_BINARIES = 6000
"""Beyond this the programme rarely ends in time, and the cut bound is as good."""


def solve_milp(
    arrays: Arrays, busiest: bool, cutoff: float, seconds: float
) -> tuple[bool, float, Array | None]:
    """Looks for a placement below a value and proves a bound.

    Args:
        arrays: The problem.
        busiest: Whether to minimize the largest load instead of the sum.
        cutoff: Value of the best placement known.
        seconds: Time limit.

    Returns:
        Whether the search ended before its time; the bound; the device of each unit, or None if
        nothing below the cutoff was found.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    model = _Rows(arrays, busiest)
    objective = np.zeros(model.columns)
    if busiest:
        objective[-1] = 1.0
        upper_last = cutoff
    else:
        objective[: len(model.load)] = model.load
        upper_last = 0.0
    upper = np.ones(model.columns)
    upper[: model.places] = np.isfinite(arrays.unit_cost).ravel()
    upper[-1] = upper_last
    integrality = np.zeros(model.columns)
    integrality[: model.places] = 1
    constraints = [LinearConstraint(*model.matrix())]
    if not busiest:
        constraints.append(LinearConstraint(objective[None, :], -np.inf, cutoff))
    result = milp(
        objective,
        integrality=integrality,
        bounds=Bounds(0, upper),
        constraints=constraints,
        options={"time_limit": max(seconds, 0.1), "mip_rel_gap": 1e-4},
    )
    if result.status == 2:  # nothing is below the cutoff
        return True, cutoff, None
    complete = result.status != 1  # that is a limit of time or of iterations
    bound = 0.0 if result.mip_dual_bound is None else float(result.mip_dual_bound)
    if result.x is None:
        return complete, min(bound, cutoff), None
    chosen = result.x[: model.places].reshape(arrays.units, -1)
    return complete, min(bound, cutoff), chosen.argmax(axis=1)


class _Rows:
    """The constraints, row by row.

    Columns: a binary for each unit and device; moves in and moves out for each value and device;
    use of each device; the largest load.
    """

    def __init__(self, arrays: Arrays, busiest: bool) -> None:
        self.arrays = arrays
        devices, values = len(arrays.slots), len(arrays.producer)
        self.devices = devices
        self.places = arrays.units * devices
        self.columns = self.places + 2 * values * devices + devices + 1
        self._row: list[int] = []
        self._column: list[int] = []
        self._entry: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []
        cost = np.where(np.isfinite(arrays.unit_cost), arrays.unit_cost + arrays.penalty, 0.0)
        self.load = np.concatenate(
            [cost.ravel(), arrays.up.ravel(), arrays.down.ravel(), arrays.launch]
        )
        for unit in range(arrays.units):
            self._add({unit * devices + device: 1.0 for device in range(devices)}, 1.0, 1.0)
            for device in range(devices):
                if arrays.launch[device]:
                    use = self.columns - 1 - devices + device
                    self._add({use: 1.0, unit * devices + device: -1.0}, 0.0, np.inf)
        for device in range(devices):
            if np.isfinite(arrays.limit[device]):
                weights = {u * devices + device: w for u, w in enumerate(arrays.unit_weight) if w}
                self._add(weights, 0.0, arrays.limit[device])
        for value in range(values):
            self._add_moves(value)
        if busiest:
            for device in range(devices):
                if arrays.slots[device]:
                    entries = {
                        column: -self.load[column] / arrays.slots[device]
                        for column in range(device, len(self.load), devices)
                        if self.load[column]
                    }
                    self._add({**entries, self.columns - 1: 1.0}, 0.0, np.inf)

    def matrix(self) -> tuple[object, Array, Array]:
        """The constraints with their lower and upper limits."""
        from scipy.sparse import coo_array

        shape = (len(self._low), self.columns)
        matrix = coo_array((self._entry, (self._row, self._column)), shape=shape).tocsr()
        return matrix, np.array(self._low), np.array(self._high)

    def _add_moves(self, value: int) -> None:
        arrays, devices = self.arrays, self.devices
        producer = arrays.producer[value]
        maker = -1 if producer < 0 else int(arrays.unit_of[producer])
        readers = arrays.reader[arrays.reader_start[value] : arrays.reader_start[value + 1]]
        moved_in = self.places + value * devices
        moved_out = moved_in + len(arrays.producer) * devices
        for device in range(devices):
            up, down = arrays.up[value, device] > 0, arrays.down[value, device] > 0
            home = maker * devices + device
            if down and maker >= 0 and arrays.output[value]:
                self._add({moved_out + device: 1.0, home: -1.0}, 0.0, np.inf)
            for unit in {int(arrays.unit_of[reader]) for reader in readers} - {maker}:
                here = unit * devices + device
                if up:
                    at_maker = {home: 1.0} if maker >= 0 else {}
                    self._add({moved_in + device: 1.0, here: -1.0, **at_maker}, 0.0, np.inf)
                if down and maker >= 0 and not arrays.output[value]:
                    self._add({moved_out + device: 1.0, home: -1.0, here: 1.0}, 0.0, np.inf)

    def _add(self, entries: dict[int, float], low: float, high: float) -> None:
        row = len(self._low)
        self._row += [row] * len(entries)
        self._column += list(entries)
        self._entry += list(entries.values())
        self._low.append(low)
        self._high.append(high)

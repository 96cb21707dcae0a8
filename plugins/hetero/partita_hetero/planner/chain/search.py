"""The optimal placement of a chain, by label setting: partial placements that grow task by task.

After each task the partial placements (labels) are compared: one that is on the same device as
another, with tied weights where that has them, and takes no less time and memory is dominated, and
dropped. A decoder's layers are alike, so that labels soon differ by little more than how many
layers each device has. The rest are compared with the best placement of unbroken stretches; a label
whose lower bound is no better is dropped too. Where there are too many labels even so, the worst
are dropped, and the bound says by how much the result can miss the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.errors import InfeasiblePlanError
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.chain.problem import (
    Array,
    Chain,
    ChainObjective,
    TiedWeights,
    Use,
    excess,
    use_of,
)
from partita_hetero.planner.chain.stretches import stretches

MOST_LABELS = 80_000
"""Labels that are kept after a task, times the square of the number of devices."""

PAIRWISE = 3_000
"""Up to so many labels each is compared with each."""

SAME = 1e-9
"""Values that differ by less, relative to the larger, are the same."""


@dataclass(frozen=True)
class ChainPlan:
    """A placement of a chain.

    Attributes:
        choice: Option of each task.
        value_us: What was minimized.
        bound_us: No placement has less.
        use: What each device does and holds.
        seconds: How long the search took.
    """

    choice: tuple[int, ...]
    value_us: float
    bound_us: float
    use: Use
    seconds: float

    @property
    def gap(self) -> float:
        """How far the value can at most be above the optimum, as a share of it."""
        return max(0.0, 1 - self.bound_us / self.value_us) if self.value_us > 0 else 0.0


def solve_chain(
    chain: Chain, objective: ChainObjective = "LATENCY", most_labels: int | None = None
) -> ChainPlan:
    """The placement of the least value.

    Args:
        chain: What everything costs.
        objective: What is minimized.
        most_labels: Labels that are kept after a task; more need more time and memory. ``None``:
            as many as seconds allow.

    Raises:
        InfeasiblePlanError: Nothing keeps the limits, or nothing was found that does.
    """
    start = search_clock.seconds()
    if _lacking_in_all(chain):
        raise InfeasiblePlanError(_why_infeasible(chain))
    if most_labels is None:
        most_labels = MOST_LABELS // len(chain.devices) ** 2
    search = _Search(chain, objective, most_labels)
    best = min(
        stretches(chain, objective),
        key=lambda choice: use_of(chain, choice).value(objective),
        default=None,
    )
    if best is not None:
        search.target = use_of(chain, best).value(objective)
    found = search.run()
    best = found if found is not None else best
    if best is None:
        raise InfeasiblePlanError(_why_infeasible(chain))
    use = use_of(chain, best)
    value = use.value(objective)
    return ChainPlan(
        tuple(best), value, min(value, search.dropped), use, search_clock.seconds() - start
    )


@dataclass
class _Labels:
    """Partial placements, as columns.

    Attributes:
        home: Device that the last task's output is on.
        load: By device: how long it is busy; one column of all together for ``LATENCY``.
        nbytes: By limited device: what it holds.
        parent: Label of the task before that this one goes on from.
        option: Option of the last task.
        held: By tied weights: the limited devices, as bits, on which a task to come need not count
            them again.
    """

    home: Array
    load: Array
    nbytes: Array
    parent: Array
    option: Array
    held: Array

    def __len__(self) -> int:
        return len(self.home)

    def at(self, rows: Array) -> _Labels:
        return _Labels(
            home=self.home[rows],
            load=self.load[rows],
            nbytes=self.nbytes[rows],
            parent=self.parent[rows],
            option=self.option[rows],
            held=self.held[rows],
        )

    @property
    def state(self) -> Array:
        """What labels must have in common to be compared: their device, and what is held there."""
        if not self.held.any():
            return self.home
        columns = np.concatenate([self.home[:, None], self.held], axis=1)
        return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)

    @staticmethod
    def joined(parts: Sequence[_Labels]) -> _Labels:
        columns = ("home", "load", "nbytes", "parent", "option", "held")
        return _Labels(*(np.concatenate([getattr(one, name) for one in parts]) for name in columns))


class _Search:
    """One run over a chain.

    Attributes:
        target: Only what has less is of use.
        dropped: The least value that a label could have had that was dropped without a proof.
    """

    def __init__(self, chain: Chain, objective: ChainObjective, most_labels: int) -> None:
        self.chain, self.objective, self.most_labels = chain, objective, most_labels
        self.target = np.inf
        self.dropped = np.inf
        self.limited = _limited(chain)
        limits = [chain.limits[device] for device in self.limited]
        self.limit = np.array([0 if limit is None else limit for limit in limits], np.int64)
        self.fixed = np.array(chain.fixed_bytes, np.int64)[self.limited]
        least = [options.us.sum(axis=1).min() for options in chain.tasks]
        self.left = np.append(np.cumsum(least[::-1])[::-1], 0.0) + float(chain.last_us.min())
        smallest = [options.nbytes.sum(axis=1).min() for options in chain.tasks]
        self.left_bytes = np.append(np.cumsum(smallest[::-1])[::-1], 0)
        for tied in chain.tied:
            self.left_bytes[: tied.tasks[1] + 1] -= tied.nbytes * _most_readers(tied)
        moves = chain.leaving_us + chain.arriving_us
        away = ~np.eye(len(chain.devices), dtype=bool)
        self.least_move = float(moves[:, away].min()) if moves[:, away].size else 0.0

    def run(self) -> list[int] | None:
        """The best choice below the target, or ``None``."""
        steps: list[_Labels] = []
        labels = self._first()
        for task in range(len(self.chain.tasks)):
            if task:
                labels = self._grown(labels, task)
            labels = self._promising(labels, task)
            if not len(labels):
                return None
            steps.append(labels)
        row = int(np.argmin(self._value(labels, 0.0)))
        choice = []
        for labels in reversed(steps):
            choice.append(int(labels.option[row]))
            row = int(labels.parent[row])
        return choice[::-1]

    def _first(self) -> _Labels:
        options = self.chain.tasks[0]
        rows = np.arange(len(options.home))
        load = options.us.copy()
        load[rows, options.home] += self.chain.first_us[options.home]
        nbytes = options.nbytes[:, self.limited]
        nothing = np.zeros((1, len(self.chain.tied)), np.int64)
        held = [self._held(nothing, 0, row)[0] for row in rows.tolist()]
        return _Labels(
            home=options.home,
            load=self._summed(load),
            nbytes=nbytes + np.where(nbytes > 0, self.fixed, 0),
            parent=np.zeros(len(rows), np.int64),
            option=rows,
            held=np.concatenate(held),
        )

    def _grown(self, labels: _Labels, task: int) -> _Labels:
        """Each label with each option of a task."""
        options, boundary = self.chain.tasks[task], task - 1
        parts = []
        for row, home in enumerate(options.home):
            load = np.repeat(options.us[row][None], len(labels), axis=0)
            index = np.arange(len(labels))
            load[index, labels.home] += self.chain.leaving_us[boundary, labels.home, home]
            load[index, home] += self.chain.arriving_us[boundary, labels.home, home]
            if task == len(self.chain.tasks) - 1:
                load[:, home] += self.chain.last_us[home]
            more = options.nbytes[row][self.limited]
            begun = (labels.nbytes == 0) & (more > 0)
            held, saved = self._held(labels.held, task, row)
            parts.append(
                _Labels(
                    np.full(len(labels), home),
                    labels.load + self._summed(load),
                    labels.nbytes + more + np.where(begun, self.fixed, 0) - saved,
                    index,
                    np.full(len(labels), row),
                    held,
                )
            )
        return _Labels.joined(parts)

    def _held(self, held: Array, task: int, row: int) -> tuple[Array, Array]:
        """Where tied weights are held after an option of a task; bytes that it need not count.

        Args:
            held: Where they were before, by label.
            task: The task.
            row: The option.
        """
        after, bits = held.copy(), 1 << np.arange(len(self.limited))
        saved = np.zeros((len(held), len(self.limited)), np.int64)
        devices = np.arange(len(self.chain.devices))
        for index, tied in enumerate(self.chain.tied):
            first, last = tied.tasks
            if not first <= task <= last:
                continue
            shares = tied.within & (tied.across | (devices == self.chain.tasks[task].home[row]))
            stays = int(bits @ shares[self.limited])
            if task == first:
                after[:, index] = stays & int(bits @ tied.reads[0][row, self.limited])
            else:
                after[:, index] &= stays
            if task == last:
                again = after[:, index, None] & bits & (bits * tied.reads[1][row, self.limited])
                saved += tied.nbytes * (again > 0)
                after[:, index] = 0
        return after, saved

    def _promising(self, labels: _Labels, task: int) -> _Labels:
        """The partial placements that can still become better than the best one found."""
        labels = labels.at(np.flatnonzero((labels.nbytes <= self.limit).all(axis=1)))
        if not len(labels):
            return labels
        ends = task == len(self.chain.tasks) - 1
        left = 0.0 if ends else float(self.left[task + 1])
        least = self._value(labels, left) + (0.0 if ends else self._moves_needed(labels, task))
        useful = np.flatnonzero(least < self.target * (1 - SAME))
        labels, least = labels.at(useful), least[useful]
        if not len(labels):
            return labels
        rows = _undominated(labels, least)
        labels, least = labels.at(rows), least[rows]
        if len(labels) > self.most_labels:
            order = np.argsort(least, kind="stable")
            self.dropped = min(self.dropped, float(least[order[self.most_labels]]))
            labels = labels.at(order[: self.most_labels])
        return labels

    def _summed(self, load: Array) -> Array:
        return load.sum(axis=1, keepdims=True) if self.objective == "LATENCY" else load

    def _value(self, labels: _Labels, left: float) -> Array:
        """The least value that each label can end with."""
        if self.objective == "LATENCY":
            return np.asarray(labels.load[:, 0] + left)
        shared = (labels.load.sum(axis=1) + left) / len(self.chain.devices)
        return np.asarray(np.maximum(labels.load.max(axis=1), shared))

    def _moves_needed(self, labels: _Labels, task: int) -> Array:
        """What it takes at least to reach the devices that the rest needs for its bytes."""
        if self.objective != "LATENCY" or len(self.limited) < len(self.chain.devices):
            return np.zeros(len(labels))
        room = np.maximum(self.limit - labels.nbytes, 0)
        index = np.arange(len(labels))
        here = room[index, labels.home]
        others = room.copy()
        others[index, labels.home] = 0
        together = here[:, None] + np.cumsum(-np.sort(-others, axis=1), axis=1)
        short = np.concatenate([here[:, None], together], axis=1) < self.left_bytes[task + 1]
        needed = np.minimum(short.sum(axis=1), others.shape[1])
        return np.asarray(needed * self.least_move)


def _limited(chain: Chain) -> list[int]:
    """Devices whose limit can be reached at all."""
    found = []
    for device, limit in enumerate(chain.limits):
        most = sum(int(options.nbytes[:, device].max()) for options in chain.tasks)
        if limit is not None and most + chain.fixed_bytes[device] > limit:
            found.append(device)
    return found


def _undominated(labels: _Labels, least: Array) -> Array:
    """Rows that no other row in the same state beats in every column.

    ``least`` is what labels are sorted by, so that good ones come first.
    """
    columns = np.concatenate([labels.state[:, None], labels.nbytes, labels.load], axis=1)
    order = np.lexsort((*columns.T[::-1], least))
    _, first = np.unique(columns[order], axis=0, return_index=True)
    rows = order[np.sort(first)]
    if labels.load.shape[1] == 1:
        rows = _least_per_state(labels, rows)
        if labels.nbytes.shape[1] <= 1:
            return _staircase(labels, rows)
    if len(rows) > PAIRWISE:
        return rows
    return _pairwise(labels, rows)


def _least_per_state(labels: _Labels, rows: Array) -> Array:
    """Of rows with the same state and bytes, the one that takes least."""
    rows = rows[np.argsort(labels.load[rows, 0], kind="stable")]
    state = np.concatenate([labels.state[rows, None], labels.nbytes[rows]], axis=1)
    _, first = np.unique(state, axis=0, return_index=True)
    return rows[np.sort(first)]


def _staircase(labels: _Labels, rows: Array) -> Array:
    """For one column of times and at most one of bytes: sorted by both, each must be better."""
    kept, states = [], labels.state[rows]
    for state in np.unique(states):
        mine = rows[states == state]
        nbytes = labels.nbytes[mine, 0] if labels.nbytes.shape[1] else np.zeros(len(mine))
        load = labels.load[mine, 0]
        mine, load = mine[(order := np.lexsort((load, nbytes)))], load[order]
        before = np.concatenate([[np.inf], np.minimum.accumulate(load)[:-1]])
        kept.append(mine[load < before])
    return np.concatenate(kept)


def _pairwise(labels: _Labels, rows: Array) -> Array:
    kept, states = [], labels.state[rows]
    for state in np.unique(states):
        mine = rows[states == state]
        columns = np.concatenate([labels.nbytes[mine], labels.load[mine]], axis=1)
        alive = np.ones(len(mine), bool)
        for row in range(len(mine)):
            if alive[row]:
                worse = (columns >= columns[row]).all(axis=1)
                worse[row] = False
                alive &= ~worse
        kept.append(mine[alive])
    return np.concatenate(kept)


def _lacking_in_all(chain: Chain) -> int:
    """Bytes that all limits together are too small by at least; 0 if they may do."""
    need = int(sum(options.nbytes.sum(axis=1).min() for options in chain.tasks))
    need -= sum(tied.nbytes * _most_readers(tied) for tied in chain.tied)
    rooms = zip(chain.limits, chain.fixed_bytes, strict=True)
    room = sum(np.inf if limit is None else max(0, limit - fixed) for limit, fixed in rooms)
    return int(max(0, need - room)) if np.isfinite(room) else 0


def _most_readers(tied: TiedWeights) -> int:
    """Devices on which any two options read tied weights at most."""
    return int(min(on.sum(axis=1).max() for on in tied.reads))


def _why_infeasible(chain: Chain) -> str:
    """Which device lacks how much."""
    lacks = _lacking_in_all(chain)
    if lacks:
        room = sum(
            max(0, limit - fixed)
            for limit, fixed in zip(chain.limits, chain.fixed_bytes, strict=True)
            if limit is not None
        )
        beside = " besides what computing takes" if any(chain.fixed_bytes) else ""
        return (
            f"{format_bytes(room + lacks)} are needed and the limits leave {format_bytes(room)} in "
            f"all{beside}: {format_bytes(lacks)} are lacking."
        )
    try:
        free = solve_chain(chain.unlimited)
    except InfeasiblePlanError:
        return "No placement keeps the pins."
    lacking = excess(chain, free.use)
    missing = ", ".join(f"'{name}' {format_bytes(lacks)}" for name, lacks in lacking.items())
    return f"The limits cannot be kept; the fastest placement lacks on {missing or 'no device'}."

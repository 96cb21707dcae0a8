"""Contiguous placements of a chain: each device gets one unbroken stretch of tasks, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations

import numpy as np

from partita_hetero.planner.chain.problem import (
    Array,
    Chain,
    ChainObjective,
    Options,
    TiedWeights,
    excess,
    use_of,
)

MOST_ORDERS = 720
"""Orders of devices that are tried."""


def stretches(chain: Chain, objective: ChainObjective) -> Iterator[list[int]]:
    """The best such placement for each order of devices that has one.

    Best but for two things, which the search of all placements heeds: a task with work on other
    devices takes what needs them least, and what a device spends on handing over counts for the
    device that it hands over to.

    Args:
        chain: What everything costs.
        objective: What is minimized.

    Yields:
        Option of each task.
    """
    own = _own_options(chain)
    segments = [_segments(chain, own, device) for device in range(len(chain.devices))]
    for order in islice(_orders(chain), MOST_ORDERS):
        homes = _best_cuts(chain, objective, order, segments)
        if homes is None:
            continue
        choice = [own[task][home] for task, home in enumerate(homes)]
        known = [row for row in choice if row is not None]
        if len(known) == len(choice) and not excess(chain, use_of(chain, known)):
            yield known


def _own_options(chain: Chain) -> list[list[int | None]]:
    """By task and device: the option at home there that needs others least, if there is one."""
    found: list[list[int | None]] = []
    for options in chain.tasks:
        rows: list[int | None] = []
        for device in range(len(chain.devices)):
            mine = np.flatnonzero(options.home == device)
            abroad = options.nbytes[mine].sum(axis=1) - options.nbytes[mine, device]
            rows.append(int(mine[np.argmin(abroad)]) if len(mine) else None)
        found.append(rows)
    return found


def _segments(chain: Chain, own: Sequence[Sequence[int | None]], device: int) -> Array:
    """By first task and task behind the last: time of a stretch; infinite where it cannot be."""
    count, limit = len(chain.tasks), chain.limits[device]
    us, nbytes, refused = np.zeros(count + 1), np.zeros(count + 1), np.zeros(count + 1)
    for task, (options, rows) in enumerate(zip(chain.tasks, own, strict=True)):
        row = rows[device]
        us[task + 1] = 0.0 if row is None else options.us[row].sum()
        nbytes[task + 1] = 0 if row is None else options.nbytes[row, device]
        refused[task + 1] = row is None
    us, nbytes, refused = np.cumsum(us), np.cumsum(nbytes), np.cumsum(refused)
    room = np.inf if limit is None else limit - chain.fixed_bytes[device]
    held = nbytes[None, :] - nbytes[:, None]
    for tied in chain.tied:
        (first, last), rows = tied.tasks, [own[task][device] for task in tied.tasks]
        ends = zip(tied.reads, rows, strict=True)
        if tied.within[device] and all(row is not None and on[row, device] for on, row in ends):
            held[: first + 1, last + 1 :] -= tied.nbytes
    possible = np.triu(np.ones((count + 1, count + 1), bool), 1)
    possible &= held <= room
    possible &= refused[None, :] == refused[:, None]
    segments = np.where(possible, us[None, :] - us[:, None], np.inf)
    segments[:, count] += chain.last_us[device]
    return segments


def _orders(chain: Chain) -> Iterator[tuple[int, ...]]:
    """Orders of devices, but for those that differ only in devices that are alike."""
    kind = [_first_alike(chain, device) for device in range(len(chain.devices))]
    seen = set()
    for order in permutations(range(len(chain.devices))):
        kinds = tuple(kind[device] for device in order)
        if kinds not in seen:
            seen.add(kinds)
            yield order
        if len(seen) >= MOST_ORDERS:
            return


def _first_alike(chain: Chain, device: int) -> int:
    """The first device that this one could be exchanged with."""
    for other in range(device):
        swap = list(range(len(chain.devices)))
        swap[device], swap[other] = other, device
        if (
            chain.limits[device] == chain.limits[other]
            and chain.fixed_bytes[device] == chain.fixed_bytes[other]
            and np.array_equal(chain.first_us[swap], chain.first_us)
            and np.array_equal(chain.last_us[swap], chain.last_us)
            and np.array_equal(chain.leaving_us[:, swap][:, :, swap], chain.leaving_us)
            and np.array_equal(chain.arriving_us[:, swap][:, :, swap], chain.arriving_us)
            and all(_same_on(options, device, other) for options in chain.tasks)
            and all(_tied_alike(chain, tied, device, other) for tied in chain.tied)
        ):
            return other
    return device


def _same_on(options: Options, device: int, other: int) -> bool:
    one, two = np.flatnonzero(options.home == device), np.flatnonzero(options.home == other)
    return (
        len(one) == len(two) == 1
        and bool(options.us[one[0], device] == options.us[two[0], other])
        and bool(options.nbytes[one[0], device] == options.nbytes[two[0], other])
    )


def _tied_alike(chain: Chain, tied: TiedWeights, device: int, other: int) -> bool:
    """Whether two devices, to which one option of each task leads, hold tied weights alike."""
    homes = [chain.tasks[task].home for task in tied.tasks]
    reads = zip(tied.reads, homes, strict=True)
    held = (tied.within, tied.across)
    return all(bool(one[device] == one[other]) for one in held) and all(
        on[home == device, device].tolist() == on[home == other, other].tolist()
        for on, home in reads
    )


def _best_cuts(
    chain: Chain, objective: ChainObjective, order: Sequence[int], segments: Sequence[Array]
) -> list[int] | None:
    """The device of each task if stretches go to devices in an order, some of them empty.

    Dynamic programming over how many tasks are done, and which device did the last of them.
    """
    count = len(chain.tasks)
    value = {-1: np.where(np.arange(count + 1) == 0, 0.0, np.inf)}
    origin: dict[int, list[tuple[int, int]]] = {}
    for device in order:
        best = np.full(count + 1, np.inf)
        came: list[tuple[int, int]] = [(-1, 0)] * (count + 1)
        for last, before in value.items():
            load = segments[device] + _arrival(chain, last, device)[:, None]
            total = (
                before[:, None] + load
                if objective == "LATENCY"
                else np.maximum(before[:, None], load)
            )
            begin = total.argmin(axis=0)
            found = total[begin, np.arange(count + 1)]
            for end in np.flatnonzero(found < best).tolist():
                came[end] = (last, int(begin[end]))
            best = np.minimum(best, found)
        value[device], origin[device] = best, came
    last = min(value, key=lambda device: float(value[device][count]))
    if not np.isfinite(value[last][count]):
        return None
    homes: list[int] = []
    end = count
    while end:
        came_from, first = origin[last][end]
        homes = [last] * (end - first) + homes
        last, end = came_from, first
    return homes


def _arrival(chain: Chain, last: int, device: int) -> Array:
    """By first task of a stretch: what it takes to come to a device; infinite where none was."""
    count = len(chain.tasks)
    arrival = np.full(count + 1, np.inf)
    if last < 0:
        arrival[0] = chain.first_us[device]
    else:
        moves = chain.leaving_us[:, last, device] + chain.arriving_us[:, last, device]
        arrival[1:count] = moves
    return arrival

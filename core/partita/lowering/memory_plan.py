"""The memory plan: where in one arena each intermediate tensor lies."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from partita.lowering.shapes.symbolic_size import Number, Size, highest, present

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""

LONG = 32
"""Steps of a life that is long."""

SORTING = 4
"""How much longer it takes to sort a tensor in than to look whether it is to be passed over."""

_Block = tuple[int, int, int, int]
"""Offset and end in bytes, first and last step."""

Interval = tuple[int, int, int]
"""Size in bytes, first step and last step (both inclusive) that touch the tensor."""


def plan(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Places tensors so that those alive at the same step never overlap.

    Greedy by size: the largest first, each into the smallest gap that holds it between the
    tensors that live at the same time (Pisarchyk and Lee, Efficient Memory Management for Deep
    Neural Net Inference, 2020, "greedy by size"). Takes time in proportion to the number of
    tensors times those alive beside each.

    Returns:
        Offsets, in the order of the intervals and multiples of :data:`ALIGNMENT`, and the total.
    """
    offsets = [0] * len(intervals)
    total = 0
    placed = _Placed()
    order = sorted(range(len(intervals)), key=lambda i: (-intervals[i][0], intervals[i][1]))
    for index in order:
        size, first, last = intervals[index]
        size = -(-size // ALIGNMENT) * ALIGNMENT
        offset = _best_gap(placed.beside(first, last), size)
        offsets[index] = offset
        total = max(total, offset + size)
        placed.add((offset, offset + size, first, last))
    return offsets, total


def plan_for_sizes(intervals: Sequence[tuple[Number, int, int]]) -> tuple[list[Number], Number]:
    """The same for tensors whose sizes may stand for others.

    Tensors are placed by what sizes are now. For others, each lies above the same ones that live
    at the same time, at the end of the highest: again no two of them overlap.
    """
    numbers = [(present(size), first, last) for size, first, last in intervals]
    offsets, total = plan(numbers)
    if not any(type(size) is Size for size, _, _ in intervals):
        return offsets, total
    ends: list[Number] = [0] * len(intervals)
    below: list[set[int]] = [set() for _ in intervals]
    done: list[int] = []
    scaled: list[Number] = [0] * len(intervals)
    for index in sorted(range(len(intervals)), key=lambda i: (offsets[i], i)):
        size, first, last = intervals[index]
        under = {n for n in done if intervals[n][1] <= last and first <= intervals[n][2]}
        # Where one of them lies above another, its end tells both.
        nearest = under.difference(*(below[n] for n in under))
        below[index] = under
        if nearest:
            scaled[index] = highest(*(ends[n] for n in sorted(nearest)))
        ends[index] = scaled[index] + -(-size // ALIGNMENT) * ALIGNMENT
        done.append(index)
    topmost = set(done).difference(*below)
    return scaled, highest(*(ends[n] for n in sorted(topmost))) if topmost else 0


class _Placed:
    """Tensors that have a place: short lives by step, long ones in a list that is gone through."""

    def __init__(self) -> None:
        self._all: list[_Block] = []
        self._long: list[_Block] = []
        self._at_step: dict[int, list[_Block]] = {}

    def add(self, block: _Block) -> None:
        """Adds one."""
        bisect.insort(self._all, block)
        _, _, first, last = block
        if last - first >= LONG:
            self._long.append(block)
            return
        for step in range(first, last + 1):
            self._at_step.setdefault(step, []).append(block)

    def beside(self, first: int, last: int) -> list[_Block]:
        """Those that live at one of the steps, by offset."""
        near = [self._long]
        if last - first < LONG:
            steps = range(first, last + 1)
            near += [self._at_step[step] for step in steps if step in self._at_step]
        if last - first >= LONG or SORTING * sum(map(len, near)) >= len(self._all):
            return [block for block in self._all if block[2] <= last and first <= block[3]]
        found = {block for blocks in near for block in blocks}
        return sorted(block for block in found if block[2] <= last and first <= block[3])


def _best_gap(blocks: Sequence[_Block], size: int) -> int:
    """Start of the smallest gap between blocks (ordered by start) that holds ``size`` bytes."""
    best, best_room, cursor = -1, -1, 0
    for start, end, _, _ in blocks:
        room = start - cursor
        if room >= size and (best < 0 or room < best_room):
            best, best_room = cursor, room
        if end > cursor:
            cursor = end
    return cursor if best < 0 else best

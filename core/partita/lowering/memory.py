"""The memory plan: where in one arena each intermediate tensor lies."""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""

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
    ends = [0] * len(intervals)
    total = 0
    at_step: dict[int, list[int]] = {}  # placed tensors by the steps they live at
    order = sorted(range(len(intervals)), key=lambda i: (-intervals[i][0], intervals[i][1]))
    for index in order:
        size, first, last = intervals[index]
        size = -(-size // ALIGNMENT) * ALIGNMENT
        beside = {i for step in range(first, last + 1) for i in at_step.get(step, ())}
        offset = _best_gap(sorted((offsets[i], ends[i]) for i in beside), size)
        offsets[index], ends[index] = offset, offset + size
        total = max(total, offset + size)
        for step in range(first, last + 1):
            at_step.setdefault(step, []).append(index)
    return offsets, total


def _best_gap(blocks: Sequence[tuple[int, int]], size: int) -> int:
    """Start of the smallest gap between blocks (ordered by start) that holds ``size`` bytes."""
    best, best_room, cursor = -1, -1, 0
    for start, end in blocks:
        room = start - cursor
        if room >= size and (best < 0 or room < best_room):
            best, best_room = cursor, room
        cursor = max(cursor, end)
    return cursor if best < 0 else best

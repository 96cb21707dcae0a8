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
    Neural Net Inference, 2020, "greedy by size"). Quadratic in the number of tensors.

    Returns:
        Offsets, in the order of the intervals and multiples of :data:`ALIGNMENT`, and the total.
    """
    offsets = [0] * len(intervals)
    placed: list[tuple[int, int, int, int]] = []  # start, end, first, last; ordered by start
    total = 0
    order = sorted(range(len(intervals)), key=lambda i: (-intervals[i][0], intervals[i][1]))
    for index in order:
        size, first, last = intervals[index]
        size = -(-size // ALIGNMENT) * ALIGNMENT
        best, best_room, cursor = -1, -1, 0
        for start, end, other_first, other_last in placed:
            if other_first > last or other_last < first:
                continue
            room = start - cursor
            if room >= size and (best < 0 or room < best_room):
                best, best_room = cursor, room
            cursor = max(cursor, end)
        if best < 0:
            best = cursor
        offsets[index] = best
        total = max(total, best + size)
        _insert(placed, (best, best + size, first, last))
    return offsets, total


def _insert(placed: list[tuple[int, int, int, int]], block: tuple[int, int, int, int]) -> None:
    """Keeps the list ordered by start."""
    low, high = 0, len(placed)
    while low < high:
        middle = (low + high) // 2
        if placed[middle][0] < block[0]:
            low = middle + 1
        else:
            high = middle
    placed.insert(low, block)

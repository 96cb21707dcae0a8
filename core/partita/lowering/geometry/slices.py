"""Which elements of a dimension a slice takes."""

from __future__ import annotations

from partita.lowering.shapes.symbolic_size import Size, never_less


def taken(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """The first element that a slice takes of a dimension, and how many it takes.

    Bounds below 0 count from the end, and what is beyond is clamped. Unlike Python's, a start
    before the first element is the first one if the step is negative, and an end there takes it.
    The size and the bounds may stand for others, of which some may take nothing.

    Args:
        size: Elements of the dimension.
        start: The first element; below 0 it counts from the end.
        end: Behind the last element in the direction of the step; below 0 it counts from the end.
        step: From one element to the next; below 0 it goes backwards.

    Raises:
        ZeroDivisionError: The step is 0.
    """
    start, end = start + size * (start < 0), end + size * (end < 0)
    if step > 0:
        first, last = min(max(start, 0), size), min(max(end, 0), size)
    else:
        first, last = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    count = last - first if step == 1 else -((first - last) // step)
    if isinstance(count, Size) and never_less(count, 0):
        return first, count
    return (first, count) if count > 0 else (0, 0)

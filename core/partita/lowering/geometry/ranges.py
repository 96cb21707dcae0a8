"""How many numbers a Range makes."""

from __future__ import annotations

import math


def count_of_range(start: float, limit: float, step: float) -> int:
    """How many whole numbers, or floats, a Range makes; none in steps of 0."""
    if not step:
        return 0
    if isinstance(start, int) and isinstance(limit, int) and isinstance(step, int):
        return max(-((start - limit) // step), 0)
    return max(math.ceil((float(limit) - float(start)) / float(step)), 0)

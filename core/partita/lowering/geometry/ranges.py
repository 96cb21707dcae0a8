"""How many numbers a Range makes."""

from __future__ import annotations

import math
from typing import Any

from partita.lowering.shapes.symbolic_size import Size, evaluated, never_less


def count_of_range(start: Any, limit: Any, step: Any) -> Any:
    """How many whole numbers, or floats, a Range makes; none in steps of 0.

    Of sizes it is a size: that which is counted up to, where it counts from 0 on.
    """
    ends = start, limit
    if any(type(n) is Size for n in (*ends, step)):
        if type(step) is not int or not step or any(isinstance(n, float) for n in ends):
            return evaluated(_count, start, limit, step)
        count = 0 - (start - limit) // step
        return count if never_less(count, 0) else evaluated(max, count, 0)
    return _count(start, limit, step)


def _count(start: float, limit: float, step: float) -> int:
    if not step:
        return 0
    if isinstance(start, int) and isinstance(limit, int) and isinstance(step, int):
        return max(-((start - limit) // step), 0)
    return max(math.ceil((float(limit) - float(start)) / float(step)), 0)

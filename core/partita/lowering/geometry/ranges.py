"""How many numbers a Range makes."""

from __future__ import annotations

import math


def count_of_range(start: int, limit: int, step: int) -> int:
    """How many whole numbers a Range makes; none in steps of 0."""
    return len(range(start, limit, step)) if step else 0


def length_of_range(first: float, limit: float, step: float) -> int:
    """The same of numbers of any type, none of which stands for a size."""
    return max(math.ceil((limit - first) / step), 0) if step else 0

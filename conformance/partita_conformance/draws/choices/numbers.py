"""Contents of systematic draws: arrays of distinct numbers, sizes and indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array


def numbers(*shape: int) -> Array:
    """Numbers of which no two are alike, above zero, in no order."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7919 % 10007 + 1) / 4001).astype(np.float32).reshape(shape)


def whole(values: Sequence[Any]) -> Array:
    """Whole numbers in a row."""
    return np.array(values, np.int64)


def places(size: int, *shape: int) -> Array:
    """Indices of ``[-size, size)``, in no order."""
    count = int(np.prod(shape))
    return (np.arange(count) * 31 % (2 * size) - size).astype(np.int64).reshape(shape)

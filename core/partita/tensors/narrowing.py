"""Conversion to narrow floats with a single rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LONG = frozenset(map(np.dtype, (np.float64, np.int32, np.uint32, np.int64, np.uint64)))
"""Types that float32 does not hold all numbers of."""

_KEPT = 11
"""Bits of a 64-bit integer that float64 has no digits for."""


def rounded_to_odd(array: Array) -> Array:
    """Numbers as float32, those that it does not hold by their neighbour whose last bit is 1.

    Rounded to nearest once more, to a float of 22 digits or fewer, they become what the numbers
    themselves round to. Rounded to nearest both times, 1 + 2^-11 + 2^-30 would become a tie, and 1
    in float16.

    Args:
        array: Of a type of :data:`LONG`.
    """
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        most = 2**53
        large = array >= most if array.dtype.kind == "u" else (array >= most) | (array <= -most)
        rest = (array & array.dtype.type(2**_KEPT - 1)) != 0
        shortened = ((array >> _KEPT) | rest.astype(array.dtype)) << _KEPT
        array = np.where(large, shortened, array)
    wide = np.asarray(array, np.float64)
    with np.errstate(all="ignore"):
        single = np.asarray(wide.astype(np.float32))
    near = single.astype(np.float64)
    pattern = single.view(np.int32)
    inexact = (near != wide) & ~np.isnan(wide) & (pattern & 1 == 0)
    beyond = np.abs(near) > np.abs(wide)
    step = np.where(inexact, np.where(beyond, -1, 1), 0).astype(np.int32)
    return np.asarray(pattern + step, np.int32).view(np.float32)

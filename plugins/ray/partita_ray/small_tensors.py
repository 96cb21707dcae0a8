"""Small tensors, which cross within the message of a call: an object for each takes longer.

Ray sends numbers, lists and bytes as they are, and pickles all else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.model.model import Port, is_static

SMALL_BYTES = 16 << 10
"""Most bytes of a tensor that crosses so."""

Array = np.ndarray[Any, Any]
Packed = list[Any]
"""Dimensions and elements; the type of these is the port's."""


def is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether a tensor crosses within the message."""
    return not dtype.hasobject and math.prod(shape) * dtype.itemsize <= SMALL_BYTES


def is_always_small(port: Port) -> bool:
    """Whether all tensors of a port do, so that no object has to be there for it."""
    return port.dtype is not None and is_static(port.shape) and is_small(port.shape, port.dtype)


def pack(array: Array) -> Packed:
    """What a message holds of a small tensor."""
    return [list(array.shape), array.tobytes()]


def unpack(packed: Packed, dtype: np.dtype[Any]) -> Array:
    """The tensor, read-only."""
    shape, elements = packed
    return np.frombuffer(elements, dtype).reshape(shape)

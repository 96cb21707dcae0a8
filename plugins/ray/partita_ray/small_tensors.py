"""Small tensors, which cross within the message of a call: an object for each takes longer.

Ray sends bytes as they are, and takes longer for all else than to pickle it here.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np

from partita.model.model import Port, is_static

SMALL_BYTES = 16 << 10
"""Most bytes of a tensor that crosses so."""

Array = np.ndarray[Any, Any]
Packed = list[Any]
"""Dimensions and elements; the type of these is the port's."""


def is_small(port: Port, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of a port crosses within the message."""
    if port.dtype is None or port.dtype.hasobject:
        return False
    return math.prod(shape) * port.dtype.itemsize <= SMALL_BYTES


def is_always_small(port: Port) -> bool:
    """Whether all tensors of a port do, so that no object has to be there for it."""
    return is_static(port.shape) and is_small(port, port.shape)


def pack(array: Array) -> Packed:
    """What a message holds of a small tensor."""
    return [list(array.shape), array.tobytes()]


def to_message(content: Any) -> bytes:
    """Plain data as one piece."""
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def from_message(message: bytes) -> Any:
    """What :func:`to_message` was given; by a process of this cluster, which Ray trusts as well."""
    return pickle.loads(message)  # noqa: S301  # Ray unpickles what comes from there as well


def unpack(packed: Packed, dtype: np.dtype[Any] | None) -> Array:
    """The tensor, read-only."""
    shape, elements = packed
    return np.frombuffer(elements, dtype).reshape(shape)

"""How sequences and optional values pass where tensors pass: inside arrays of no dimension.

Requests, permutes and results carry tensors only. A sequence (a list of arrays) or an absent
optional (``None``) travels as a 0-d object array that holds it; its port has no dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def boxed(value: Any) -> Any:
    """A sequence or an absent optional in its box; anything else as it is.

    Example:
        >>> boxed(None).shape, boxed([np.zeros(2)]).dtype
        ((), dtype('O'))
    """
    if value is None or isinstance(value, (list, tuple)):
        box = np.empty((), object)
        box[()] = None if value is None else list(value)
        return box
    return value


def unboxed(array: Any) -> Any:
    """What :func:`boxed` wrapped; any other array as it is.

    Example:
        >>> unboxed(boxed([1, 2]))
        [1, 2]
    """
    if array.dtype == object and array.ndim == 0:
        value = array[()]
        if value is None or isinstance(value, list):
            return value
    return array


def copied(value: Any) -> Any:
    """An array, or a sequence with its arrays, in memory of its own; ``None`` as it is.

    Example:
        >>> given = [np.zeros(2)]
        >>> copied(given)[0] is given[0]
        False
    """
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return value if value is None else np.array(value, order="C")

"""Large arrays in another type of numbers: on all processors, where numpy converts on one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from partita.system.processors import usable_processors

PIECE = 1 << 22
"""Elements of a piece, some ten milliseconds for halves; fewer than two pieces take no threads."""


def converted(array: np.ndarray[Any, Any], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """An array's numbers in another type, lying as they do, as ``array.astype`` has them.

    What is out of range becomes infinite without a warning, as in hardware.

    Args:
        array: Numbers, of any shape and strides.
        dtype: A type of numbers.
    """
    result = np.empty_like(array, dtype)
    convert_into(result, array)
    return result


def convert_into(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Writes an array's numbers to another one, in its type; see :func:`converted`.

    Args:
        target: Of the source's shape, and any strides.
        source: Numbers, of any strides.
    """
    longest = max(range(target.ndim), key=target.shape.__getitem__, default=0)
    count = target.shape[longest] if target.ndim else 1
    step = max(1, PIECE * count // max(1, target.size))
    starts = range(0, count, step)

    def convert(start: int) -> None:
        with np.errstate(all="ignore"):
            whole = (slice(None),) * longest
            piece = (*whole, slice(start, start + step)) if target.ndim else (...,)
            np.copyto(target[piece], source[piece], casting="unsafe")

    workers = min(len(starts), usable_processors())
    if workers < 2:
        for start in starts:
            convert(start)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(convert, starts))

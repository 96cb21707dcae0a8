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
    """An array's numbers in another type, in rows, as ``array.astype`` has them.

    What is out of range becomes infinite without a warning, as in hardware.

    Args:
        array: Numbers, of any shape and strides.
        dtype: A type of numbers.
    """
    result = np.empty(array.shape, dtype)
    source, target = array.reshape(-1), result.reshape(-1)
    starts = range(0, source.size, PIECE)

    def convert(start: int) -> None:
        with np.errstate(all="ignore"):
            piece = slice(start, start + PIECE)
            np.copyto(target[piece], source[piece], casting="unsafe")

    workers = min(len(starts), usable_processors())
    if workers < 2:
        for start in starts:
            convert(start)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(convert, starts))
    return result

"""Native loops over functions of the driver: a call from Python takes longer than most of them.

They are compiled at first use, for the driver loader's own functions.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from partita_opencl.native_loops import Loop

_log = logging.getLogger(__name__)

Records = np.ndarray[Any, np.dtype[np.uint64]]
"""Words by record; ``driver_loops.ll`` says what they are."""

RECORD_WORDS = 4


class DriverLoops(NamedTuple):
    """The loops. Each returns how many records the driver agreed to, in order.

    Attributes:
        enqueue_all: Enqueues kernels: takes the queue, the number of records and their address.
        set_all: Sets arguments of kernels: takes the number of records and their address.
    """

    enqueue_all: Callable[[int, int, int], int]
    set_all: Callable[[int, int], int]


@functools.cache
def driver_loops() -> DriverLoops | None:
    """The compiled loops, or ``None`` where the driver's functions cannot be had."""
    import pyopencl as cl

    try:
        # The loader that pyopencl itself is linked to: another one has other handles.
        library = ctypes.CDLL(cl._cl.__file__)
        functions = [
            ctypes.cast(function, ctypes.c_void_p).value
            for function in (library.clEnqueueNDRangeKernel, library.clSetKernelArg)
        ]
    except (AttributeError, OSError) as error:
        _log.info("Kernels are enqueued one by one: %s", error)
        return None
    if None in functions or struct.calcsize("P") != 8:
        _log.info("Kernels are enqueued one by one: handles are not of 64 bits.")
        return None
    enqueue, set_argument = (function or 0 for function in functions)
    return DriverLoops(Loop("enqueue_all", 4, enqueue), Loop("set_all", 3, set_argument))


def take(
    loop: Callable[[int, int], int] | None, records: Records, by_hand: Callable[[int], object]
) -> None:
    """Takes records in order; one that the driver refuses again by hand, to hear why.

    Args:
        loop: Takes the number of records and their address; ``None``: all are taken by hand.
        records: A row for each.
        by_hand: Takes the record of a number, and raises what is wrong with it.
    """
    start, count = 0, len(records)
    while start < count:
        if loop is not None:
            start += loop(count - start, records.ctypes.data + start * records.strides[0])
        if start < count:
            by_hand(start)
            start += 1

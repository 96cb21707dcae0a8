"""Sequences of kernels that one native loop enqueues: a call from Python costs more than a kernel.

Where there is no such loop (:mod:`partita_opencl.runtime.driver_loops`), pyopencl enqueues each
kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita_opencl.runtime.driver_loops import RECORD_WORDS, driver_loops, take

Call = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""A kernel with its arguments set, its global size and its local size."""


class KernelSequence:
    """Kernels that are enqueued in order, again and again.

    Args:
        calls: The kernels; later changes of their arguments hold.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        self._records = np.zeros((len(self._calls), RECORD_WORDS), np.uint64)
        self._sizes: list[np.ndarray[Any, Any]] = []  # kept alive: records hold their addresses
        for record, (kernel, global_size, local_size) in zip(
            self._records, self._calls, strict=True
        ):
            sizes = np.array([global_size, local_size], np.uintp)
            self._sizes.append(sizes)
            record[:] = kernel.int_ptr, len(global_size), sizes[0].ctypes.data, sizes[1].ctypes.data

    def enqueue(self, queue: Any) -> None:
        """Enqueues all.

        Raises:
            pyopencl.Error: The driver refuses a kernel.
        """
        import pyopencl as cl

        loops = driver_loops()
        loop = None if loops is None else functools.partial(loops.enqueue_all, queue.int_ptr)
        # pyopencl says why a kernel is refused, as an exception of the right type.
        take(loop, self._records, lambda n: cl.enqueue_nd_range_kernel(queue, *self._calls[n]))

"""Sequences of kernels that one native loop enqueues: a call from Python costs more than a kernel.

Where there is no such loop (:mod:`partita_opencl.runtime.driver_loops`), pyopencl enqueues each
kernel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita_opencl.runtime.driver_loops import RECORD_WORDS, DriverKernel, driver_loops, take

Call = tuple[DriverKernel, tuple[int, ...], tuple[int, ...]]
"""A kernel with its arguments set, its global size and its local size."""


class KernelSequence:
    """Kernels that are enqueued in order, again and again.

    Args:
        calls: The kernels; later changes of their arguments hold.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        sizes = [(*items, *groups) for _, items, groups in self._calls]
        starts = np.array([0, *itertools.accumulate(map(len, sizes))])[:-1]
        self._sizes = np.array([*itertools.chain(*sizes)], np.uintp)  # records have their addresses
        self._records = np.zeros((len(self._calls), RECORD_WORDS), np.uint64)
        if self._calls:
            dimensions = np.array([len(items) for _, items, _ in self._calls])
            self._records[:, 0] = [kernel.int_ptr for kernel, _, _ in self._calls]
            self._records[:, 1] = dimensions
            self._records[:, 2] = self._sizes.ctypes.data + starts * self._sizes.itemsize
            self._records[:, 3] = self._records[:, 2] + dimensions * self._sizes.itemsize

    def enqueue(self, queue: Any) -> None:
        """Enqueues all.

        Raises:
            pyopencl.Error: The driver refuses a kernel.
        """
        loops = driver_loops()
        loop = None if loops is None else functools.partial(loops.enqueue_all, queue.int_ptr)
        # pyopencl says why a kernel is refused, as an exception of the right type.
        take(loop, self._records, lambda n: enqueued(queue, self._calls[n]))


def enqueued(queue: Any, call: Call) -> Any:
    """The event of a kernel that pyopencl enqueues.

    Raises:
        pyopencl.Error: The driver refuses it.
    """
    import pyopencl as cl

    kernel, items, group = call
    return cl.enqueue_nd_range_kernel(queue, kernel.opencl, items, group)

"""Kernels by the driver's own functions, and native loops over these.

A call from Python takes longer than most of the functions. Loops are compiled at first use.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from partita_opencl.drivers.installed_drivers import opencl_library
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


class DriverKernel:
    """A kernel, of which pyopencl's own object is made when somebody needs that.

    For each of its objects pyopencl generates Python code, which takes a hundred times as long as
    to make the kernel.

    Args:
        program: The ``pyopencl.Program`` that has it.
        name: Its name.

    Raises:
        pyopencl.Error: The driver refuses.

    Attributes:
        name: Its name.
        int_ptr: What the driver knows it by.
    """

    def __init__(self, program: Any, name: str) -> None:
        import pyopencl as cl

        self.name = name
        functions = kernel_functions()
        handle = None if functions is None else functions[0](program.int_ptr, name.encode(), None)
        if functions is None or not handle:  # refused: pyopencl says why
            self.opencl = cl.Kernel(program, name)
            self.int_ptr = int(self.opencl.int_ptr)
        else:
            self.int_ptr = handle
            weakref.finalize(self, functions[1], handle).atexit = False  # the driver may be gone

    @functools.cached_property
    def opencl(self) -> Any:
        """The ``pyopencl.Kernel``."""
        import pyopencl as cl

        return cl.Kernel.from_int_ptr(self.int_ptr)


@functools.cache
def kernel_functions() -> tuple[Callable[..., int | None], Callable[[int], int]] | None:
    """``clCreateKernel`` and ``clReleaseKernel``, or ``None`` where they cannot be had."""
    try:
        library = opencl_library()
        word, release = ctypes.c_void_p, library.clReleaseKernel
        create = library.clCreateKernel
    except (AttributeError, OSError) as error:
        _log.info("Kernels are made by pyopencl: %s", error)
        return None
    create.restype, create.argtypes = word, (word, ctypes.c_char_p, word)
    release.argtypes = (word,)
    return create, release


@functools.cache
def driver_loops() -> DriverLoops | None:
    """The compiled loops, or ``None`` where the driver's functions cannot be had."""
    try:
        library = opencl_library()
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

"""Sequences of kernels that one native loop enqueues: a call from Python costs more than a kernel.

The loop is compiled at first use for the driver loader's own ``clEnqueueNDRangeKernel``. Where that
function cannot be had, pyopencl enqueues each kernel.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)

Call = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""A kernel with its arguments set, its global size and its local size."""

Loop = Callable[[int, int, int, int], int]
"""Takes the function, the queue, the number of records and their address; see the .ll file."""

_WORDS = 4
"""Words of a record."""


class KernelSequence:
    """Kernels that are enqueued in order, again and again.

    Args:
        calls: The kernels; later changes of their arguments hold.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        self._records = np.zeros((len(self._calls), _WORDS), np.uint64)
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

        native = native_loop()
        start, count = 0, len(self._calls)
        while native is not None and start < count:
            function, loop = native
            address = self._records.ctypes.data + start * self._records.strides[0]
            start += loop(function, queue.int_ptr, count - start, address)
            if start < count:
                # pyopencl says why a kernel was refused, as an exception of the right type.
                cl.enqueue_nd_range_kernel(queue, *self._calls[start])
                start += 1
        for call in self._calls[start:]:
            cl.enqueue_nd_range_kernel(queue, *call)


@functools.cache
def native_loop() -> tuple[int, Loop] | None:
    """The address of ``clEnqueueNDRangeKernel`` and the compiled loop, or ``None``."""
    import pyopencl as cl

    try:
        # The loader that pyopencl itself is linked to: another one has other handles.
        library = ctypes.CDLL(cl._cl.__file__)
        function = ctypes.cast(library.clEnqueueNDRangeKernel, ctypes.c_void_p).value
    except (AttributeError, OSError) as error:
        _log.info("Kernels are enqueued one by one: %s", error)
        return None
    if function is None or struct.calcsize("P") != 8:
        _log.info("Kernels are enqueued one by one: handles are not of 64 bits.")
        return None
    return function, _compile()


def _compile() -> Loop:
    """The native loop; the engine that holds its code lives as long as the process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = resources.files("partita_opencl").joinpath("enqueue_all.ll").read_text(encoding="utf-8")
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    word = ctypes.c_size_t
    return ctypes.CFUNCTYPE(word, word, word, word, word)(
        engine.get_function_address("enqueue_all")
    )


_engines: list[Any] = []

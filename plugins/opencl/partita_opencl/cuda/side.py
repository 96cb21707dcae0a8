"""One device as CUDA has it: memory that OpenCL has too, copies of tensors, turns of runs."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from partita.system.processors import usable_processors
from partita_opencl.cuda.cuda_driver import Array, Cuda, CudaError, Stream, Word
from partita_opencl.cuda.replay import load
from partita_opencl.cuda.shared_memory import SharedMemory, address_of

_log = logging.getLogger(__name__)

_NO_TIMING = 2
"""``CU_EVENT_DISABLE_TIMING``"""


class CudaSide:
    """What a device does by CUDA. Thread-safe.

    Args:
        cuda: The device.
        context: Its ``pyopencl.Context``.

    Attributes:
        cuda: The device.
        memory: Allocates what both reach.
    """

    def __init__(self, cuda: Cuda, context: Any) -> None:
        self.cuda = cuda
        self.memory = SharedMemory(cuda, context)
        self._lock = threading.Lock()
        self._ended = Word()
        self._own = threading.local()
        with cuda.current():
            cuda.call("cuEventCreate", ctypes.byref(self._ended), _NO_TIMING)
        cuda.when_gone(self, ("cuEventDestroy_v2", self._ended))

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self.cuda)

    def load(self, programs: Iterable[Any]) -> bool:
        """Has CUDA assemble OpenCL programs, side by side; whether it has all of them now."""
        with ThreadPoolExecutor(usable_processors()) as pool:
            return all(list(pool.map(self._load, programs)))

    def _load(self, program: Any) -> bool:
        try:
            return load(self.cuda, program)
        except CudaError as error:
            _log.warning("OpenCL launches kernels that CUDA refuses: %s", error)
            return False

    def write(self, buffer: Any, array: Array, start: int = 0) -> bool:
        """Copies a contiguous array's bytes into a buffer; ``False`` if CUDA does not have it.

        Raises:
            CudaError: The copy failed.
        """
        address = address_of(buffer)
        if address is None:
            return False
        self._copy(lambda stream: stream.write(address + start, array))
        return True

    def read(self, array: Array, buffer: Any) -> bool:
        """Copies a buffer's bytes into a contiguous array; ``False`` if CUDA does not have it.

        Raises:
            CudaError: The copy failed.
        """
        address = address_of(buffer)
        if address is None:
            return False
        self._copy(lambda stream: stream.read(array, address))
        return True

    def in_turn(self, stream: Stream, run: Callable[[], None]) -> None:
        """Enqueues commands that start when those of all other requests that came so have ended.

        The context is current.

        Args:
            stream: The request's.
            run: Enqueues them.

        Raises:
            CudaError: The driver refuses.
        """
        with self._lock:
            self.cuda.call("cuStreamWaitEvent", stream.handle, self._ended, 0)
            try:
                run()
            finally:
                self.cuda.call("cuEventRecord", self._ended, stream.handle)

    def _copy(self, command: Callable[[Stream], None]) -> None:
        stream: Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = self.stream()
        with self.cuda.current():
            command(stream)
            stream.finish()

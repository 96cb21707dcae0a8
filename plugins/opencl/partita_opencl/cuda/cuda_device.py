"""One device as CUDA has it: memory that OpenCL has too, copies of tensors, turns of runs."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from partita_opencl.cuda.cuda_driver import Array, Batch, Cuda, CudaError, Stream, Word, cuda_of
from partita_opencl.cuda.replay import is_loaded, load
from partita_opencl.cuda.shared_memory import SharedMemory, address_of

_log = logging.getLogger(__name__)

SWITCH = "PARTITA_CUDA"
"""The variable of the environment that keeps CUDA out, if it is ``0``."""

PASSED = "passed"
"""What a trial tells of a device that did all."""

_NO_TIMING = 2
"""``CU_EVENT_DISABLE_TIMING``"""


class CudaSide:
    """What a device does by CUDA. Thread-safe.

    Args:
        cuda: The device.
        context: Its ``pyopencl.Context``.
        largest: As `SharedMemory` takes it.

    Attributes:
        cuda: The device.
        memory: Allocates what both reach.
    """

    def __init__(self, cuda: Cuda, context: Any, largest: int | None = None) -> None:
        self.cuda = cuda
        self.memory = SharedMemory(cuda, context, largest)
        self._lock = threading.Lock()
        self._ended = Word()
        self._own = threading.local()
        with cuda.current():
            cuda.call("cuEventCreate", ctypes.byref(self._ended), _NO_TIMING)
        cuda.on_release(self, ("cuEventDestroy_v2", self._ended))

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self.cuda)

    def load(self, programs: Iterable[Any]) -> Loading:
        """Has CUDA assemble OpenCL programs, in the background."""
        return Loading(self.cuda, list(programs))

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

    def read(self, array: Array, buffer: Any, start: int = 0) -> bool:
        """Copies a buffer's bytes from a byte on into a contiguous array.

        Returns:
            Whether CUDA has the buffer.

        Raises:
            CudaError: The copy failed.
        """
        address = address_of(buffer)
        if address is None:
            return False
        self._copy(lambda stream: stream.read(array, address + start))
        return True

    def in_turn(self, stream: Stream, run: Callable[[], None]) -> Batch | None:
        """Enqueues commands that start when those of all other requests that came so have ended.

        Args:
            stream: The request's.
            run: Enqueues them.

        Returns:
            The commands, for :meth:`enqueue_again`.

        Raises:
            CudaError: The driver refuses.
        """
        ended = self._ended.value or 0
        with self._lock:
            stream.add("cuStreamWaitEvent", stream.handle, ended)
            run()
            stream.add("cuEventRecord", ended, stream.handle)
            return stream.submit()

    def enqueue_again(self, commands: Batch) -> None:
        """Enqueues what :meth:`in_turn` returned once more.

        Raises:
            CudaError: The driver refuses.
        """
        with self._lock:
            commands.perform()

    def _copy(self, command: Callable[[Stream], None]) -> None:
        stream: Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = self.stream()
        command(stream)
        stream.finish()


class Loading:
    """Programs on their way to CUDA, which takes as long for each as OpenCL's driver did.

    One after another, in the background: other calls of CUDA wait meanwhile, other programs too.

    Args:
        cuda: The device.
        programs: What ``pyopencl.Program`` is to be loaded.
    """

    def __init__(self, cuda: Cuda, programs: list[Any]) -> None:
        self._cuda = cuda
        self._programs = programs
        self._is_done = all(map(is_loaded, programs))
        if not self._is_done:
            threading.Thread(target=self._load, name="partita-cuda-load").start()

    @property
    def is_possible(self) -> bool:
        """Whether all of them are there now."""
        return self._is_done and all(map(is_loaded, self._programs))

    def _load(self) -> None:
        main = threading.main_thread()
        try:
            for program in self._programs:
                if not main.is_alive():
                    return  # the process ends, and waits for this thread
                load(self._cuda, program)
        except CudaError as error:
            _log.warning("OpenCL launches kernels that CUDA refuses: %s", error)
        finally:
            self._is_done = True


def opened(handle: Any, context: Any, told: str, largest: int | None = None) -> CudaSide | None:
    """A device as CUDA has it; ``None`` where its trial said otherwise, or it fails now.

    Args:
        handle: The ``pyopencl.Device``.
        context: Its context.
        told: What its trial said.
        largest: As `SharedMemory` takes it.
    """
    kept_out = os.environ.get(SWITCH) == "0"
    if told != PASSED or kept_out:
        if told:
            why = f"{SWITCH} is 0" if kept_out else told
            _log.info("%s is not driven by CUDA: %s", handle.name, why)
        return None
    try:
        cuda = cuda_of(handle)
        return None if cuda is None else CudaSide(cuda, context, largest)
    except CudaError as error:
        _log.warning("CUDA, which passed its trial, cannot be used now: %s", error)
        return None

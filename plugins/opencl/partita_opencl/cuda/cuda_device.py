"""One device as CUDA has it: memory that OpenCL has too, copies of tensors, turns of runs."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.task_threads import TaskThreads
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

BACKGROUND = TaskThreads("partita-cuda-load", 1)
"""Where programs are loaded, and graphs made of them."""


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
        self._lock = InterruptSafeLock()
        self._ended = Word()
        self._own = threading.local()
        with cuda.current():
            cuda.call("cuEventCreate", ctypes.byref(self._ended), _NO_TIMING)
        cuda.on_release(self, ("cuEventDestroy_v2", self._ended))

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self.cuda)

    def load(self, programs: Iterable[Any], then: Callable[[], Callable[[], None] | None]) -> None:
        """Has CUDA assemble OpenCL programs in the background, and does something with them there.

        CUDA takes as long for each as OpenCL's driver did, and other calls of it wait meanwhile:
        it is given one after another, and each once.

        Args:
            programs: What ``pyopencl.Program`` is to be loaded.
            then: A weak reference to what is called, and must not raise, when all are there;
                nothing more is loaded once that is gone, nor when the process ends.
        """
        if not threading.main_thread().is_alive():
            return
        try:
            BACKGROUND.submit(self._load, list(programs), then)
        except RuntimeError as error:  # the run that asks for it has gone well
            _log.warning("OpenCL launches kernels that CUDA could: %s", error)

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

    def _load(self, programs: list[Any], then: Callable[[], Callable[[], None] | None]) -> None:
        import pyopencl as cl

        main = threading.main_thread()
        try:
            for program in programs:
                if not main.is_alive() or then() is None:
                    return  # the process, which ends, waits for this thread
                load(self.cuda, program)
        except (CudaError, cl.Error) as error:
            _log.warning("OpenCL launches kernels that CUDA refuses: %s", error)
            return
        action = then()
        if action is not None and all(map(is_loaded, programs)):
            action()

    def thread_stream(self) -> Stream:
        """The calling thread's own stream, which is no request's."""
        stream: Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = self.stream()
        return stream

    def _copy(self, command: Callable[[Stream], None]) -> None:
        stream = self.thread_stream()
        command(stream)
        stream.finish()


def opened(handle: Any, context: Any, verdict: str, largest: int | None = None) -> CudaSide | None:
    """A device as CUDA has it; ``None`` where its trial said otherwise, or it fails now.

    Args:
        handle: The ``pyopencl.Device``.
        context: Its context.
        verdict: What its trial said.
        largest: As `SharedMemory` takes it.
    """
    kept_out = os.environ.get(SWITCH) == "0"
    if verdict != PASSED or kept_out:
        if verdict:
            why = f"{SWITCH} is 0" if kept_out else verdict
            _log.info("%s is not driven by CUDA: %s", handle.name, why)
        return None
    try:
        cuda = cuda_of(handle)
        return None if cuda is None else CudaSide(cuda, context, largest)
    except CudaError as error:
        _log.warning("CUDA, which passed its trial, cannot be used now: %s", error)
        return None

"""Device memory: a pool of buffers that requests take and give back, and typed errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from partita.errors import DeviceMemoryError, DeviceUnavailableError, InferError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_opencl.cuda.cuda_driver import CudaError

if TYPE_CHECKING:
    from partita_opencl.cuda.cuda_device import CudaSide
    from partita_opencl.device.limits import Limits

_KEPT_FRACTION = 8
"""Free buffers may hold one part in this many of the device's memory."""


class BufferPool:
    """Buffers of one device. Thread-safe.

    Args:
        context: The device's context.
        limits: The device's, such as its largest allocation.
        device: Its name, for messages.
        cuda: The same device for CUDA, which reaches what is allocated then.
    """

    def __init__(
        self, context: Any, limits: Limits, device: str, cuda: CudaSide | None = None
    ) -> None:
        self._context = context
        self._limits = limits
        self._device = device
        self._cuda = cuda
        self._free: list[Any] = []
        self._lock = InterruptSafeLock()

    def take(self, nbytes: int) -> Any:
        """A buffer of at least ``nbytes`` with arbitrary content: a free one or a new one.

        Raises:
            DeviceMemoryError: The device has no room.
        """
        with self._lock:
            fitting = [b for b in self._free if nbytes <= b.size <= 2 * max(nbytes, 1 << 16)]
            if fitting:
                found = min(fitting, key=lambda buffer: buffer.size)
                self._free.remove(found)
                return found
        return self.allocate(nbytes)

    def give(self, buffer: Any) -> None:
        """Takes a buffer back; its user must not touch it again."""
        with self._lock:
            held = sum(free.size for free in self._free)
            if held + buffer.size <= self._limits.memory_bytes // _KEPT_FRACTION:
                self._free.append(buffer)

    def allocate(self, nbytes: int, content: Any = None) -> Any:
        """A new buffer, not from the pool, filled from a host array if one is given.

        Raises:
            DeviceMemoryError: It is larger than the device's largest buffer, or there is no room.
            DeviceUnavailableError: The device has failed before.
        """
        import pyopencl as cl

        if nbytes > self._limits.allocation_bytes:
            raise DeviceMemoryError(
                f"Device '{self._device}' cannot hold a tensor of {_mib(nbytes)}: its "
                f"largest buffer is {_mib(self._limits.allocation_bytes)}. Use smaller inputs or "
                "another device for this part."
            )
        # Buffers of no bytes do not exist in OpenCL; tensors of no elements do.
        size = max(nbytes, self._limits.alignment)
        for attempt in range(2):
            try:
                return self._allocate(size, content)
            except (cl.Error, CudaError, OSError) as error:
                if isinstance(error, CudaError) and not error.is_lack_of_memory:
                    raise DeviceUnavailableError(
                        f"Device '{self._device}' cannot be used any more: {error}."
                    ) from error
                if attempt or not self._drop_free():
                    self._no_room(nbytes, error)
        raise DeviceMemoryError(f"Device '{self._device}' has no room for {_mib(nbytes)}.")

    def _allocate(self, size: int, content: Any) -> Any:
        import pyopencl as cl

        has_content = content is not None and content.nbytes > 0
        if self._cuda is not None and self._cuda.memory.takes(size):
            buffer = self._cuda.memory.allocate(size)
            if has_content:
                self._cuda.write(buffer, raw(content))
            return buffer
        flags = cl.mem_flags.READ_WRITE
        if not has_content:
            return cl.Buffer(self._context, flags, size)
        return cl.Buffer(self._context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=raw(content))

    def _drop_free(self) -> bool:
        """Frees what nobody uses; whether there was anything."""
        with self._lock:
            dropped = bool(self._free)
            self._free.clear()
        return dropped

    def _no_room(self, nbytes: int, error: Exception) -> NoReturn:
        raise DeviceMemoryError(
            f"Device '{self._device}' has no room for {_mib(nbytes)} (its memory is "
            f"{_mib(self._limits.memory_bytes)}): {error}"
        ) from error


def raw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a contiguous array: drivers need no types, and some types export no buffer."""
    return array.reshape(-1).view(np.uint8)


def runtime_error(error: Any, device: str, nbytes: int) -> InferError:
    """The error to raise for what the driver reports while a model runs.

    Args:
        error: What pyopencl raised.
        device: The device's name.
        nbytes: Bytes of the model's intermediate tensors.

    Returns:
        A ``DeviceMemoryError`` where memory ran out.
    """
    import pyopencl as cl

    if isinstance(error, cl.MemoryError) or getattr(error, "is_lack_of_memory", False):
        return DeviceMemoryError(
            f"Device '{device}' ran out of memory while computing; this model's intermediate "
            f"tensors take {_mib(nbytes)}: {error}"
        )
    return InferError(f"Device '{device}' failed while computing: {error}")


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"

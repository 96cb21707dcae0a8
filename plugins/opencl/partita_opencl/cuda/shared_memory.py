"""A device's memory that OpenCL and CUDA both reach: CUDA allocates it, OpenCL imports it.

A buffer is a ``pyopencl.Buffer`` whose attribute ``cuda`` tells the address that CUDA knows it by;
OpenCL's is another. Memory comes in pieces of megabytes, so that small buffers are parts of one,
in as many sizes as halve the waste.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from typing import Any

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_opencl.cuda.cuda_driver import Address, Cuda, CudaError

_log = logging.getLogger(__name__)

EXTENSION = "cl_khr_external_memory_opaque_fd"
"""What OpenCL's driver must list to import memory."""

_OPAQUE_FD = 0x2060
"""``CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR``"""

_POSIX = 1
"""``CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR``"""

_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3
"""``CU_MEM_ALLOCATION_TYPE_PINNED``, ``..._LOCATION_TYPE_DEVICE``, ``..._FLAGS_PROT_READWRITE``"""

_LEAST = 512
"""Bytes of the smallest part: where parts of a buffer may begin on NVIDIA's devices."""

_PART = 1 << 20
"""Buffers of up to so many bytes are parts of others."""

_SLAB = 2 << 20
"""Bytes that parts are cut from at a time; what the driver hands out at least."""


_SPARE_DESCRIPTORS = 16
"""What drivers may need while memory is exported and imported."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Allocation(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = (
        *(("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", _Location)),
        *(("windows", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)),
    )


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class CudaMemory:
    """Where CUDA has a buffer; goes with the buffer whose attribute it is.

    Attributes:
        address: Its first byte's.
    """

    def __init__(self, address: int) -> None:
        self.address = address


def address_of(buffer: Any) -> int | None:
    """Where CUDA has a buffer; ``None`` if it does not have it."""
    memory = getattr(buffer, "cuda", None)
    return None if memory is None else memory.address


class SharedMemory:
    """Allocates on one device. Thread-safe.

    Parts of buffers are kept for ever, and used again: NVIDIA's driver (580.159) ends the process
    when one that kernels have used is released.

    Args:
        cuda: The device for CUDA.
        context: The device's ``pyopencl.Context``.
        largest: Bytes of the largest buffer that OpenCL is known to import; ``None`` for any.
    """

    def __init__(self, cuda: Cuda, context: Any, largest: int | None = None) -> None:
        self._cuda = cuda
        self._largest = largest
        self._context = context
        self._free: dict[int, list[tuple[Any, int]]] = {}
        self._lock = InterruptSafeLock()

    def takes(self, nbytes: int) -> bool:
        """Whether both may have a buffer of so many bytes; kernels on others OpenCL launches."""
        if self._largest is None or nbytes <= self._largest:
            return True
        _log.info(
            "OpenCL imports at most %d MiB of CUDA's memory: it launches what reads a buffer of "
            "%d MiB, which takes the host longer",
            self._largest >> 20,
            nbytes >> 20,
        )
        return False

    def allocate(self, nbytes: int) -> Any:
        """A buffer of at least ``nbytes`` with arbitrary content.

        Raises:
            CudaError: There is no room.
            pyopencl.Error: OpenCL does not import the memory.
            OSError: The process may have no more descriptors, of which each buffer takes one.
        """
        return self._part(_size_of(nbytes)) if nbytes <= _PART else self._slabs(nbytes)

    def _slabs(self, nbytes: int) -> Any:
        size = -(-nbytes // _SLAB) * _SLAB
        cuda = self._cuda
        _require_descriptors()
        with cuda.current():
            handle, descriptor = self._created(size)
            try:
                buffer = _imported(self._context, descriptor, size)
                memory = mapped(cuda, handle, size)
            finally:
                cuda.call("cuMemRelease", handle)  # both keep it for themselves
        buffer.cuda = memory
        return buffer

    def _created(self, size: int) -> tuple[Address, int]:
        """New memory, and the file descriptor that it is exported by."""
        handle, descriptor = Address(), ctypes.c_int()
        kind = _Allocation(_PINNED, _POSIX, _Location(_ON_DEVICE, self._cuda.number))
        self._cuda.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(kind), 0)
        export = "cuMemExportToShareableHandle"
        try:
            self._cuda.call(export, ctypes.byref(descriptor), handle, _POSIX, 0)
        except CudaError:
            self._cuda.call("cuMemRelease", handle)
            raise
        return handle, descriptor.value

    def _part(self, size: int) -> Any:
        import pyopencl as cl

        with self._lock:
            free = self._free.setdefault(size, [])
            if not free:
                slab = self._slabs(_SLAB)
                _keep(slab)
                for start in range(0, _SLAB - size + 1, size):
                    part = slab.get_sub_region(start, size)
                    _keep(part)
                    free.append((part, slab.cuda.address + start))
            part, address = free.pop()
        buffer: Any = cl.Buffer.from_int_ptr(part.int_ptr, retain=True)
        buffer.cuda = CudaMemory(address)
        weakref.finalize(buffer.cuda, self._give_back, size, (part, address)).atexit = False
        return buffer

    def _give_back(self, size: int, part: tuple[Any, int]) -> None:
        # No lock: the end of an object may come within `_part`, in the same thread.
        self._free[size].append(part)


def mapped(cuda: Cuda, handle: Address, size: int) -> CudaMemory:
    """Memory where kernels of CUDA reach it, until the result is gone; the context is current.

    Args:
        cuda: The device.
        handle: The memory's; may be released.
        size: Bytes of it all.
    """
    address = Address()
    cuda.call("cuMemAddressReserve", ctypes.byref(address), size, 0, 0, 0)
    memory = CudaMemory(address.value)
    cuda.on_release(memory, ("cuMemUnmap", address, size), ("cuMemAddressFree", address, size))
    cuda.call("cuMemMap", address, size, 0, handle, 0)
    access = _Access(_Location(_ON_DEVICE, cuda.number), _READ_WRITE)
    cuda.call("cuMemSetAccess", address, size, ctypes.byref(access), 1)
    return memory


def imported_address(cuda: Cuda, descriptor: int, size: int) -> CudaMemory:
    """Memory that was exported as a file descriptor, which stays the caller's.

    Raises:
        CudaError: It is not CUDA's, or not of this size.
    """
    handle = Address()
    with cuda.current():
        cuda.call("cuMemImportFromShareableHandle", ctypes.byref(handle), descriptor, _POSIX)
        try:
            return mapped(cuda, handle, size)
        finally:
            cuda.call("cuMemRelease", handle)


def import_buffer(context: Any, descriptor: int, nbytes: int) -> tuple[Any, int]:
    """An OpenCL buffer over exported memory, and the status; a buffer takes the descriptor over."""
    import pyopencl as cl

    word = ctypes.c_void_p
    create = ctypes.CDLL(cl._cl.__file__).clCreateBufferWithProperties
    create.restype = word
    create.argtypes = [word, word, ctypes.c_uint64, ctypes.c_size_t, word, word]
    status = ctypes.c_int()
    properties = (ctypes.c_uint64 * 3)(_OPAQUE_FD, descriptor, 0)
    flags = cl.mem_flags.READ_WRITE
    made = create(context.int_ptr, properties, flags, nbytes, None, ctypes.byref(status))
    return (cl.Buffer.from_int_ptr(made, retain=False) if made else None), status.value


def _imported(context: Any, descriptor: int, nbytes: int) -> Any:
    import pyopencl as cl

    buffer, status = import_buffer(context, descriptor, nbytes)
    if buffer is None:
        os.close(descriptor)
        raise cl.LogicError(f"clCreateBufferWithProperties failed: {status}")
    return buffer


def _require_descriptors() -> None:
    """Raises if few are left: NVIDIA's driver (580.159) ends the process when it gets none."""
    spare: list[int] = []
    try:
        spare.append(os.open(os.devnull, os.O_RDONLY))
        spare += (os.dup(spare[0]) for _ in range(_SPARE_DESCRIPTORS))
    except OSError as error:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        hint = f"the process may have {limit} descriptors, and each buffer of a GPU takes one"
        raise OSError(
            error.errno, f"{hint}; raise the limit, e.g. 'ulimit -n {8 * limit}'"
        ) from error
    finally:
        for descriptor in spare:
            os.close(descriptor)


def _size_of(nbytes: int) -> int:
    """The size of the part that a buffer of so many bytes is: a power of two, or half more."""
    size = _LEAST
    while size < nbytes:
        size *= 2
    below = size // 4 * 3
    return below if below >= nbytes and below % _LEAST == 0 else size


def _keep(buffer: Any) -> None:
    """Keeps an object for ever, at the end of the process as well."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))

"""NVIDIA's CUDA driver, called by ctypes: one device's primary context, streams, copies, modules.

The names and numbers are those of ``cuda.h`` (CUDA Driver API, 12.0 and later).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from partita.tensors.array_state import data_address
from partita_opencl.native_loops import call_all

Array = np.ndarray[Any, Any]

_LIBRARY = "libcuda.so.1"
_UUID_BYTES = 16
_DEVICE_UUID = 0x106A
"""``CL_DEVICE_UUID_KHR``"""

_NON_BLOCKING = 1
"""``CU_STREAM_NON_BLOCKING``"""

_PORTABLE = 1
"""``CU_MEMHOSTALLOC_PORTABLE``: page-locked for the copies of all devices."""

Call = tuple[str, int, int, int, int, int]
"""A function of the driver, and five words."""

Word = ctypes.c_void_p
Address = ctypes.c_uint64
_Size, _Int, _UInt = ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
_Pointer = ctypes.POINTER

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UInt,),
    "cuGetErrorName": (_Int, _Pointer(ctypes.c_char_p)),
    "cuDeviceGetCount": (_Pointer(_Int),),
    "cuDeviceGet": (_Pointer(_Int), _Int),
    "cuDeviceGetUuid_v2": (ctypes.c_char_p, _Int),
    "cuDevicePrimaryCtxRetain": (_Pointer(Word), _Int),
    "cuCtxPushCurrent_v2": (Word,),
    "cuCtxPopCurrent_v2": (_Pointer(Word),),
    "cuStreamCreate": (_Pointer(Word), _UInt),
    "cuStreamSynchronize": (Word,),
    "cuStreamDestroy_v2": (Word,),
    "cuStreamWaitEvent": (Word, Word, _UInt),
    "cuEventCreate": (_Pointer(Word), _UInt),
    "cuEventRecord": (Word, Word),
    "cuEventDestroy_v2": (Word,),
    "cuMemcpyHtoDAsync_v2": (Address, Word, _Size, Word),
    "cuMemcpyDtoHAsync_v2": (Word, Address, _Size, Word),
    "cuMemcpyDtoDAsync_v2": (Address, Address, _Size, Word),
    "cuMemHostAlloc": (_Pointer(Word), _Size, _UInt),
    "cuMemFreeHost": (Word,),
    "cuMemCreate": (_Pointer(Address), _Size, Word, Address),
    "cuMemRelease": (Address,),
    "cuMemAddressReserve": (_Pointer(Address), _Size, _Size, Address, Address),
    "cuMemAddressFree": (Address, _Size),
    "cuMemMap": (Address, _Size, _Size, Address, Address),
    "cuMemUnmap": (Address, _Size),
    "cuMemSetAccess": (Address, _Size, Word, _Size),
    "cuMemExportToShareableHandle": (_Pointer(_Int), Address, _Int, Address),
    "cuMemImportFromShareableHandle": (_Pointer(Address), Word, _Int),
    "cuModuleLoadData": (_Pointer(Word), ctypes.c_char_p),
    "cuModuleUnload": (Word,),
    "cuModuleGetFunction": (_Pointer(Word), Word, ctypes.c_char_p),
    "cuLaunchKernel": (Word, *[_UInt] * 7, Word, Word, Word),
    "cuGraphCreate": (_Pointer(Word), _UInt),
    "cuGraphAddKernelNode_v2": (_Pointer(Word), Word, Word, _Size, Word),
    "cuGraphInstantiateWithFlags": (_Pointer(Word), Word, Address),
    "cuGraphExecKernelNodeSetParams_v2": (Word, Word, Word),
    "cuGraphNodeSetEnabled": (Word, Word, _UInt),
    "cuGraphUpload": (Word, Word),
    "cuGraphLaunch": (Word, Word),
    "cuGraphExecDestroy": (Word,),
    "cuGraphDestroy": (Word,),
}
"""What is called, by name, with the types of its arguments."""


class CudaError(Exception):
    """The CUDA driver refused a call.

    Attributes:
        name: The error's name, e.g. ``"CUDA_ERROR_OUT_OF_MEMORY"``.
    """

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name

    @property
    def is_lack_of_memory(self) -> bool:
        """Whether there was no room."""
        return self.name == "CUDA_ERROR_OUT_OF_MEMORY"


class Cuda:
    """One device of the CUDA driver, by its primary context, which other libraries use as well.

    Args:
        library: The driver.
        number: The device's number there.

    Raises:
        CudaError: The device cannot be opened.

    Attributes:
        number: The device's number.
        context: The context's handle.
    """

    def __init__(self, library: Any, number: int) -> None:
        self._library = library
        self._addresses: dict[str, int] = {}
        self.number = number
        made = Word()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(made), number)
        self.context = made.value or 0

    def call(self, name: str, *args: Any) -> None:
        """Calls a function of the driver.

        Raises:
            CudaError: It returns an error.
        """
        _call(self._library, name, *args)

    def address(self, name: str) -> int:
        """Where a function of the driver is."""
        found = self._addresses.get(name)
        if found is None:
            found = ctypes.cast(getattr(self._library, name), Word).value or 0
            self._addresses[name] = found
        return found

    def error(self, name: str, status: int) -> CudaError:
        """The error that a function returned."""
        return _error(self._library, name, status)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context this thread's while the block runs."""
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(Word()))

    def on_release(self, owner: object, *calls: tuple[Any, ...]) -> None:
        """Calls functions once an object is gone; not at exit, when the driver may be gone too."""
        weakref.finalize(owner, self._let_go, calls).atexit = False

    def _let_go(self, calls: tuple[tuple[Any, ...], ...]) -> None:
        with contextlib.suppress(CudaError), self.current():  # a lost context has let go of all
            for call in calls:
                self.call(*call)

    def page_locked(self, nbytes: int) -> Array:
        """Host memory that copies of any CUDA device need not stage.

        Raises:
            CudaError: There is none.
        """
        address = Word()
        with self.current():
            self.call("cuMemHostAlloc", ctypes.byref(address), max(nbytes, 1), _PORTABLE)
        memory = (ctypes.c_ubyte * nbytes).from_address(address.value or 0)
        self.on_release(memory, ("cuMemFreeHost", address))
        return np.ctypeslib.as_array(memory)


class Batch:
    """Calls of the driver that a native loop makes, with a context current.

    Args:
        cuda: The device.
        calls: Functions in order, each with five words.

    Attributes:
        calls: The same.
    """

    def __init__(self, cuda: Cuda, calls: Sequence[Call]) -> None:
        self.calls = calls
        self._cuda = cuda
        self._gone = Word()  # where the driver says which context it took away
        pop = "cuCtxPopCurrent_v2", ctypes.addressof(self._gone), 0, 0, 0, 0
        every = ("cuCtxPushCurrent_v2", cuda.context, 0, 0, 0, 0), *calls, pop
        self._names = [call[0] for call in every]
        # numpy takes twice as long for such rows.
        self._words = array(
            "Q", [w for name, *given in every for w in (cuda.address(name), *given)]
        )
        self._given = len(every), self._words.buffer_info()[0]

    def perform(self) -> None:
        """Makes the calls up to one that is refused.

        Raises:
            CudaError: The driver refused it.
        """
        done = call_all()(*self._given)
        status, count = done >> 32, done & 0xFFFFFFFF
        if status:
            if 0 < count < len(self._names) - 1:
                self._cuda.call(self._names[-1], ctypes.byref(self._gone))
            raise self._cuda.error(self._names[count], status)


class Stream:
    """Commands in order, which reach the driver together: calls from Python take longer than most.

    Not thread-safe.

    Args:
        cuda: Its device.

    Attributes:
        handle: The driver's.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        made = Word()
        with cuda.current():
            cuda.call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
        self.handle = made.value or 0
        cuda.on_release(self, ("cuStreamDestroy_v2", self.handle))
        self._calls: list[Call] = []
        self._last: Batch | None = None

    def add(self, name: str, a: int, b: int = 0, c: int = 0, d: int = 0) -> None:
        """Calls a function of the driver with up to four words, when it is its turn.

        Args:
            name: The function's name.
            a: Its first argument.
            b: Its second argument, if it has one.
            c: Its third.
            d: Its fourth.
        """
        self._calls.append((name, a, b, c, d, 0))

    def write(self, address: int, array: Array) -> None:
        """Copies an array's bytes to the device. It must stay until :meth:`finish`."""
        self.add("cuMemcpyHtoDAsync_v2", address, data_address(array), array.nbytes, self.handle)

    def read(self, array: Array, address: int) -> None:
        """Copies the device's bytes to an array, which holds them after :meth:`finish`."""
        self.add("cuMemcpyDtoHAsync_v2", data_address(array), address, array.nbytes, self.handle)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies bytes on the device."""
        self.add("cuMemcpyDtoDAsync_v2", target, source, nbytes, self.handle)

    def submit(self) -> Batch | None:
        """Hands all commands to the driver, and waits for nothing; there may be none.

        Returns:
            The commands, which may be performed again.

        Raises:
            CudaError: It refuses one.
        """
        calls, self._calls = self._calls, []
        if not calls:
            return None
        batch = self._last
        if batch is None or batch.calls != calls:
            batch = self._last = Batch(self._cuda, calls)
        batch.perform()
        return batch

    def finish(self) -> Batch | None:
        """Hands all commands to the driver, and waits for their end; see :meth:`submit`.

        Raises:
            CudaError: A command failed.
        """
        self.add("cuStreamSynchronize", self.handle)
        return self.submit()

    def abandon(self) -> None:
        """Forgets what was not handed to the driver, and waits for the end of the rest."""
        self._calls = []
        with contextlib.suppress(CudaError):
            self.finish()


def cuda_of(handle: Any) -> Cuda | None:
    """The CUDA device that an OpenCL device is; ``None`` without CUDA's driver.

    Args:
        handle: A ``pyopencl.Device``.

    Raises:
        CudaError: The driver is there and cannot be used.
    """
    library = _library()
    wanted = _uuid(handle)
    if library is None or wanted is None:
        return None
    count, number = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuInit", 0)
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    for place in range(count.value):
        _call(library, "cuDeviceGet", ctypes.byref(number), place)
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        _call(library, "cuDeviceGetUuid_v2", uuid, number)
        if uuid.raw == wanted:
            return Cuda(library, number.value)
    return None


def _uuid(handle: Any) -> bytes | None:
    """What OpenCL says a device's number of its own in the world is, if it says."""
    import pyopencl as cl

    if "cl_khr_device_uuid" not in handle.extensions.split():
        return None
    ask = getattr(ctypes.CDLL(cl._cl.__file__), "clGetDeviceInfo", None)
    if ask is None:
        return None
    ask.argtypes = [Word, _UInt, _Size, Word, Word]
    uuid = ctypes.create_string_buffer(_UUID_BYTES)
    status = ask(handle.int_ptr, _DEVICE_UUID, _UUID_BYTES, uuid, None)
    return None if status else uuid.raw


@functools.cache
def _library() -> Any:
    """The driver with its functions' types, or ``None`` if it is missing or too old."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        for name, types in FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, ctypes.c_int
    except (OSError, AttributeError):
        return None
    return library


def _call(library: Any, name: str, *args: Any) -> None:
    status = getattr(library, name)(*args)
    if status:
        raise _error(library, name, status)


def _error(library: Any, name: str, status: int) -> CudaError:
    text = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(text))
    return CudaError(name, (text.value or b"error %d" % status).decode())

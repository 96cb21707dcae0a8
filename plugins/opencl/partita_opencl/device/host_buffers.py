"""Buffers over host arrays for the requests of a device that works in host memory."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import numpy as np

from partita.contract.execution import MemoryRange
from partita.lowering.memory_plan import ALIGNMENT
from partita.tensors.tensor import HostTensor, Tensor
from partita_opencl.cuda.cuda_driver import CudaError
from partita_opencl.device.device import Device
from partita_opencl.device.host_memory import buffer_over

Array = np.ndarray[Any, Any]

_log = logging.getLogger(__name__)


def page_locked(device: Device, nbytes: int) -> Array | None:
    """Host memory that copies to and from the device need not stage; ``None`` if there is none.

    It is a buffer that stays mapped until the array is gone. The driver may keep as many bytes of
    the device's memory beside it.
    """
    import pyopencl as cl

    if device.cuda is not None:
        try:
            return device.cuda.cuda.page_locked(nbytes)
        except CudaError as error:
            _log.info("OPENCL.%s has no page-locked memory: %s", device.id, error)
            return None
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
    access: Any = cl.map_flags.READ | cl.map_flags.WRITE
    try:
        buffer = cl.Buffer(device.context, flags, nbytes)
        array: Array = cl.enqueue_map_buffer(
            device.transfers, buffer, access, 0, (nbytes,), np.dtype(np.uint8)
        )[0]
    except cl.Error as error:
        _log.info("OPENCL.%s has no page-locked memory: %s", device.id, error)
        return None
    return array


def copied_array(device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A host array of zeros that takes copies of the device's memory as quickly as can be.

    Args:
        device: The device that will write to it.
        shape: Its shape.
        dtype: Its element type.

    Returns:
        Page-locked memory where the device copies and has some, else numpy's.
    """
    array = np.zeros(shape, dtype)
    memory = None if device.shares_host or not array.nbytes else page_locked(device, array.nbytes)
    if memory is None:
        return array
    memory[:] = 0
    return memory.view(dtype).reshape(shape)


class HostBuffers:
    """The buffers that one request has over host arrays; one per place, made anew when it changes.

    They keep no array of a caller: what a run does not bring is gone as soon as he lets it go.

    Args:
        device: A device that works in host memory.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._made: dict[Any, tuple[weakref.ref[Array], Any]] = {}

    def over(self, place: Any, tensor: Tensor, *, read_only: bool = False) -> Any:
        """A buffer over a host tensor's array; ``None`` if kernels cannot take it as it lies.

        It may be used as long as the tensor is there.
        """
        if not isinstance(tensor, HostTensor):
            return None
        array = tensor.numpy()
        kept = self._made.get(place)
        if kept is not None and kept[0]() is array:
            return kept[1]
        if not 0 < array.nbytes <= self._device.limits.allocation_bytes:
            return None
        if array.ctypes.data % ALIGNMENT or not array.flags.c_contiguous:
            return None
        if not (read_only or array.flags.writeable):
            return None
        made = buffer_over(self._device.context, array, read_only=read_only, keep=False)
        self._made[place] = weakref.ref(array), made
        return made

    def shared(self) -> tuple[MemoryRange, ...]:
        """The host arrays that buffers lie over now."""
        arrays = [kept() for kept, _ in self._made.values()]
        return tuple(
            MemoryRange(array.ctypes.data, array.nbytes) for array in arrays if array is not None
        )

"""Tensors in a device's memory, and the ways between host and device."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InferError
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor, stored_as
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita_opencl.device.device import Device


class OpenClTensor(Tensor):
    """Elements in an OpenCL buffer, in C order from its start.

    Args:
        buffer: The ``pyopencl.Buffer``; kept alive by the tensor.
        shape: Dimensions.
        dtype: Element type.
        owner: The device whose memory it is.
        device: The device's name, e.g. ``"OPENCL.0"``.
        layout: What the buffer holds, if it is something else than C order of ``dtype``.
    """

    __slots__ = (
        *("__weakref__", "_owner", "buffer", "device", "dtype", "layout", "memory", "shape"),
    )

    def __init__(
        self,
        buffer: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: Device,
        device: str,
        layout: MemoryLayout | None = None,
    ) -> None:
        self.buffer = buffer
        self.layout = layout
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.memory = owner.memory
        self._owner = owner

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the elements in host memory."""
        stored = self.stored()
        return stored if self.layout is None else self.layout.plain(stored, self.dtype)

    def stored(self) -> np.ndarray[Any, Any]:
        """A copy of what the buffer holds."""
        layout = self.layout
        if layout is None:
            array = np.empty(self.shape, self.dtype)
        else:
            array = np.empty(layout.shape_in_memory(self.shape), layout.dtype)
        if array.nbytes:
            self._owner.read(array, self.buffer)
        return array

    def copy_to(self, target: Tensor) -> None:
        """Writes the elements to a host tensor; fastest if it lies in page-locked memory."""
        array = target.stored()
        if array.nbytes != self._stored_bytes or target.layout != self.layout:
            super().copy_to(target)  # says what does not fit
        elif array.nbytes:
            self._owner.read(array, self.buffer)

    def copy_from(self, source: Tensor) -> None:
        """Takes the elements of a tensor of the same shape, type and layout, wherever it lies.

        Raises:
            InferError: It has another one.
        """
        if (source.shape, source.dtype, source.layout) != (self.shape, self.dtype, self.layout):
            raise InferError(f"{self!r} cannot take the elements of {source!r}.")
        array = np.ascontiguousarray(source.stored())
        if array.nbytes:
            self._owner.write(self.buffer, array)

    def clear(self) -> None:
        """Makes all elements zero, on the device."""
        import pyopencl as cl

        if self._stored_bytes:
            zero, queue = np.zeros(1, np.uint8), self._owner.transfers
            cl.enqueue_fill_buffer(queue, self.buffer, zero, 0, self._stored_bytes).wait()

    @property
    def _stored_bytes(self) -> int:
        return self.nbytes if self.layout is None else self.layout.nbytes(self.shape)

    def retyped(self, dtype: np.dtype[Any], layout: MemoryLayout | None) -> OpenClTensor:
        """The same buffer under another type."""
        return OpenClTensor(self.buffer, self.shape, dtype, self._owner, self.device, layout)


def device_zeros(
    shape: tuple[int, ...], dtype: np.dtype[Any], device: Device, plugin_name: str
) -> OpenClTensor:
    """A tensor of zeros in the device's memory.

    Raises:
        DeviceMemoryError: The device has no room.
    """
    buffer = device.pool.allocate(math.prod(shape) * dtype.itemsize)
    tensor = OpenClTensor(buffer, shape, dtype, device, f"{plugin_name}.{device.id}")
    tensor.clear()
    return tensor


def in_memory(tensor: Tensor, layout: MemoryLayout | None) -> Tensor:
    """What a tensor that was agreed to come in a layout holds, as a plain tensor; no copy.

    Raises:
        InferError: It comes in another layout.
    """
    if tensor.layout == layout and isinstance(tensor, OpenClTensor):
        return tensor if layout is None else tensor.retyped(layout.dtype, None)
    if layout is None and tensor.layout is None:
        return tensor
    return HostTensor(stored_as(tensor, layout))


def as_agreed(tensor: Tensor, dtype: np.dtype[Any] | None, layout: MemoryLayout | None) -> Tensor:
    """The reverse of :func:`in_memory`."""
    if layout is None or dtype is None:
        return tensor
    if isinstance(tensor, OpenClTensor):
        return tensor.retyped(dtype, layout)
    return LaidOutTensor(tensor.numpy(), dtype, layout)


def upload(tensor: Tensor, device: Device, plugin_name: str) -> Tensor:
    """The tensor in the device's memory; the same one if the device reads it where it lies.

    The memory comes from the device's pool and returns to it with the end of the tensor, so that
    uploading in every run allocates nothing.

    Raises:
        DeviceMemoryError: The device has no room.
    """
    if tensor.memory == device.memory or (device.shares_host and tensor.memory.startswith(HOST)):
        return tensor
    array = np.ascontiguousarray(tensor.stored())
    buffer = device.pool.take(array.nbytes)
    if array.nbytes:
        device.write(buffer, array)
    name = f"{plugin_name}.{device.id}"
    uploaded = OpenClTensor(buffer, tensor.shape, tensor.dtype, device, name, tensor.layout)
    weakref.finalize(uploaded, device.pool.give, buffer).atexit = False
    return uploaded

"""Tensors in a device's memory, and the ways between host and device."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.tensor import HOST, Tensor
from partita_opencl.buffers import raw

if TYPE_CHECKING:
    from partita_opencl.devices import Device


class OpenClTensor(Tensor):
    """Elements in an OpenCL buffer, in C order from its start.

    Args:
        buffer: The ``pyopencl.Buffer``; kept alive by the tensor.
        shape: Dimensions.
        dtype: Element type.
        owner: The device whose memory it is.
        device: The device's name, e.g. ``"OPENCL.0"``.
    """

    __slots__ = ("__weakref__", "_owner", "buffer", "device", "dtype", "memory", "shape")

    def __init__(
        self,
        buffer: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: Device,
        device: str,
    ) -> None:
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.memory = owner.memory
        self._owner = owner

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the elements in host memory."""
        import pyopencl as cl

        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            cl.enqueue_copy(self._owner.transfers, raw(array), self.buffer, is_blocking=True)
        return array


def upload(tensor: Tensor, device: Device, plugin_name: str) -> Tensor:
    """The tensor in the device's memory; the same one if the device reads it where it lies.

    The memory comes from the device's pool and returns to it with the end of the tensor, so that
    uploading in every run allocates nothing.

    Raises:
        DeviceMemoryError: The device has no room.
    """
    import pyopencl as cl

    if tensor.memory == device.memory or (tensor.memory == HOST and device.shares_host):
        return tensor
    array = np.ascontiguousarray(tensor.numpy())
    buffer = device.pool.take(array.nbytes)
    if array.nbytes:
        cl.enqueue_copy(device.transfers, buffer, raw(array), is_blocking=True)
    name = f"{plugin_name}.{device.id}"
    uploaded = OpenClTensor(buffer, tensor.shape, tensor.dtype, device, name)
    weakref.finalize(uploaded, device.pool.give, buffer).atexit = False
    return uploaded

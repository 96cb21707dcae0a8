"""Tensors over memory that another interface allocated, CUDA for one: shared, not copied.

The owner exports its memory as a file descriptor (CUDA: ``cuMemCreate`` with a POSIX handle type,
then ``cuMemExportToShareableHandle``); drivers with ``cl_khr_external_memory_opaque_fd`` make a
buffer over it. The owner's writes must be done before a request reads the tensor, and a request's
before the owner reads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.errors import DeviceError, DeviceMemoryError
from partita_opencl.cuda.cuda_driver import CudaError
from partita_opencl.cuda.shared_memory import EXTENSION, import_buffer, imported_address
from partita_opencl.device.device import find_device
from partita_opencl.device.device_tensor import OpenClTensor


def import_memory(
    descriptor: int, nbytes: int, shape: Sequence[int], dtype: Any, device_id: str = ""
) -> OpenClTensor:
    """A tensor over exported memory, from its start; takes the descriptor over.

    Args:
        descriptor: The file descriptor.
        nbytes: Size of the exported memory, at least that of the tensor.
        shape: Dimensions.
        dtype: Element type.
        device_id: The device, e.g. ``"0"``; the first one if empty.

    Raises:
        DeviceError: The driver cannot import memory, or refuses this one.
        DeviceMemoryError: The tensor is larger than the memory.
    """
    device = find_device(device_id)
    kind = np.dtype(dtype)
    name = f"OPENCL.{device.id}"
    if EXTENSION not in device.handle.extensions.split():
        raise DeviceError(
            f"Device '{name}' cannot import memory: its driver does not list {EXTENSION}. Copy "
            "with core.transfer_to(...) instead."
        )
    if math.prod(shape) * kind.itemsize > nbytes:
        raise DeviceMemoryError(
            f"A tensor of shape {list(shape)} and type {kind} does not fit {nbytes} bytes of "
            "imported memory."
        )
    memory = None
    if device.cuda is not None:
        with contextlib.suppress(CudaError):  # not CUDA's: OpenCL launches what reads it
            memory = imported_address(device.cuda.cuda, descriptor, nbytes)
    buffer, status = import_buffer(device.context, descriptor, nbytes)
    if buffer is None:
        raise DeviceError(f"Device '{name}' refuses to import memory: error {status}.")
    buffer.cuda = memory
    return OpenClTensor(buffer, tuple(shape), kind, device, name)

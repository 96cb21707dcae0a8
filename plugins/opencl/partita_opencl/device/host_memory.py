"""Host memory as device memory: buffers over arrays."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from partita.system.large_pages import aligned_bytes
from partita_opencl.device.buffer_pool import raw

Array = np.ndarray[Any, Any]

_log = logging.getLogger(__name__)


def works_in_host_memory(context: Any, handle: Any, device: str) -> bool:
    """Whether buffers over host arrays are these arrays, without mapping them and back.

    OpenCL promises that only between map and unmap, which cost more than small kernels. Drivers
    for the host's own processor have no other memory to work in; this one is tried, so that one
    that copies all the same is found out.

    Args:
        context: The device's context.
        handle: The ``pyopencl.Device``.
        device: Its name, for messages.
    """
    import pyopencl as cl

    first, second = aligned_bytes(256), aligned_bytes(256)
    try:
        queue = cl.CommandQueue(context, handle)
        source, target = buffer_over(context, first), buffer_over(context, second)
        for value in (1, 2):
            first[:] = value
            second[:] = 0
            cl.enqueue_copy(queue, target, source, byte_count=first.nbytes)
            queue.finish()
            if not (second == value).all():
                return False
    except cl.Error as error:
        _log.info("%s gets copies of host memory: %s", device, error)
        return False
    return True


def buffer_over(context: Any, array: Array, *, read_only: bool = False, keep: bool = True) -> Any:
    """A buffer whose memory is the array's.

    Args:
        context: The device's context.
        array: The array.
        read_only: Whether kernels only read it.
        keep: Whether the buffer keeps the array alive; else no command may be enqueued that uses
            the buffer when the array is gone.
    """
    import pyopencl as cl

    access = cl.mem_flags.READ_ONLY if read_only else cl.mem_flags.READ_WRITE
    memory = raw(array) if keep else np.asarray(_Memory(array.ctypes.data, array.nbytes))
    return cl.Buffer(context, access | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)


class _Memory:
    """Bytes at an address, which somebody else keeps."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, False),
        }

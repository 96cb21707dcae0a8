"""A request's own buffers for inputs and outputs, which all shapes that it sees use in turns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from partita.errors import DeviceMemoryError
from partita.lowering.memory_plan import ALIGNMENT
from partita.system.large_pages import aligned_bytes
from partita.tensors.tensor import HostTensor, Tensor
from partita_opencl.device.device import Device
from partita_opencl.device.host_memory import buffer_over

Array = np.ndarray[Any, Any]


class RequestBuffers:
    """Buffers for what the caller brings or wants in memory that kernels cannot reach.

    There is one per input, and one per output unless an earlier one is read by the run that writes:
    each holds the largest tensor seen so far, so that new shapes take no more memory. What is in
    one of an output is valid until the request's next run.

    Args:
        device: Where they are; over host arrays, if it works in those.

    Attributes:
        replaced: How many buffers were replaced by larger ones, or let go: as long as it is the
            same, so are they.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._inputs: dict[int, Any] = {}
        self._outputs: dict[int, list[Any]] = {}
        self._arrays: dict[Any, Array] = {}
        self.replaced = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        outputs = (buffer for buffers in self._outputs.values() for buffer in buffers)
        return sum(buffer.size for buffer in (*self._inputs.values(), *outputs))

    def input(self, index: int, nbytes: int) -> Any:
        """The buffer that an input is copied to, of at least ``nbytes``.

        Raises:
            DeviceMemoryError: It is larger than the device's largest buffer, or there is no room.
        """
        found = self._inputs.get(index)
        if found is None or found.size < nbytes:
            found = self._inputs[index] = self._in_place_of([found], nbytes)
        return found

    def output(self, index: int, nbytes: int, read: Collection[Any] = ()) -> Any:
        """A buffer for an output, of at least ``nbytes``.

        Args:
            index: The output's.
            nbytes: Of the tensor.
            read: Buffers that the run reads, among which earlier results of this output may be.

        Raises:
            DeviceMemoryError: As in :meth:`input`.
        """
        kept = self._outputs.setdefault(index, [])
        free = [buffer for buffer in kept if buffer not in read]
        fitting = [buffer for buffer in free if buffer.size >= nbytes]
        if fitting:
            return fitting[0]
        kept[:] = [buffer for buffer in kept if buffer in read]
        made = self._in_place_of(free, nbytes)
        kept.append(made)
        return made

    def tensor(self, buffer: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor | None:
        """What one of these buffers holds, in place, where that is host memory; else ``None``."""
        array = self._arrays.get(buffer)
        if array is None:
            return None
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return HostTensor(array[:count].view(dtype).reshape(shape))

    def clear(self) -> None:
        """Lets go of all; results of the last run keep theirs."""
        self._inputs, self._outputs, self._arrays = {}, {}, {}
        self.replaced += 1

    def _in_place_of(self, smaller: Collection[Any], nbytes: int) -> Any:
        """A new buffer for what some that are too small were for."""
        self.replaced += 1
        for buffer in smaller:
            self._arrays.pop(buffer, None)
        largest = max((buffer.size for buffer in smaller if buffer is not None), default=0)
        return grown(self._new, nbytes, largest, self._device.limits.allocation_bytes)

    def _new(self, nbytes: int) -> Any:
        device = self._device
        if not device.shares_host or nbytes > device.limits.allocation_bytes:
            return device.pool.allocate(nbytes)
        array = aligned_bytes(max(nbytes, ALIGNMENT))
        buffer = buffer_over(device.context, array)
        self._arrays[buffer] = array
        return buffer


def grown(make: Callable[[int], Any], nbytes: int, before: int, most: int) -> Any:
    """A buffer that replaces one that is too small: of the double, so that it seldom happens.

    Args:
        make: Makes one of so many bytes, or raises ``DeviceMemoryError``.
        nbytes: How many are needed.
        before: What the smaller one had; 0 without one.
        most: The device's largest buffer.

    Raises:
        DeviceMemoryError: There is no room even for what is needed.
    """
    try:
        return make(max(nbytes, min(2 * before, most)))
    except DeviceMemoryError:
        return make(nbytes)

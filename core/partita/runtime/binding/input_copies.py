"""Copies of inputs, in host memory that is quick to copy to the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.contract.device_model import DeviceModel
from partita.errors import PluginError, raised_as
from partita.runtime.binding.input_conversion import Array
from partita.tensors.tensor import HostTensor, Tensor


class InputCopies:
    """The copy of each input of a request that was copied last, and the memory of the one before.

    Memory is used again because page-locked memory, which devices hand out, takes long to get.

    Args:
        place: The model where the request is.
    """

    def __init__(self, place: DeviceModel) -> None:
        self._place = place
        self._last: dict[int, Array] = {}
        self._spare: dict[int, Array] = {}

    @property
    def are_noted(self) -> bool:
        """Whether the copy of some input is."""
        return bool(self._last)

    def refill(self, index: int, data: Array) -> Array | None:
        """Copies an array over the last copy of an input; ``None`` if it does not fit there."""
        copy = self._last.get(index)
        if copy is None or data.dtype != copy.dtype or data.shape != copy.shape:
            return None
        copy[...] = data
        return copy

    def note(self, index: int, tensor: Tensor, is_copy: bool) -> None:
        """Notes what an input was set to, and whether it is a copy, which may be refilled."""
        before = self._last.pop(index, None)
        if is_copy and isinstance(tensor, HostTensor):
            self._last[index] = tensor.numpy()
            if before is not None and before is not tensor.numpy():
                self._spare[index] = before

    def room(self, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for a copy of an input; the last copy stays as it is."""
        spare = self._spare.pop(index, None)
        if spare is not None and spare.shape == shape and spare.dtype == dtype:
            return spare
        if dtype.hasobject:
            return np.empty(shape, dtype)
        return host_array(self._place, shape, dtype)


def host_array(place: DeviceModel, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A host array of a device's choice, contiguous and writable, with arbitrary content.

    Raises:
        PluginError: The device failed, or gave something else.
        MemoryError: There is no room.
    """
    what = f"Device '{place.device}' failed to answer host_array"
    with raised_as(PluginError, what, MemoryError):
        found = place.host_array(shape, dtype)
    is_array = isinstance(found, np.ndarray) and found.flags.carray
    if not is_array or (found.shape, found.dtype) != (shape, dtype):
        what = f"{found.dtype}{list(found.shape)}" if is_array else repr(type(found))
        raise PluginError(
            f"Device '{place.device}' gave {what} as a host array; expected "
            f"{dtype}{list(shape)}, contiguous and writable. Tell the author of its plugin."
        )
    return found

"""Host memory for results of devices with memory of their own, used again by all shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.contract.device_model import DeviceModel
from partita.runtime.binding.input_conversion import Array
from partita.runtime.binding.input_copies import host_array
from partita.runtime.result_check import Spec, specs_of
from partita.tensors.tensor import HOST, HostTensor, Tensor

_MOST = 256
"""Sets of input shapes of which the results' shapes are known; the oldest go first."""


class ResultArrays:
    """Where a device is asked to bring results that it would leave in its own memory.

    A device that is given host memory copies results there with its kernels' other commands; asked
    for them afterwards, it needs a command of its own, a wait of its own and new memory each time.
    Which results those are, and their shapes, is known of inputs whose shapes have been seen. Where
    an input is in a device's memory, results may be meant to stay there, too: they do.

    Args:
        place: The model where the request is.
    """

    def __init__(self, place: DeviceModel) -> None:
        self._place = place
        self._seen: dict[tuple[Spec, ...], dict[int, Spec]] = {}
        self._memory: dict[int, Array] = {}

    def note(
        self, inputs: Sequence[Tensor], results: Sequence[Tensor], wanted: Sequence[int]
    ) -> None:
        """Notes which of some results of a run on these inputs are not in host memory."""
        elsewhere = {
            index: (results[index].shape, results[index].dtype)
            for index in wanted
            if results[index].memory != HOST and results[index].nbytes
        }
        if elsewhere and _on_host(inputs):
            self._seen[specs_of(inputs)] = elsewhere
            if len(self._seen) > _MOST:
                del self._seen[next(iter(self._seen))]

    def targets(
        self,
        inputs: Sequence[Tensor],
        given: list[Tensor | None] | None,
        count: int,
        can_write: Callable[[int, Array, Sequence[Tensor]], bool],
    ) -> list[Tensor | None] | None:
        """The targets of a run, with host memory for results that are known not to be there.

        Args:
            inputs: What the run reads.
            given: By output the target that it has already; ``None`` if none has.
            count: How many outputs there are.
            can_write: Whether a run on some inputs can write an output to an array.
        """
        if not self._seen or not _on_host(inputs):
            return given
        for index, (shape, dtype) in self._seen.get(specs_of(inputs), {}).items():
            if given is not None and given[index] is not None:
                continue
            array = self._array(index, shape, dtype)
            if can_write(index, array, inputs):
                given = [None] * count if given is None else given
                given[index] = HostTensor(array)
        return given

    def _array(self, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The memory for an output, of all its shapes; page-locked memory takes long to get."""
        nbytes = math.prod(shape) * dtype.itemsize
        memory = self._memory.get(index)
        if memory is None or memory.size < nbytes:
            grown = nbytes if memory is None else max(nbytes, 2 * memory.size)
            memory = host_array(self._place, (grown,), np.dtype(np.uint8))
            self._memory[index] = memory
        return memory[:nbytes].view(dtype).reshape(shape)


def _on_host(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.memory == HOST for tensor in tensors)

"""Feedback from an output of one run to an input of the next, with double buffering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.model.model import Port
from partita.tensors.tensor import HOST, HostTensor, Tensor

_ALIGNMENT = 64
"""Bytes; each state begins a cache line of its own."""


class FeedbackBuffers:
    """Two buffers for each output that is fed back: one is read while the other is written.

    The first time that an application feeds an output back, its elements are copied, because the
    runner would overwrite them. From then on the runner writes to one of two buffers and reads the
    other. This needs the shape before the run: from the port, or from the sizes of symbols in the
    inputs' shapes.

    Args:
        inputs: The input ports.
        outputs: The output ports.
    """

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self._outputs = outputs
        self._symbols = [
            (dim, index, axis)
            for index, port in enumerate(inputs)
            for axis, dim in enumerate(port.shape or ())
            if isinstance(dim, str)
        ]
        self._buffers: dict[int, list[HostTensor]] = {}

    def add(self, output: int) -> None:
        """Uses buffers for this output from the next run on."""
        port = self._outputs[output]
        if port.dtype is not None and not port.dtype.hasobject and port.shape is not None:
            self._buffers.setdefault(output, [])

    def owns(self, memory: Any) -> bool:
        """Whether an array is one of the buffers."""
        return any(buffer.numpy() is memory for both in self._buffers.values() for buffer in both)

    def targets(
        self, tensors: Sequence[Tensor], given: Sequence[Tensor | None] | None
    ) -> Sequence[Tensor | None] | None:
        """The tensors for the runner to write.

        Args:
            tensors: The inputs of the next run.
            given: The tensors that the application has set, which take precedence.
        """
        if not self._buffers:
            return given
        read = [owner_of(tensor.numpy()) for tensor in tensors if tensor.memory == HOST]
        targets: list[Tensor | None] = list(given or [None] * len(self._outputs))
        for output in self._buffers:
            shape = self._shape(output, tensors)
            if targets[output] is None and shape is not None:
                targets[output] = self._free(output, shape, read)
        return targets

    def _free(self, output: int, shape: tuple[int, ...], read: Sequence[Any]) -> HostTensor:
        """A buffer that no input uses."""
        buffers = [buffer for buffer in self._buffers[output] if buffer.shape == shape]
        for buffer in buffers:
            if not any(buffer.numpy() is memory for memory in read):
                return buffer
        fresh = HostTensor(np.empty(shape, self._outputs[output].dtype))
        self._buffers[output] = [*buffers[-1:], fresh]
        return fresh

    def _shape(self, output: int, tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
        """The shape that an output will have, or ``None`` if it is not known before the run."""
        sizes: dict[str, int] = {}
        for symbol, index, axis in self._symbols:
            size = tensors[index].shape[axis]
            if sizes.setdefault(symbol, size) != size:
                return None
        dims = self._outputs[output].shape or ()
        known = [sizes.get(dim) if isinstance(dim, str) else dim for dim in dims]
        return None if None in known else tuple(known)  # type: ignore[arg-type]  # none is None


class BoundFeedback:
    """State that bound calls feed back: one block that they write, and one that they read.

    Args:
        states: By input the present state, in host memory.
        flags: Inputs that are true while the state is fed back.

    Attributes:
        written: By input the tensor that bound calls write for the next one; and the flags.
        read: By input the tensor that bound calls read.
    """

    def __init__(self, states: Mapping[int, Tensor], flags: Iterable[int]) -> None:
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in states.values()]
        self._written, self._read = (np.zeros(sum(sizes), np.uint8) for _ in range(2))
        self.written: dict[int, Tensor] = {flag: HostTensor(np.array(True)) for flag in flags}
        self.read: dict[int, HostTensor] = {}
        place = 0
        for (index, tensor), size in zip(states.items(), sizes, strict=True):
            both = (
                memory[place : place + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
                for memory in (self._written, self._read)
            )
            self.written[index], self.read[index] = map(HostTensor, both)
            self.written[index].copy_from(tensor)
            place += size

    def advance(self) -> None:
        """Copies what the last call wrote to where the next one reads it."""
        self._read[:] = self._written


def owner_of(array: np.ndarray[Any, Any]) -> Any:
    """The object that owns an array's memory: itself unless it is a view."""
    return array if array.base is None else array.base

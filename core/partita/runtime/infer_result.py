"""What a request returns: its outputs as arrays, by port, index or name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partita.model.model import Port
from partita.runtime.binding.input_conversion import Array
from partita.tensors.tensor import HOST, Tensor


class InferResult(Mapping[Port, Array]):
    """The outputs of one request, as arrays; found by port, index or name.

    Iterating yields ports, as OpenVINO's result does. State that a request hands on itself is
    copied from where it lies when it is asked for: as later runs have left it.

    Args:
        ports: The outputs.
        elements: For each its array, or for state its tensor.
    """

    __slots__ = ("_elements", "_ports")

    def __init__(self, ports: tuple[Port, ...], elements: Sequence[Array | Tensor]) -> None:
        self._ports = ports
        self._elements = elements

    def __getitem__(self, key: Port | int | str) -> Array:
        if isinstance(key, (int, np.integer)):
            if not -len(self._elements) <= key < len(self._elements):
                count = len(self._elements)
                raise KeyError(f"no output {key}; there are {count}, from 0 to {count - 1}")
            return _array(self._elements[key])
        name = key.name if isinstance(key, Port) else key
        for port, element in zip(self._ports, self._elements, strict=True):
            if port.name == name or name in port.aliases:
                return _array(element)
        raise KeyError(f"no output {key!r}; there are {', '.join(map(repr, self.names()))}")

    def __iter__(self) -> Iterator[Port]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)

    def to_dict(self) -> dict[str, Array]:
        """Output name to array."""
        return dict(zip(self.names(), self.to_tuple(), strict=True))

    def to_tuple(self) -> tuple[Array, ...]:
        """The arrays in order."""
        return tuple(map(_array, self._elements))

    def encoded(self) -> InferResult:
        """The same with texts as UTF-8, in arrays of numpy's type for bytes."""
        return InferResult(self._ports, [_encoded(_array(element)) for element in self._elements])

    def names(self) -> tuple[str, ...]:
        """The outputs' names in order."""
        return tuple(port.name for port in self._ports)

    def __repr__(self) -> str:
        named = zip(self.names(), self._elements, strict=True)
        parts = (f"{name}: {a.dtype}{list(a.shape)}" for name, a in named)
        return f"<InferResult {', '.join(parts)}>"


def _encoded(array: Array) -> Array:
    """Texts as UTF-8; all else as it is."""
    return np.char.encode(array.astype(np.str_), "utf-8") if array.dtype.hasobject else array


def _array(element: Array | Tensor) -> Array:
    """An array as it is, or a copy of a tensor's elements."""
    if not isinstance(element, Tensor):
        return element
    array = element.numpy()
    return array.copy() if element.memory == HOST else array

"""What a request returns: its outputs as arrays, by port, index or name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partita.model.model import Port
from partita.runtime.input_conversion import Array


class InferResult(Mapping[Port, Array]):
    """The outputs of one request, as arrays; found by port, index or name.

    Iterating yields ports, as OpenVINO's result does.
    """

    __slots__ = ("_arrays", "_ports")

    def __init__(self, ports: tuple[Port, ...], arrays: Sequence[Array]) -> None:
        self._ports = ports
        self._arrays = arrays

    def __getitem__(self, key: Port | int | str) -> Array:
        if isinstance(key, (int, np.integer)):
            return self._arrays[key]
        name = key.name if isinstance(key, Port) else key
        for port, array in zip(self._ports, self._arrays, strict=True):
            if port.name == name:
                return array
        raise KeyError(f"no output {key!r}; there are {', '.join(map(repr, self.names()))}")

    def __iter__(self) -> Iterator[Port]:
        return iter(self._ports)

    def __len__(self) -> int:
        return len(self._ports)

    def to_dict(self) -> dict[str, Array]:
        """Output name to array."""
        return dict(zip(self.names(), self._arrays, strict=True))

    def to_tuple(self) -> tuple[Array, ...]:
        """The arrays in order."""
        return tuple(self._arrays)

    def names(self) -> tuple[str, ...]:
        """The outputs' names in order."""
        return tuple(port.name for port in self._ports)

    def __repr__(self) -> str:
        parts = (f"{name}: {a.dtype}{list(a.shape)}" for name, a in self.to_dict().items())
        return f"<InferResult {', '.join(parts)}>"

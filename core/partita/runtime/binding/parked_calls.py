"""Bound calls kept for input shapes that come again, such as prompts and tokens in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from partita.tensors.tensor import Tensor

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall

_MOST = 4
"""Sets of shapes whose calls are kept; those parked longest go first."""


class BoundCalls(NamedTuple):
    """Calls with everything bound, and how the next inputs come to them.

    Attributes:
        call: The calls.
        reads: What they read, by input.
        setters: By input what lets them read another array.
        written: Who owns the memory that they write, by id.
        results: What they leave behind.
        version: That of the state which they are bound to.
    """

    call: BoundCall
    reads: Sequence[Tensor]
    setters: Sequence[Callable[[Any], bool]]
    written: Mapping[int, object]
    results: Sequence[Tensor]
    version: int


class ParkedCalls:
    """The bound calls of one request for shapes that it has left, by these shapes."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], BoundCalls] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def park(self, calls: BoundCalls, given: Sequence[int]) -> None:
        """Keeps calls.

        Args:
            calls: The calls.
            given: The inputs whose shapes tell when they fit.
        """
        self._calls[_key(calls.reads, given)] = calls
        while len(self._calls) > _MOST:
            del self._calls[next(iter(self._calls))]

    def fetch(self, tensors: Sequence[Tensor | None], given: Sequence[int]) -> BoundCalls | None:
        """Calls for inputs of these shapes, if there are any; they are parked no more."""
        return self._calls.pop(_key(tensors, given), None)

    def clear(self) -> None:
        """Drops all."""
        self._calls.clear()


def _key(tensors: Sequence[Tensor | None], given: Sequence[int]) -> tuple[Any, ...]:
    """Shapes and types of inputs."""
    found = (tensors[index] for index in given)
    return tuple(None if one is None else (one.shape, one.dtype) for one in found)

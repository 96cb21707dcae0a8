"""An LRU cache that is bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


_COUNTED_FOR = 2
"""All values are counted again when one in so many is new: to count them takes as long as many."""


class RecentlyUsed(Generic[K, V]):
    """Values by key, of at most so many bytes together; the one added last always stays.

    Not thread-safe.

    Args:
        most_bytes: The bound.
        size_of: What keeping a value costs, in bytes. Asked again and again: values may grow.
    """

    def __init__(self, most_bytes: int, size_of: Callable[[V], int]) -> None:
        self.most_bytes = most_bytes
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        self._bytes = 0  # of all values, but for what they have grown by since they were counted
        self._added = 0  # since then

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._values))

    def values(self) -> list[V]:
        """All values, the one used last at the end."""
        return list(self._values.values())

    @property
    def nbytes(self) -> int:
        """What all values take now."""
        return sum(map(self._size_of, self._values.values()))

    def get(self, key: K) -> V | None:
        """The value, which is the one used last from now on; ``None`` if there is none."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def add(self, key: K, value: V) -> None:
        """Adds a value, and forgets those used least recently until all have room."""
        self.discard(key)
        self._values[key] = value
        self._bytes += self._size_of(value)
        self._added += 1
        if self._added * _COUNTED_FOR >= len(self._values):
            self._bytes, self._added = self.nbytes, 0
        while self._bytes > self.most_bytes and len(self._values) > 1:
            _, forgotten = self._values.popitem(last=False)
            self._bytes -= self._size_of(forgotten)

    def discard(self, key: K) -> None:
        """Forgets a value, if it is there."""
        value = self._values.pop(key, None)
        if value is not None:
            self._bytes -= self._size_of(value)

    def clear(self) -> None:
        """Forgets all."""
        self._values.clear()
        self._bytes = self._added = 0

"""Parts of a recorded program that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from partita.lowering.program import Operand
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

T = TypeVar("T")


class Later(Sequence[T]):
    """The steps of a program, or its inputs, each made once, when somebody asks for it.

    What machine code runs needs none of them: to make them takes a quarter of what a new size
    takes. Calls of Python need theirs.

    Args:
        count: How many there are.
        make: Makes that of a number.
        lock: Held meanwhile: what a program is made of is there once.
    """

    def __init__(self, count: int, make: Callable[[int], T], lock: InterruptSafeLock) -> None:
        self._make = make
        self._lock = lock
        self._made: list[T | None] = [None] * count

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._one(number) for number in range(*index.indices(len(self)))]
        return self._one(range(len(self))[index])

    def _one(self, number: int) -> T:
        with self._lock:
            found = self._made[number]
            if found is None:
                found = self._made[number] = self._make(number)
            return found


class LaterOffsets(Mapping[Operand, int]):
    """Where operands lie in the arena of a program; made once, when somebody asks.

    Args:
        make: Makes them all.
        lock: As of :class:`Later`.
    """

    def __init__(self, make: Callable[[], dict[Operand, int]], lock: InterruptSafeLock) -> None:
        self._make = make
        self._lock = lock
        self._offsets: dict[Operand, int] | None = None

    def __len__(self) -> int:
        return len(self._made())

    def __getitem__(self, operand: Operand) -> int:
        return self._made()[operand]

    def __contains__(self, operand: object) -> bool:
        return operand in self._made()

    def __iter__(self) -> Iterator[Operand]:
        return iter(self._made())

    def _made(self) -> dict[Operand, int]:
        with self._lock:
            if self._offsets is None:
                self._offsets = self._make()
            return self._offsets

"""Parts of a recorded program that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partita.lowering.program import Operand, Step
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock


class LaterSteps(Sequence[Step]):
    """The steps of a program, each made once, when somebody asks for it.

    Args:
        count: How many there are.
        make: Makes that of a number.
        lock: Held meanwhile: what a program is made of is there once.
    """

    def __init__(self, count: int, make: Callable[[int], Step], lock: InterruptSafeLock) -> None:
        self._make = make
        self._lock = lock
        self._made: list[Step | None] = [None] * count

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._one(number) for number in range(*index.indices(len(self)))]
        return self._one(range(len(self))[index])

    def _one(self, number: int) -> Step:
        with self._lock:
            found = self._made[number]
            if found is None:
                found = self._made[number] = self._make(number)
            return found


class LaterOffsets(Mapping[Operand, int]):
    """Where operands lie in the arena of a program; made once, when somebody asks.

    Args:
        make: Makes them all.
        lock: As of :class:`LaterSteps`.
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

"""Steps and offsets of a recorded program, which are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partita.lowering.program import Operand, Step
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock


class LaterSteps(Sequence[Step]):
    """The steps of a program, each made once, when somebody asks for it.

    What machine code runs needs none of them: to make them takes a quarter of what a new size
    takes. Calls of Python need theirs.

    Args:
        count: How many there are.
        make: Makes the step of a number.
    """

    def __init__(self, count: int, make: Callable[[int], Step]) -> None:
        self._make = make
        self._lock = InterruptSafeLock()
        self._steps: list[Step | None] = [None] * count

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._step(number) for number in range(*index.indices(len(self)))]
        return self._step(range(len(self))[index])

    def _step(self, number: int) -> Step:
        with self._lock:
            found = self._steps[number]
            if found is None:
                found = self._steps[number] = self._make(number)
            return found


class LaterOffsets(Mapping[Operand, int]):
    """Where operands lie in the arena of a program; made once, when somebody asks.

    Args:
        make: Makes them all.
    """

    def __init__(self, make: Callable[[], dict[Operand, int]]) -> None:
        self._make = make
        self._lock = InterruptSafeLock()
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

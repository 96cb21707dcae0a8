"""Steps and offsets of a recorded program, which are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partita.lowering.program import Operand, Step
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

Calls = tuple[list[Step], dict[Operand, int]]
"""The steps of a program, and where its operands lie in the arena."""


class Later:
    """Steps and offsets of one program, made once, when somebody asks for them.

    What machine code runs needs neither: to make them takes a quarter of what a new size takes.

    Args:
        make: Makes them.
    """

    def __init__(self, make: Callable[[], Calls]) -> None:
        self._make = make
        self._lock = InterruptSafeLock()
        self._calls: Calls | None = None

    @property
    def calls(self) -> Calls:
        """Both."""
        with self._lock:
            if self._calls is None:
                self._calls = self._make()
            return self._calls


class LaterSteps(Sequence[Step]):
    """The steps of a program.

    Args:
        count: How many there are.
        later: Makes them.
    """

    def __init__(self, count: int, later: Later) -> None:
        self._count, self._later = count, later

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._later.calls[0][index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._later.calls[0])


class LaterOffsets(Mapping[Operand, int]):
    """Where operands lie in the arena of a program.

    Args:
        later: Makes them.
    """

    def __init__(self, later: Later) -> None:
        self._later = later

    def __len__(self) -> int:
        return len(self._later.calls[1])

    def __getitem__(self, operand: Operand) -> int:
        return self._later.calls[1][operand]

    def __iter__(self) -> Iterator[Operand]:
        return iter(self._later.calls[1])

"""Local names of a function while it is translated: where their values are, and of what kind.

A name can stand for values of several kinds, one after another. Where ways through the function
meet on which it is of different kinds, it must be set again before it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita_cpu.jit.translation.kinds import UntranslatableError
from partita_cpu.jit.translation.values import Value, part_types


class Slot:
    """Room for a value of one kind, on the stack of the function.

    Args:
        builder: LLVM's builder; the room is made where the function begins.
        kind: The kind.
    """

    def __init__(self, builder: Any, kind: Any) -> None:
        self.kind = kind
        self.reads = 0
        with builder.goto_entry_block():
            self._places = [builder.alloca(part) for part in part_types(kind)]

    def load(self, builder: Any) -> Value:
        """The value that was last stored."""
        self.reads += 1
        return Value(self.kind, tuple(builder.load(place) for place in self._places))

    def store(self, builder: Any, value: Value) -> None:
        """Keeps a value of this kind."""
        for part, place in zip(value.parts, self._places, strict=True):
            builder.store(part, place)


Names = dict[str, Slot | None]
"""Slots by name; ``None`` where the kind depends on the way that was taken."""


class Locals:
    """The names that are set at the place where the builder is.

    Attributes:
        current: Their slots.
    """

    def __init__(self) -> None:
        self.current: Names = {}
        self._made: dict[str, list[Slot]] = {}

    def read(self, builder: Any, name: str) -> Value:
        """The value of a name.

        Raises:
            UntranslatableError: It was not set, or its kind is not known here.
        """
        slot = self.current.get(name)
        if slot is None:
            raise UntranslatableError(f"name '{name}' where its kind is not known")
        return slot.load(builder)

    def set(self, builder: Any, name: str, value: Value) -> None:
        """Lets a name stand for a value."""
        made = self._made.setdefault(name, [])
        slot = next((known for known in made if known.kind == value.kind), None)
        if slot is None:
            slot = Slot(builder, value.kind)
            made.append(slot)
        slot.store(builder, value)
        self.current[name] = slot

    def meet(self, ways: Sequence[Names]) -> None:
        """Goes on where several ways meet."""
        met: Names = {}
        for names in ways:
            for name, slot in names.items():
                met[name] = slot if met.get(name, slot) is slot else None
        self.current = met

    def loop(self, ways: Sequence[Names], before: Names, reads: dict[str, int]) -> None:
        """Checks that a loop does not read from its last turn what it has read as another kind.

        Args:
            ways: The names at all ends of a turn.
            before: The names before the first turn.
            reads: What :meth:`counted` gave then.

        Raises:
            UntranslatableError: It does.
        """
        now = self.counted(before)
        for name, slot in before.items():
            changed = any(names.get(name, slot) is not slot for names in ways)
            if changed and now[name] != reads[name]:
                raise UntranslatableError(f"name '{name}' of several kinds in a loop")

    @staticmethod
    def counted(names: Names) -> dict[str, int]:
        """How often each slot was read so far."""
        return {name: 0 if slot is None else slot.reads for name, slot in names.items()}

"""Calls of intrinsics, which write LLVM's code themselves; see `partita_cpu.jit.deferred_numba`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita_cpu.jit.deferred_numba import Intrinsic
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.kinds import Float, Integer, Number, Tuple, UntranslatableError
from partita_cpu.jit.translation.values import (
    Value,
    cast,
    items_of,
    part_types,
    register_type,
)


class _Context:
    """What intrinsics ask numba's target for, of which they know no more than this."""

    def get_value_type(self, kind: Any) -> Any:
        """LLVM's type of a number."""
        return register_type(kind)

    def get_dummy_value(self) -> Any:
        """What stands for no result."""
        return None

    def array_at(self, builder: Any, array: Any, address: Any, count: Any) -> tuple[Any, ...]:
        """An array of one axis over memory."""
        (pointer, _) = part_types(array)
        return builder.inttoptr(address, pointer), count

    def __getattr__(self, name: str) -> Any:
        raise UntranslatableError(f"an intrinsic that asks numba for '{name}'")


_CONTEXT = _Context()


def call_intrinsic(builder: Any, intrinsic: Intrinsic, given: Sequence[Value]) -> Value:
    """The result of an intrinsic.

    Raises:
        UntranslatableError: It is for numba alone, or does not take these arguments.
    """
    signature, generate = intrinsic.make(None, *(value.kind for value in given))
    if len(signature.args) != len(given):
        raise UntranslatableError(f"{len(given)} arguments of {intrinsic!r}")
    taken = [_as_taken(builder, *pair) for pair in zip(given, signature.args, strict=True)]
    made = generate(_CONTEXT, builder, signature, [_passed(value) for value in taken])
    kind = signature.return_type
    if kind == kinds.void:
        return Value(kind)
    if isinstance(kind, kinds.Array):
        return Value(kind, made)
    return Value(kind, (made,))


def _as_taken(builder: Any, value: Value, kind: Any) -> Value:
    """An argument as an intrinsic takes it; no number may lose what lies behind the point."""
    if isinstance(kind, Tuple):
        items = items_of(value)
        if len(items) != len(kind.items):
            raise UntranslatableError(f"a tuple of {len(items)} for one of {len(kind.items)}")
        both = zip(items, kind.items, strict=True)
        made = [_as_taken(builder, item, wanted) for item, wanted in both]
        return Value(kind, tuple(part for item in made for part in item.parts))
    if isinstance(value.kind, Float) and isinstance(kind, Integer):
        raise UntranslatableError(f"{value.kind} for {kind}")
    return cast(builder, value, kind)


def _passed(value: Value) -> Any:
    """LLVM's value of a number; of anything else its parts."""
    return value.number if isinstance(value.kind, Number) else [*value.parts]

"""Records as arguments of kernels: named tuples, passed field by field.

Steps, trampolines and images on disk know flat lists of arrays and numbers only. A kernel's
annotations say which of its parameters are records, and so which fields belong together:

    class Bounds(NamedTuple):
        low: float
        high: float

    @jit
    def clip(x: Array, y: Array, bounds: Bounds, tid: int, nt: int) -> None: ...

    b.call(clip, x, y, Bounds(0.0, 6.0))    # the step holds x, y, 0.0, 6.0

numba passes a named tuple as its fields one by one too, so both have the same machine code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from partita.lowering.program import is_record

KernelArray = Any
"""Type of a record's field: an array in a kernel, and in a step the operand that stands for it."""


@functools.cache
def records_of(function: Callable[..., Any]) -> tuple[type | None, ...]:
    """For each parameter of a Python function its record type, or ``None``.

    Annotations are looked up by name in the function's module: modules of kernels import records
    at run time, since kernels make some of them.
    """
    code, annotations = function.__code__, function.__annotations__
    names = (annotations.get(name) for name in code.co_varnames[: code.co_argcount])
    return tuple(_record(function.__globals__.get(str(name))) for name in names)


def _record(annotation: Any) -> type | None:
    known = isinstance(annotation, type) and is_record(annotation)
    return annotation if known else None


def field_records(record: type) -> tuple[type | None, ...]:
    """For each field of a record type its own record type, or ``None``."""
    module = inspect.getmodule(record)
    hints = (record.__annotations__[name] for name in record._fields)  # type: ignore[attr-defined]
    names = (getattr(hint, "__forward_arg__", hint) for hint in hints)
    return tuple(_record(getattr(module, str(name), None)) for name in names)


def grouped(
    function: Callable[..., Any], flat: Sequence[Any], make: Callable[[Any, list[Any]], Any]
) -> tuple[Any, ...]:
    """A flat list of arguments (or their types) as a function takes them.

    Args:
        function: The Python function.
        flat: One for each field of a record, and for each other parameter.
        make: Makes a record of a type and its fields.
    """
    if not any(records_of(function)):
        return tuple(flat)
    rest = iter(flat)
    return tuple(_taken(record, rest, make) for record in records_of(function))


def _taken(record: type | None, rest: Iterator[Any], make: Callable[[Any, list[Any]], Any]) -> Any:
    if record is None:
        return next(rest)
    return make(record, [_taken(inner, rest, make) for inner in field_records(record)])


def described(function: Callable[..., Any]) -> str:
    """The fields of all records that a function takes: what its machine code depends on."""
    return " ".join(map(_described, filter(None, records_of(function))))


def _described(record: type) -> str:
    inner = zip(record._fields, field_records(record), strict=True)  # type: ignore[attr-defined]
    fields = (f"{name} {_described(kind) if kind else ''}" for name, kind in inner)
    return f"{record.__qualname__}({', '.join(fields)})"

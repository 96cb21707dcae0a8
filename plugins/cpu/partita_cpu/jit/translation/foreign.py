"""Numba's convention of calls, which images on disk and trampolines rely on.

A function takes the address of its result, that of an exception, and its arguments, an array as a
row of numbers: memory, parent, size, item size, address, sizes, steps. It returns 0 if all is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from partita_cpu.jit.deferred_numba import ir
from partita_cpu.jit.kernel_definition import KernelDefinition
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.kinds import Array, Kind, Tuple, of_argument
from partita_cpu.jit.translation.values import (
    Value,
    cast,
    element_bytes,
    items_of,
    memory_type,
    part_types,
    word,
)


def pointer() -> Any:
    """LLVM's type of an address of anything."""
    return ir.IntType(8).as_pointer()


def entry_type(given: Sequence[Any], answers: bool) -> Any:
    """LLVM's type of a function that is called so.

    Args:
        given: Kinds of its arguments.
        answers: Whether it returns an int64.
    """
    result = ir.IntType(64).as_pointer() if answers else pointer()
    passed = [part for kind in given for part in _passed_types(kind)]
    return ir.FunctionType(ir.IntType(32), [result, pointer().as_pointer(), *passed])


def received(given: Sequence[Any], passed: Sequence[Any]) -> Iterator[Value]:
    """The arguments of such a function as values."""
    start = 0
    for kind in given:
        if isinstance(kind, Array):
            address = passed[start + 4]
            sizes = passed[start + 5 : start + 5 + kind.ndim]
            yield Value(kind, (address, *sizes))
            start += 5 + 2 * kind.ndim
        else:
            yield Value(kind, (passed[start],))
            start += 1


def call_apart(builder: Any, kernel: KernelDefinition, given: Sequence[Value]) -> Value:
    """The result of a kernel that is compiled apart, whose address is put in when code is loaded.

    Such kernels raise no errors.
    """
    flat = [item for value in given for item in _flattened(value)]
    wanted = [of_argument(kind) for kind in kernel.apart]
    if len(flat) != len(wanted):
        raise kinds.UntranslatableError(f"the arguments of kernel {kernel.symbol}")
    passed: list[Any] = []
    for value, kind in zip(flat, wanted, strict=True):
        passed += _passed(builder, cast(builder, value, kind))
    module = builder.module
    function = module.globals.get(kernel.symbol)
    if function is None:
        function = ir.Function(module, entry_type(wanted, kernel.answers), kernel.symbol)
    with builder.goto_entry_block():
        error = builder.alloca(pointer())
        result = builder.alloca(ir.IntType(64))
    # What numba compiles writes a result even if that is None.
    place = result if kernel.answers else builder.bitcast(result, pointer())
    builder.call(function, [place, error, *passed])
    return Value(kinds.int64, (builder.load(result),)) if kernel.answers else Value(kinds.void)


def _flattened(value: Value) -> list[Value]:
    if not isinstance(value.kind, Tuple):
        return [value]
    return [inner for item in items_of(value) for inner in _flattened(item)]


def _passed_types(kind: Kind) -> list[Any]:
    if isinstance(kind, Array):
        whole, address = ir.IntType(64), memory_type(kind.dtype).as_pointer()
        return [pointer(), pointer(), whole, whole, address, *[whole] * (2 * kind.ndim)]
    return part_types(kind)


def _passed(builder: Any, value: Value) -> list[Any]:
    kind = value.kind
    if not isinstance(kind, Array):
        return [*value.parts]
    address, *sizes = value.parts
    steps = [word(element_bytes(kind.dtype))]
    for size in reversed(sizes[1:]):
        steps.insert(0, builder.mul(steps[0], size))
    count = sizes[0] if sizes else word(1)
    for size in sizes[1:]:
        count = builder.mul(count, size)
    nobody = ir.Constant(pointer(), None)
    return [nobody, nobody, count, word(element_bytes(kind.dtype)), address, *sizes, *steps]

"""Trampolines: a uniform calling convention for all numba kernels, from slots, share and shares.

A compiled numba function takes each array as seven words or more. A trampoline reads them from a
list of eight-byte slots and calls the function, whose address is in the first slot; see
`runtime.call_layout`. It depends on the kinds of the arguments only, so few are needed.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import evaluated, integer
from partita_cpu.jit.llvm_kernel import function_address, function_image
from partita_cpu.llvm.function import Function

RETURNED = (0, -2)
"""What a compiled function returns if all is well: something, or nothing."""


@dataclass(frozen=True)
class Entry:
    """A compiled kernel for certain kinds of arguments.

    Attributes:
        trampoline: Address of its trampoline: ``int32 (slots, tid, nt)``.
        function: Its own address.
        kinds: Kinds of its arguments; see `partita_cpu.jit.dispatch`.
    """

    trampoline: int
    function: int
    kinds: tuple[str, ...]

    @functools.cached_property
    def slots(self) -> int:
        """How many slots a call takes."""
        return 1 + len(_flat(self.kinds))


def fill(slots: Array, entry: Entry, args: Sequence[Any]) -> None:
    """Writes a call's arguments, arrays and numbers, into its slots.

    Args:
        slots: int64, one for each word of the call; overwritten.
        entry: How the kernel is called.
        args: In the kernel's order; arrays must outlive the call.
    """
    values: list[int] = []
    for arg, slot in zip(args, append_call(values, entry, args), strict=True):
        if slot:
            values[slot] = arg.ctypes.data
    slots[:] = values


def append_call(values: list[Any], entry: Entry, args: Sequence[Any]) -> list[int]:
    """Adds what a call's slots hold, but for addresses.

    Args:
        values: Where to. Sizes stay what they are.
        entry: The kernel.
        args: Arrays, or operands like them, and numbers.

    Returns:
        For each argument the place of its address (of arrays), or 0.
    """
    values.append(entry.function)
    places: list[int] = []
    for arg, kind in zip(args, entry.kinds, strict=True):
        if kind == "int":
            places.append(0)
            values.append(integer(arg))
        elif kind == "float":
            places.append(0)
            values.append(evaluated(_bits, arg))
        elif kind == "single":
            places.append(0)
            values.append(evaluated(_bits_of_single, arg))
        else:
            places.append(len(values) + 4)
            itemsize, shape = arg.dtype.itemsize, arg.shape
            if len(shape) == 1:
                values += (0, 0, shape[0], itemsize, 0, shape[0], itemsize)
            else:
                values += (0, 0, arg.size, itemsize, 0, *shape, *_strides(shape, itemsize))
    return places


def _bits(number: float) -> int:
    """The bits of a number, as an integer."""
    return int(_BITS.unpack(_FLOAT64.pack(number))[0])


def _bits_of_single(number: Any) -> int:
    return int(np.float32(number).view(np.int32))


_BITS, _FLOAT64 = struct.Struct("=q"), struct.Struct("=d")


def _strides(shape: Sequence[int], itemsize: int) -> list[int]:
    """Of an array in C order, in bytes."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def _flat(kinds: Sequence[str]) -> list[str]:
    """LLVM types of arguments; arrays: memory, parent, size, item size, address, shape, strides."""
    flat: list[str] = []
    for kind in kinds:
        if kind == "int":
            flat.append("i64")
        elif kind == "float":
            flat.append("double")
        elif kind == "single":
            flat.append("float")
        else:
            flat += ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * int(kind.split()[1]))]
    return flat


def trampoline(kinds: Sequence[str]) -> int:
    """The address of the trampoline for kinds of arguments."""
    return _made(tuple(_flat(kinds)))


@functools.cache
def idle_trampoline() -> int:
    """The address of a trampoline that reads no slots and calls nothing."""
    f = Function("idle_trampoline", "ptr %slots, i64 %tid, i64 %nt", "i32")
    f.do("ret i32 0")
    return function_address("idle_trampoline", f.text())


def keep_trampoline(kinds: Sequence[str]) -> None:
    """Compiles :func:`trampoline` for kinds of arguments if it is not on disk; does not load it."""
    function_image(*_written(_flat(kinds)))


@functools.cache
def _made(flat: tuple[str, ...]) -> int:
    return function_address(*_written(flat))


def _written(flat: Sequence[str]) -> tuple[str, str]:
    """Name and text of the trampoline for LLVM types of arguments."""
    name = "trampoline_" + hashlib.sha256(" ".join(flat).encode()).hexdigest()[:16]
    f = Function(name, "ptr %slots, i64 %tid, i64 %nt", "i32")
    result, raised = f.let("alloca ptr"), f.let("alloca ptr")
    function = f.load("ptr", "%slots", 8)
    passed = [f"ptr {result}", f"ptr {raised}"]
    for index, kind in enumerate(flat, 1):
        passed.append(f"{kind} {f.load(kind, f.at('%slots', 8 * index), 8)}")
    passed += ["i64 %tid", "i64 %nt"]
    status = f.let(f"call i32 {function}({', '.join(passed)})")
    f.do(f"ret i32 {status}")
    return name, f.text()

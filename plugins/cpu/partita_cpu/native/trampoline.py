"""One way to call every numba kernel from machine code: by two addresses and a share.

A compiled numba function takes each array as a row of numbers. A trampoline reads them from a list
of eight-byte slots and calls the function, whose address is in the first slot. It hangs on the
kinds of the arguments only, so few are needed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

from partita.lowering import Array
from partita_cpu.native.ir.text import Function

_engines: list[Any] = []
_made: dict[tuple[str, ...], int] = {}
_lock = threading.Lock()

RETURNED = (0, -2)
"""What a compiled function returns if all is well: something, or nothing."""


@dataclass(frozen=True)
class Entry:
    """A compiled kernel for certain types.

    Attributes:
        trampoline: Address of its trampoline: ``int32 (slots, tid, nt)``.
        function: Its own address.
        kinds: LLVM types of what it takes after the two addresses for results.
    """

    trampoline: int
    function: int
    kinds: tuple[str, ...]


def entry(fn: Any, signature: Sequence[Any]) -> Entry | None:
    """How to call a compiled numba function; ``None`` where an argument is of another kind.

    Args:
        fn: The dispatcher, compiled for the signature.
        signature: Types of all arguments, the share's two numbers included.
    """
    overload = fn.overloads[tuple(signature)]
    if overload.signature.return_type != types.none:
        return None
    kinds: list[str] = []
    for kind in signature[:-2]:
        flat = _flat(kind)
        if flat is None:
            return None
        kinds += flat
    address = overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name)
    return Entry(_trampoline(tuple(kinds)), address, tuple(kinds))


def fill(slots: Array, entry: Entry, args: Sequence[Any]) -> list[int]:
    """Writes a call's arguments into its slots.

    Returns:
        For each argument the slot of its address (of arrays), or 0.
    """
    slots[0] = entry.function
    at, places = 1, []
    doubles, singles = slots.view(np.float64), slots.view(np.float32)
    for arg in args:
        if isinstance(arg, np.ndarray):
            places.append(at + 4)
            values = (0, 0, arg.size, arg.itemsize, arg.ctypes.data, *arg.shape, *arg.strides)
            slots[at : at + len(values)] = values
            at += len(values)
            continue
        places.append(0)
        if isinstance(arg, np.float32):
            singles[2 * at] = arg
        elif isinstance(arg, float):
            doubles[at] = arg
        else:
            slots[at] = arg
        at += 1
    return places


def _flat(kind: Any) -> list[str] | None:
    """LLVM types of an argument: memory, parent, size, item size, address, shape, strides."""
    if isinstance(kind, types.Array) and kind.layout == "C" and kind.mutable:
        return ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * kind.ndim)]
    if kind == types.int64:
        return ["i64"]
    if kind == types.float32:
        return ["float"]
    return ["double"] if kind == types.float64 else None


def _trampoline(kinds: tuple[str, ...]) -> int:
    with _lock:
        found = _made.get(kinds)
        if found is None:
            found = _made[kinds] = _compiled(kinds)
    return found


def _compiled(kinds: tuple[str, ...]) -> int:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    name = "trampoline_" + hashlib.sha256(" ".join(kinds).encode()).hexdigest()[:16]
    f = Function(name, "ptr %slots, i64 %tid, i64 %nt", "i32")
    result, raised = f.let("alloca ptr"), f.let("alloca ptr")
    function = f.load("ptr", "%slots", 8)
    passed = [f"ptr {result}", f"ptr {raised}"]
    for index, kind in enumerate(kinds, 1):
        passed.append(f"{kind} {f.load(kind, f.at('%slots', 8 * index), 8)}")
    passed += ["i64 %tid", "i64 %nt"]
    status = f.let(f"call i32 {function}({', '.join(passed)})")
    f.do(f"ret i32 {status}")
    machine = binding.Target.from_default_triple().create_target_machine(
        codemodel="jitdefault", jit=True
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(f.text()), machine)
    engine.finalize_object()
    _engines.append(engine)
    address: int = engine.get_function_address(name)
    return address

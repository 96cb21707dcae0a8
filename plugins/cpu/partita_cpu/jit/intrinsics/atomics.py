"""Atomic memory, waiting and waking, for numba functions that know each other by an address."""

from __future__ import annotations

import platform
from typing import Any

from partita_cpu.jit.deferred_numba import intrinsic, ir, types
from partita_cpu.jit.intrinsics.address_call import calling


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.PointerType(ir.IntType(64)))


def _load(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), generate


def _store(typing: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _add(typing: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


def _replace(typing: Any, address: Any, expected: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _pointer(builder, args[0])
        found = builder.cmpxchg(place, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


_PAUSES: dict[str, tuple[str, tuple[int, ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "amd64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.isb", (15,)),
    "arm64": ("llvm.aarch64.isb", (15,)),
}
"""An instruction that takes some tens of cycles and lets the other thread of a core compute.

ARM's own ``yield`` takes one cycle: the looks that a waiting thread has would be over at once.
"""


def _pause(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit_pause(builder, platform.machine())
        return context.get_dummy_value()

    return types.void(), generate


def emit_pause(builder: Any, machine: str) -> None:
    """Writes what a waiting loop does meanwhile: nothing, on machines that have no word for it."""
    name, values = _PAUSES.get(machine.lower(), ("", ()))
    if name:
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [word] * len(values))
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [ir.Constant(word, value) for value in values])


load: Any = intrinsic(_load)
"""The word at an address: nothing that follows is read before it, nor it before an :data:`add`.

For the latter ARM needs another instruction than for the former; x86 needs none for either.
"""

store: Any = intrinsic(_store)
"""Writes the word at an address, after everything that comes before."""

add: Any = intrinsic(_add)
"""Adds to the word at an address; returns what it was."""

replace: Any = intrinsic(_replace)
"""Writes the word at an address if it is as expected; returns whether it was."""

pause: Any = intrinsic(_pause)
"""Tells the processor that this is a waiting loop."""

call_share = calling("int64", "int64", "int64", returns="int32")
"""Calls a trampoline: address, then slots, tid and nt."""

call_system = calling(*["int64"] * 6, returns="int64")
"""Calls the C function ``syscall``: its address, then number and arguments."""

call_here = calling(returns="int32")
"""Calls the C function ``sched_getcpu``: its address, then nothing."""

call_clock = calling("int64", "int64", returns="int32")
"""Calls the C function ``clock_gettime``: its address, then the clock and where to write."""

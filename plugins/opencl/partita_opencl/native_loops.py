"""Loops of ``driver_loops.ll`` over functions of drivers, as machine code."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from importlib import resources
from typing import Any


class Loop:
    """A compiled loop; it keeps its machine code.

    Args:
        name: The loop's name.
        words: How many words it takes.
        given: The first of them.
    """

    def __init__(self, name: str, words: int, *given: int) -> None:
        word = ctypes.c_size_t
        self._engine, self._given = _engine(), given
        made = ctypes.CFUNCTYPE(word, *[word] * words)(self._engine.get_function_address(name))
        self._loop: Callable[..., int] = made

    def __call__(self, *args: int) -> int:
        """Runs it; other threads of Python need not wait for it."""
        return self._loop(*self._given, *args)


@functools.cache
def call_all() -> Loop:
    """Takes the number of calls, and where their words are: a function's address, five for it.

    It returns how many returned zero, in order, and in the upper 32 bits what the next one did.
    """
    return Loop("call_all", 2)


def prepare() -> None:
    """Compiles the loops now, as a thread does for another one that will use them."""
    _engine()


@functools.cache
def _engine() -> Any:
    """The engine that holds the machine code; once it goes, so does the code."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = resources.files("partita_opencl").joinpath("driver_loops.ll").read_text(encoding="utf-8")
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine

"""Loads the kernels of a program before it runs, or compiles them if they are not on disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.lowering import Operand, Program
from partita.progress import Advance, progress
from partita.system.threads.fork_order import forks_wait
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_cpu.jit import compile_pool
from partita_cpu.jit.deferred_numba import compiler
from partita_cpu.jit.dispatch import available, entry_of, known_entry, order
from partita_cpu.jit.kernel import Kernel
from partita_cpu.jit.kernel_definition import seen_as
from partita_cpu.jit.trampoline import Entry

PATIENCE_S = 1.0
"""Loading kernels for longer than this means that they are compiled."""

DESCRIPTION = "Compiling kernels for this processor, once"

_lock = InterruptSafeLock()


def load_kernels(program: Program) -> list[Entry | None]:
    """Compiles or loads all kernels of a program, so that its first run is not slow.

    The first program on a machine may take some seconds; then a terminal shows a progress bar.

    Args:
        program: Its steps are looked through; kernels that are loaded already cost nothing.

    Returns:
        For each step how to call it from machine code, or ``None`` if Python is to call it.
    """
    found = _known(program)
    if found is None:
        _load(program)
        found = _known(program)
    return [None] * len(program.steps) if found is None else found


def _known(program: Program) -> list[Entry | None] | None:
    """What is loaded already, if that is all."""
    if not available():
        return None
    entries: list[Entry | None] = []
    for step in program.steps:
        known, entry = known_entry(step.fn, step.args) if step.shares else (True, None)
        if not known:
            return None
        entries.append(None if step.results else entry)
    return entries


@forks_wait
def _load(program: Program) -> None:
    ready = entry_of if available() else callable_of
    steps = [step for step in program.steps if step.shares]
    missing = {(step.fn, *map(_kind, step.args)): step for step in steps}
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        advance: Advance | None = None

        def report(done: int) -> None:
            nonlocal advance
            if advance is None and time.monotonic() - start > PATIENCE_S:
                advance = stack.enter_context(progress(DESCRIPTION, len(missing)))
            if advance is not None:
                advance(done)

        if available():
            files = order((step.fn, step.args) for step in missing.values())
            there = len(missing) - len(files)
            compile_pool.wait(files, lambda made: report(there + made))
        for done, step in enumerate(missing.values()):
            if not available():
                report(done)
            ready(step.fn, step.args)


def callable_of(kernel: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """What Python calls to run a kernel on arguments like these; compiled, or loaded.

    Where kernels are not kept it is numba's machine code: a call takes half as long as one that
    looks at the type of every argument. The types must be right: it does not check them.
    """
    if available() or not isinstance(kernel, Kernel):
        return kernel
    typeof = compiler().typeof
    shapes = (
        np.empty((1,) * a.ndim, seen_as(a.dtype)) if isinstance(a, Operand) else a for a in args
    )
    signature = kernel.types_for([typeof(arg) for arg in (*shapes, 0, 1)])
    with _lock:
        kernel.dispatcher.compile(signature)
    found: Callable[..., Any] = kernel.dispatcher.overloads[signature].entry_point
    if kernel.takes_records:
        return lambda *flat: found(*kernel.arguments(flat))
    return found


def _kind(arg: Any) -> Any:
    """What distinguishes the types of arguments."""
    return (arg.dtype, arg.ndim) if isinstance(arg, (Operand, np.ndarray)) else type(arg)

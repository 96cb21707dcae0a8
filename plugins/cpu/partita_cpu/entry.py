"""Compiled entry points of numba kernels: called without looking up argument types each time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from partita.lowering import Operand, Program, Step
from partita.progress import Advance, progress
from partita_cpu.kernels.item_sized import ItemSized

PATIENCE_S = 1.0
"""Loading kernels for longer than this means that they are compiled."""

DESCRIPTION = "Compiling kernels for this processor, once"

_entries: dict[Any, Callable[..., Any]] = {}
_lock = threading.Lock()
_typeof: Callable[[Any], Any] = numba.typeof


def entry_point(step: Step) -> Callable[..., Any]:
    """The machine code of a step's kernel for the types of its arguments.

    Compiles it, or loads it from numba's cache, if it is the first time. A call of the entry point
    takes half as long as one of the dispatcher, which looks at the type of every argument. The
    types must be right: it does not check them. Functions that are not compiled are returned as
    they are.
    """
    kernel = kernel_of(step)
    compile_for = getattr(kernel, "compile", None)
    if compile_for is None:
        return step.fn
    key = _key(step)
    found = _entries.get(key)
    if found is None:
        signature = signature_of(step)
        with _lock:
            compile_for(signature)
        found = _entries[key] = _overload(kernel, signature)
    return found


def kernel_of(step: Step) -> Any:
    """The function that computes a step: numba's, or any other one."""
    return step.fn.kernel if isinstance(step.fn, ItemSized) else step.fn


def signature_of(step: Step) -> tuple[Any, ...]:
    """The numba types of what its kernel takes: the step's arguments and its share."""
    args = step.fn.seen(step.args) if isinstance(step.fn, ItemSized) else step.args
    return tuple(map(_type, (*args, 0, 1)))


def load_kernels(program: Program) -> None:
    """Compiles or loads all kernels of a program, so that its first run is not slow.

    The first program on a machine may take some seconds; then a terminal shows a progress bar.
    """
    missing = {_key(step): step for step in program.steps if step.shares}
    missing = {key: step for key, step in missing.items() if key not in _entries}
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        advance: Advance | None = None
        for done, step in enumerate(missing.values()):
            if advance is None and time.monotonic() - start > PATIENCE_S:
                advance = stack.enter_context(progress(DESCRIPTION, len(missing)))
            if advance is not None:
                advance(done)
            entry_point(step)


def _key(step: Step) -> Any:
    return (step.fn, *map(_kind, step.args))


def _overload(fn: Any, signature: Sequence[Any]) -> Callable[..., Any]:
    found: Callable[..., Any] = fn.overloads[tuple(signature)].entry_point
    return found


def _kind(arg: Any) -> Any:
    """What tells the types of arguments apart, quicker to make than the type itself."""
    if isinstance(arg, (Operand, np.ndarray)):
        return arg.dtype, arg.ndim
    if isinstance(arg, (int, float, np.generic)):
        return type(arg)
    return _typeof(arg)


def _type(arg: Any) -> Any:
    if isinstance(arg, (Operand, np.ndarray)):
        return _typeof(np.empty((1,) * arg.ndim, arg.dtype))
    return _typeof(arg)

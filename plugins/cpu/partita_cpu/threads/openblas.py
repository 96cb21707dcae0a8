"""Control of OpenBLAS: the number of its threads, and none of its calls during a fork.

OpenBLAS holds locks while it computes. A child that is forked meanwhile inherits them locked, and
its first product waits for ever. So a fork waits until no product runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partita.system.threads.fork_order import around_forks
from partita.system.threads.interrupt_safe_lock import take

Array = np.ndarray[Any, Any]

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_")

_current = 0

PATIENCE_S = 5.0
"""A fork waits no longer: a signal handler that forks may have interrupted a product."""

_LOOK_S = 2e-4


class _Gate:
    """Products that run, and forks that wait for their end.

    Attributes:
        forking: Held during a fork; products begin with it.
        running: Of each product that runs an object of its own. Ctrl-C takes it away with the
            product that it ends.
    """

    def __init__(self) -> None:
        self.forking = threading.Lock()  # no thread's own: another may open the gate
        self.running: set[object] = set()

    def close(self) -> None:
        """Waits until no product runs; none begins until :meth:`open`."""
        until = time.monotonic() + PATIENCE_S
        self.forking.acquire(timeout=PATIENCE_S)
        while self.running and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def open(self) -> None:
        """Lets products begin again."""
        with contextlib.suppress(RuntimeError):  # it was not closed in time
            self.forking.release()


gate = _Gate()


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """The product of two matrices, or stacks of them, as ``numpy.matmul`` computes it.

    Infinities and NaN are results; nobody is warned of them.

    Args:
        a: (..., rows, terms).
        b: (..., terms, columns).
        out: Where the product goes, (..., rows, columns); by default a new array.
    """
    product = object()
    try:
        take(gate.forking)
        try:
            gate.running.add(product)
        finally:
            gate.forking.release()
        with np.errstate(all="ignore"):
            result: Array = np.matmul(a, b, out=out)
        return result
    finally:
        gate.running.discard(product)


def _in_child() -> None:
    gate.__init__()  # type: ignore[misc]  # its lock may be another thread's, which is not here


around_forks(gate.close, gate.open, _in_child)


def use_threads(count: int) -> None:
    """Lets matrix products use this many threads from now on, in the whole process.

    OpenBLAS knows one number only, so of two models that run at once the last one sets it. Does
    nothing where numpy does not bring an OpenBLAS of its own.
    """
    global _current
    if count != _current:
        setter = _setter()
        if setter is not None:
            setter(count)
        _current = count


@functools.cache
def _setter() -> Callable[[int], None] | None:
    for path in _libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _SETTERS:
            function = getattr(library, name, None)
            if function is not None:
                function.argtypes, function.restype = [ctypes.c_int], None
                set_threads: Callable[[int], None] = function
                return set_threads
    return None


def _libraries() -> Iterator[Path]:
    """The libraries that numpy's wheel carries, on Linux and Windows, and on macOS."""
    package = Path(np.__file__).parent
    yield from package.parent.glob("numpy.libs/*openblas*")
    yield from package.glob(".dylibs/*openblas*")

"""Products by numpy's OpenBLAS: with the threads of who runs them, and never during a fork.

OpenBLAS holds locks while it computes. A child that is forked meanwhile inherits them locked, and
its first product waits for ever. So a fork waits until no product runs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np

from partita.system.threads.blas_threads import blas_threads
from partita.system.threads.fork_order import around_forks
from partita.system.threads.interrupt_safe_lock import take

Array = np.ndarray[Any, Any]


class _Local(threading.local):
    """What products use that a thread asks for; 0 leaves numpy's number as it is."""

    threads = 0


_local = _Local()

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
        with blas_threads(_local.threads), np.errstate(all="ignore"):
            result: Array = np.matmul(a, b, out=out)
        return result
    finally:
        gate.running.discard(product)


def _in_child() -> None:
    gate.__init__()  # type: ignore[misc]  # its lock may be another thread's, which is not here


around_forks(gate.close, gate.open, _in_child)


def use_threads(count: int) -> None:
    """Lets products that this thread asks for use so many threads from now on."""
    _local.threads = count

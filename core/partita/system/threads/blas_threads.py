"""How many threads numpy's matrix products use, while somebody computes with them.

numpy's wheels bring an OpenBLAS, whose threads keep looking for work for some 20 ms after each
product and take processors from whatever computes next. Its number of threads is one for the whole
process, so it is set for a computation and given back behind it: an application's own products are
as fast as they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partita.system.threads.fork_order import around_forks
from partita.system.threads.interrupt_safe_lock import take

_NAMES = "scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_"


@dataclass(frozen=True)
class OpenBlas:
    """Functions of a library that is loaded: its number of threads, and what sets it."""

    get: Callable[[], int]
    set: Callable[[int], None]


class _Computations:
    """Those that run now.

    Attributes:
        running: How many threads each asks for, in the order in which they began.
    """

    def __init__(self) -> None:
        self.running: dict[object, int] = {}
        self._lock = threading.Lock()
        self._before: int | None = None  # any of them began

    def begin(self, blas: OpenBlas, computation: object, count: int) -> None:
        """Has products use as many threads as this one asks for."""
        take(self._lock)
        try:
            before = blas.get()
            if self._before is None:
                self._before = before
            self.running[computation] = count
            if count != before:
                blas.set(count)
        finally:
            self._lock.release()

    def settle(self, blas: OpenBlas) -> None:
        """Has them use as many as the latest asks for, or as before the first one."""
        take(self._lock)
        try:
            # One call: others end meanwhile, without the lock.
            *_, wanted = (self._before, *self.running.values())
            if wanted is not None and wanted != blas.get():
                blas.set(wanted)
            if not self.running:
                self._before = None
        finally:
            self._lock.release()


_computations = _Computations()


@contextlib.contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Has numpy's matrix products use so many threads until the block ends.

    Of blocks that overlap, in whatever threads, the one that began last decides. Does nothing
    where numpy does not bring an OpenBLAS of its own.

    Args:
        count: Threads; 0 leaves them as they are.
    """
    blas = openblas() if count else None
    if blas is None:
        yield
        return
    computation = object()
    try:
        _computations.begin(blas, computation, count)
        yield
    finally:
        # No method, since Ctrl-C may come when one begins.
        _computations.running.pop(computation, None)
        _computations.settle(blas)


@functools.cache
def openblas() -> OpenBlas | None:
    """The one that numpy computes with, if its wheel brought it."""
    for path in libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _NAMES:
            getter = getattr(library, name.format("get"), None)
            setter = getattr(library, name.format("set"), None)
            if getter is not None and setter is not None:
                getter.argtypes, getter.restype = [], ctypes.c_int
                setter.argtypes, setter.restype = [ctypes.c_int], None
                return OpenBlas(getter, setter)
    return None


def libraries() -> Iterator[Path]:
    """The libraries that numpy's wheel carries, on Linux and Windows, and on macOS."""
    package = Path(np.__file__).parent
    yield from package.parent.glob("numpy.libs/*openblas*")
    yield from package.glob(".dylibs/*openblas*")


def _in_child() -> None:
    """Forgets the computations of threads that the child has not; their count stays.

    OpenBLAS may be in the middle of one, and is not called here.
    """
    global _computations
    _computations = _Computations()


around_forks(lambda: None, lambda: None, _in_child)

"""How many threads numpy's matrix products (OpenBLAS) use."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_")

_current = 0


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

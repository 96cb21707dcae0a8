"""The one way in which the planner's loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.extending import register_jitable

from partita.storage.numba_cache import keep_compiled
from partita_hetero.planner.arrays.problem_arrays import Array

F = TypeVar("F", bound=Callable[..., Any])

_loops: list[Any] = []


def jit(function: F) -> F:
    """Compiles a function on its first call; kept on disk, without the GIL."""
    compiled = numba.njit(function, nogil=True, error_model="numpy")
    keep_compiled(compiled)
    _loops.append(compiled)
    return compiled  # type: ignore[no-any-return]


def loop_part(function: F) -> F:
    """Lets compiled loops call a function, which stays one of Python's for everyone else.

    Of a loop of its own numba would make what takes all arrays out of Python's objects, too.
    """
    return register_jitable(error_model="numpy")(function)


@loop_part
def copy_row(target: Array, source: Array) -> None:
    """Writes a one-dimensional array into another of its length.

    ``target[:] = source`` would bring numba's text of an error about their shapes: with the text
    and what makes it of numbers, two seconds of compilation.
    """
    for i in range(len(source)):
        target[i] = source[i]


def inlined(function: F) -> F:
    """Makes a function part of each compiled loop that calls it."""
    return numba.njit(function, inline="always", error_model="numpy")  # type: ignore[no-any-return]


def compilations() -> int:
    """How many loops this process has compiled so far, those found on disk apart."""
    return sum(sum(loop.stats.cache_misses.values()) for loop in _loops)

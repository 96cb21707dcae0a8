"""The one way in which the planner's loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from partita.storage.numba_cache import keep_compiled
from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.arrays.problem_arrays import Array

with search_clock.stopped():  # a second
    import numba
    from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compiles a function on its first call; kept on disk, without the GIL.

    For searches no time passes meanwhile: a limit on theirs holds on their first run, too.
    """
    compiled: Any = numba.njit(function, nogil=True, error_model="numpy")
    keep_compiled(compiled)
    compiled.compile = search_clock.stopped()(compiled.compile)
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

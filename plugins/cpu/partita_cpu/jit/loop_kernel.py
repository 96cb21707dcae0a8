"""The decorator :func:`loop`, for kernels that allocate nothing and need no reference counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_definition import Effort

F = TypeVar("F", bound=Callable[..., Any])


@overload
def loop(fn: F) -> F: ...
@overload
def loop(
    *,
    inline: bool = ...,
    apart: tuple[str, ...] = ...,
    answers: bool = ...,
    effort: Effort = ...,
) -> Callable[[F], F]: ...
def loop(
    fn: F | None = None,
    *,
    inline: bool = False,
    apart: tuple[str, ...] = (),
    answers: bool = False,
    effort: Effort = Effort.ALL,
) -> Any:
    """As `jit`, for functions that make no arrays but slices.

    numba counts references to the memory behind every slice, by atomic additions. In a loop over
    short rows they take more time than the rows, and threads that share an array wait for each
    other's. A function that allocates does not compile this way.

    Args:
        fn: The function; ``@loop`` and ``@loop(inline=True)`` both work.
        inline: For small functions called in inner loops.
        apart: As for `jit`.
        answers: As for `jit`.
        effort: As for `jit`.
    """
    compile_: Callable[[F], Any] = jit(
        inline=inline, counts=False, apart=apart, answers=answers, effort=effort
    )
    return compile_ if fn is None else compile_(fn)

"""The decorator :func:`jit`, by which numba kernels are defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from partita_cpu.jit.dispatch import call
from partita_cpu.jit.kernel_definition import Effort, KernelDefinition

F = TypeVar("F", bound=Callable[..., Any])

REASSOCIATE = frozenset({"reassoc", "contract", "nsz", "arcp"})
"""Fast-math flags that let sums be vectorized and still keep NaN and infinity as IEEE has them."""


class Kernel(KernelDefinition):
    """A kernel that Python can call.

    Compiled functions are taken from disk if they are there (:mod:`partita_cpu.jit.dispatch`), else
    numba makes them.
    """

    def __call__(self, *args: Any) -> Any:
        """Computes; what the function returns is lost unless numba runs it."""
        return call(self, args)


@overload
def jit(fn: F) -> F: ...
@overload
def jit(
    *,
    reassociate: bool = ...,
    inline: bool = ...,
    counts: bool = ...,
    apart: tuple[str, ...] = ...,
    answers: bool = ...,
    effort: Effort = ...,
) -> Callable[[F], F]: ...
def jit(
    fn: F | None = None,
    *,
    reassociate: bool = False,
    inline: bool = False,
    counts: bool = True,
    apart: tuple[str, ...] = (),
    answers: bool = False,
    effort: Effort = Effort.ALL,
) -> Any:
    """Compiles a kernel: kept on disk, without the GIL, numpy's rules for division by zero.

    Args:
        fn: The function; ``@jit`` and ``@jit(reassociate=True)`` both work.
        reassociate: Lets the compiler reorder sums and contract to fused multiply-add, which
            vectorized reductions need. NaN, infinity and comparisons stay exact.
        inline: For small functions called in inner loops: inlined by LLVM wherever they are used.
        counts: Whether it may hold references to arrays; see `partita_cpu.jit.loop_kernel`.
        apart: For large functions that several kernels call, and seldom: compiled once for all of
            them. Kinds of its arguments; see `partita_cpu.jit.dispatch`.
        answers: Whether such a function returns an int64; else it returns nothing.
        effort: How much LLVM does for it. Functions whose work is done by the kernels that they
            call by addresses need little.
    """

    def compile_(function: F) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        if reassociate:
            options["fastmath"] = set(REASSOCIATE)
        if inline:
            options["forceinline"] = True
        return Kernel(function, options, counts, apart, answers, effort)

    return compile_ if fn is None else compile_(fn)

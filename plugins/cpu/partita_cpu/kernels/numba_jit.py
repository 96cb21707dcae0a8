"""The one way in which numba kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numba

F = TypeVar("F", bound=Callable[..., Any])

REASSOCIATE = frozenset({"reassoc", "contract", "nsz", "arcp"})
"""Fast-math flags that let sums be vectorised and still keep NaN and infinity as IEEE has them."""


@overload
def jit(fn: F) -> F: ...
@overload
def jit(*, reassociate: bool = ..., inline: bool = ...) -> Callable[[F], F]: ...
def jit(fn: F | None = None, *, reassociate: bool = False, inline: bool = False) -> Any:
    """Compiles a kernel: cached on disk, without the GIL, numpy's rules for division by zero.

    Args:
        fn: The function; ``@jit`` and ``@jit(reassociate=True)`` both work.
        reassociate: Lets the compiler reorder sums and contract to fused multiply-add, which
            vectorised reductions need. NaN, infinity and comparisons stay exact.
        inline: For small functions called in inner loops: inlined by LLVM wherever they are used.
    """

    def compile_(function: F) -> Any:
        options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
        if reassociate:
            options["fastmath"] = set(REASSOCIATE)
        if inline:
            options["forceinline"] = True
        return numba.njit(**options)(function)

    return compile_ if fn is None else compile_(fn)

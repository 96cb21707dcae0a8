"""The one way in which the planner's loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compiles a function on its first call; cached on disk, without the GIL."""
    return numba.njit(function, cache=True, nogil=True, error_model="numpy")  # type: ignore[no-any-return]

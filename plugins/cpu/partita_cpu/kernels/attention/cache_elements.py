"""Elements of a cache of keys and values: float32, float16 or bfloat16, computed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering import Operand
from partita_cpu.jit.deferred_numba import overload, types
from partita_cpu.jit.kernel_wrappers import ItemSized
from partita_cpu.kernels.half import (
    BFLOAT16,
    bfloat16_to_float32,
    float16_to_float32,
    float32_to_bfloat16,
    float32_to_float16,
)
from partita_cpu.kernels.operator_table import F32, HALVES, DTypes

CACHES: DTypes = F32 | HALVES
"""Element types that a cache may have."""

_SEEN_AS = {np.dtype(np.float16): np.dtype(np.uint16), BFLOAT16: np.dtype(np.int16)}
"""numba knows no 16-bit floats: the sign of the integers tells kernels which of them they are."""


class CacheKernel(ItemSized):
    """A kernel whose first arguments are caches; it takes 16-bit ones as integers of their bits.

    Args:
        kernel: A compiled function; its first arguments are flat caches.
        arrays: How many of its arguments are caches.
    """

    def __call__(self, *args: Any) -> None:
        """Calls the kernel on caches as it sees them."""
        caches = [array.view(_seen_as(array.dtype)) for array in args[: self.arrays]]
        self.kernel(*caches, *args[self.arrays :])

    def seen(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of a step as the kernel sees them: operands of its types."""
        caches = [Operand(x.shape, _seen_as(x.dtype)) for x in args[: self.arrays]]
        return [*caches, *args[self.arrays :]]


def _seen_as(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return _SEEN_AS.get(dtype, dtype)


def element(x: Any) -> Any:
    """The float32 of an element of a cache; in compiled kernels only."""
    raise NotImplementedError("element is for compiled kernels")


def _same(x: Any) -> Any:
    return x


def _from_float16(x: Any) -> Any:
    return float16_to_float32(x)


def _from_bfloat16(x: Any) -> Any:
    return bfloat16_to_float32(x)


@overload(element)
def _element(x: Any) -> Any:
    if x == types.float32:
        return _same
    return _from_float16 if x == types.uint16 else _from_bfloat16


def rounded_as(cache: Any, value: Any) -> Any:
    """A float32 as an element of the type that a flat cache has; in compiled kernels only."""
    raise NotImplementedError("rounded_as is for compiled kernels")


def _unrounded(cache: Any, value: Any) -> Any:
    return value


def _as_float16(cache: Any, value: Any) -> Any:
    return float32_to_float16(value)


def _as_bfloat16(cache: Any, value: Any) -> Any:
    return np.int16(float32_to_bfloat16(value))


@overload(rounded_as)
def _rounded_as(cache: Any, value: Any) -> Any:
    if cache.dtype == types.float32:
        return _unrounded
    return _as_float16 if cache.dtype == types.uint16 else _as_bfloat16

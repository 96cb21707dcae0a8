"""Access to elements of a cache: float32, float16, bfloat16 or int8, computed in float32.

Rows of int8 have a scale of their own behind their codes (:mod:`partita.tensors.cache_rows`).
Kernels read the codes as they lie and multiply what they make of a row with its scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering import Operand
from partita.tensors.cache_rows import LARGEST, LEAST_SCALE, SCALE_BYTES
from partita_cpu.jit.deferred_numba import overload, types
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.intrinsics.address_call import address, float_at
from partita_cpu.jit.kernel_wrappers import ItemSized
from partita_cpu.kernels.half import BFLOAT16
from partita_cpu.kernels.operator_table import F32, HALVES, DTypes
from partita_cpu.scalar.half_floats import (
    bfloat16_to_float32,
    float16_to_float32,
    float32_to_bfloat16,
    float32_to_float16,
)
from partita_cpu.scalar.instructions import bits

CACHES: DTypes = F32 | HALVES
"""Element types that a cache may have whose elements are numbers by themselves."""

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


def _code(x: Any) -> Any:
    return np.float32(x)


@overload(element)
def _element(x: Any) -> Any:
    if x == types.float32:
        return _same
    if x == types.int8:
        return _code
    return _from_float16 if x == types.uint16 else _from_bfloat16


def rounded_as(cache: Any, value: Any) -> Any:
    """A float32 as an element of the type that a flat cache has; in compiled kernels only.

    For codes, the float32 is over the scale of the row.
    """
    raise NotImplementedError("rounded_as is for compiled kernels")


def _unrounded(cache: Any, value: Any) -> Any:
    return value


def _as_float16(cache: Any, value: Any) -> Any:
    return float32_to_float16(value)


def _as_bfloat16(cache: Any, value: Any) -> Any:
    return np.int16(float32_to_bfloat16(value))


def _as_code(cache: Any, value: Any) -> Any:
    # The sum's last bits are the nearest whole number, ties to even.
    return np.int8(bits(value + np.float32(12582912.0)))


@overload(rounded_as)
def _rounded_as(cache: Any, value: Any) -> Any:
    if cache.dtype == types.float32:
        return _unrounded
    if cache.dtype == types.int8:
        return _as_code
    return _as_float16 if cache.dtype == types.uint16 else _as_bfloat16


def has_scales(cache: Any) -> Any:
    """Whether rows of a flat cache have scales; in compiled kernels only."""
    raise NotImplementedError("has_scales is for compiled kernels")


@overload(has_scales)
def _has_scales(cache: Any) -> Any:
    known = cache.dtype == types.int8
    return _yes if known else _no


def _yes(cache: Any) -> Any:
    return True


def _no(cache: Any) -> Any:
    return False


def pitch(cache: Any, size: Any) -> Any:
    """Elements of a flat cache from one row of so many to the next; in compiled kernels only."""
    raise NotImplementedError("pitch is for compiled kernels")


@overload(pitch)
def _pitch(cache: Any, size: Any) -> Any:
    return _row_of_codes if cache.dtype == types.int8 else _row


def _row(cache: Any, size: Any) -> Any:
    return size


def _row_of_codes(cache: Any, size: Any) -> Any:
    return ((size + 3) & -4) + SCALE_BYTES


def scale_at(cache: Any, start: Any, size: Any) -> Any:
    """The scale of the row of so many elements that starts there; in compiled kernels only."""
    raise NotImplementedError("scale_at is for compiled kernels")


@overload(scale_at)
def _scale_at(cache: Any, start: Any, size: Any) -> Any:
    return _scale_of_codes if cache.dtype == types.int8 else _no_scale


def _no_scale(cache: Any, start: Any, size: Any) -> Any:
    return np.float32(1)


def _scale_of_codes(cache: Any, start: Any, size: Any) -> Any:
    return float_at(address(cache) + start + ((size + 3) & -4))


def rows_as_floats(cache: Any, first: Any, count: Any, size: Any, room: Any) -> Any:
    """Address of some rows of a flat cache as float32; in compiled kernels only.

    That is where they lie, or room that they are brought to.
    """
    raise NotImplementedError("rows_as_floats is for compiled kernels")


@overload(rows_as_floats)
def _rows_as_floats(cache: Any, first: Any, count: Any, size: Any, room: Any) -> Any:
    return _rows_in_place if cache.dtype == types.float32 else _widened_rows


def _rows_in_place(cache: Any, first: Any, count: Any, size: Any, room: Any) -> Any:
    return address(cache) + 4 * first * size


def _widened_rows(cache: Any, first: Any, count: Any, size: Any, room: Any) -> Any:
    step = pitch(cache, size)
    for j in range(count):
        start = (first + j) * step
        source, row = cache[start : start + size], room[j * size : (j + 1) * size]
        scale = scale_at(cache, start, size)
        for i in range(source.size):
            row[i] = element(source[i]) * scale
    return address(room)


def rescale(line: Any, rows: Any, size: Any) -> Any:
    """Multiplies a number for each row with the scale of that row; in compiled kernels only."""
    raise NotImplementedError("rescale is for compiled kernels")


@overload(rescale)
def _rescale(line: Any, rows: Any, size: Any) -> Any:
    return _rescale_by_rows if rows.dtype == types.int8 else _keep


def _keep(line: Any, rows: Any, size: Any) -> Any:
    return None


def _rescale_by_rows(line: Any, rows: Any, size: Any) -> Any:
    step = pitch(rows, size)
    for j in range(line.size):
        line[j] *= scale_at(rows, j * step, size)


def put_scale(row: Any, size: Any, largest: Any) -> Any:
    """Gives a row of codes its scale, and returns the inverse; in compiled kernels only."""
    raise NotImplementedError("put_scale is for compiled kernels")


@overload(put_scale)
def _put_scale(row: Any, size: Any, largest: Any) -> Any:
    return _put_scale_of_codes if row.dtype == types.int8 else _no_inverse


def _no_inverse(row: Any, size: Any, largest: Any) -> Any:
    return np.float32(1)


def _put_scale_of_codes(row: Any, size: Any, largest: Any) -> Any:
    scale = np.float32(largest / np.float32(LARGEST))
    if not largest < np.float32(np.inf):
        scale = np.float32(np.nan)
    floats_at(address(row) + ((size + 3) & -4), 1)[0] = scale
    return np.float32(1) / scale if scale >= np.float32(LEAST_SCALE) else np.float32(0)

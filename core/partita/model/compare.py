"""How far two values are apart, counted in tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.tensors.sequence_values import unboxed

Array = np.ndarray[Any, Any]

_MASK = 1e9
"""Larger magnitudes stand for infinity (attention masks), and do not set a tensor's scale."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How a value differs from the expected one.

    Attributes:
        error: Largest ``|a - b|`` in tolerances: up to 1 is within; infinite for a NaN that is not
            expected, another shape or another type.
        max_abs: Largest ``|a - b|``; ``None`` where there are no numbers to subtract.
        where: Index of the worst element, if any is outside of tolerance.
        have: That element.
        want: What it should be.
        what: The difference in words, where it is not one of numbers.
    """

    error: float = 0.0
    max_abs: float | None = None
    where: tuple[int, ...] | None = None
    have: str = ""
    want: str = ""
    what: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything is within tolerance."""
        return self.error <= 1

    def __str__(self) -> str:
        if self.what:
            return self.what
        if self.where is None:
            return f"{self.error:.2g} tolerances"
        factor = f"{self.error:.3g} tolerances" if math.isfinite(self.error) else "not a number"
        return f"{self.have} instead of {self.want} at {list(self.where)} ({factor})"


def difference(have: Any, want: Any, rtol: float, atol: float, rounding: float = 0.0) -> Difference:
    """Compares two tensors, sequences or optional values.

    Floating-point numbers may be ``atol + rtol * |want|`` apart, NaN equals NaN, and infinities
    equal themselves. Integers may be ``atol`` apart, so that by default they are equal; truth
    values and texts are equal.

    Args:
        have: What came out.
        want: What is expected.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        rounding: This share of the tensor's largest magnitude is tolerated besides, since sums that
            cancel keep the rounding error of their terms.
    """
    have, want = unboxed(np.asarray(have)), unboxed(np.asarray(want))
    if not isinstance(have, np.ndarray) or not isinstance(want, np.ndarray):
        return _difference_of_sequences(have, want, rtol, atol, rounding)
    if have.shape != want.shape or have.dtype != want.dtype:
        return Difference(math.inf, what=f"{_kind(have)} instead of {_kind(want)}")
    if have.size == 0:
        return Difference()
    if want.dtype.kind in "OUSb":
        unequal = np.asarray(have != want)
        if not unequal.any():
            return Difference()
        return _worst(np.where(unequal, math.inf, 0.0), None, have, want)
    a, b = (array.astype(_exact(want.dtype)) for array in (have, want))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
        if want.dtype.kind in "iu":
            allowed = np.full(b.shape, math.floor(atol), np.float64)
        else:
            allowed = atol + rtol * np.abs(b) + rounding * _scale(b)
        error = np.where(same, 0.0, gap / allowed)
    error = np.where(np.isnan(error), math.inf, error).astype(np.float64)
    return _worst(error, float(np.nan_to_num(gap, nan=math.inf).max()), have, want)


def _difference_of_sequences(
    have: Any, want: Any, rtol: float, atol: float, rounding: float
) -> Difference:
    if not isinstance(have, list) or not isinstance(want, list) or len(have) != len(want):
        if have is None and want is None:
            return Difference()
        return Difference(math.inf, what=f"{_kind(have)} instead of {_kind(want)}")
    found = [difference(a, b, rtol, atol, rounding) for a, b in zip(have, want, strict=True)]
    return max(found, key=lambda one: one.error, default=Difference())


def _worst(error: Array, max_abs: float | None, have: Array, want: Array) -> Difference:
    worst = float(error.max())
    if worst <= 1:
        return Difference(worst, max_abs)
    where = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    return Difference(worst, max_abs, where, _shown(have[where]), _shown(want[where]))


def _exact(dtype: np.dtype[Any]) -> type[Any]:
    """A type that holds every element of another one."""
    if dtype.kind == "c":
        return np.complex128
    return np.longdouble if dtype.kind in "iu" and dtype.itemsize == 8 else np.float64


def _scale(expected: Array) -> float:
    magnitudes = np.abs(expected)
    return float(np.max(magnitudes, initial=0.0, where=magnitudes < _MASK))


def _shown(element: Any) -> str:
    if isinstance(element, str):
        return repr(element)
    return f"{element:.6g}" if np.asarray(element).dtype.kind == "f" else str(element)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "nothing" if value is None else f"a sequence of {len(value)}"


def relative_error(have: Any, want: Any) -> float:
    """The largest ``|a - b|`` of a tensor over its largest magnitude, or of a sequence's tensors.

    Infinite where one side has a NaN or infinity and the other has not; for integers, truth values
    and texts the share of elements that differ.
    """
    have, want = unboxed(np.asarray(have)), unboxed(np.asarray(want))
    if not isinstance(have, np.ndarray) or not isinstance(want, np.ndarray):
        if have is None and want is None:
            return 0.0
        if not isinstance(have, list) or not isinstance(want, list) or len(have) != len(want):
            return math.inf
        return max(map(relative_error, have, want), default=0.0)
    if have.shape != want.shape or have.dtype != want.dtype:
        return math.inf
    if have.size == 0:
        return 0.0
    if want.dtype.kind in "OUSbiu":
        return float(np.mean(have != want))
    a, b = (array.astype(_exact(want.dtype)) for array in (have, want))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        gap = float(np.max(np.where(same, 0.0, np.abs(a - b))))
    if gap == 0:
        return 0.0
    scale = _scale(b)
    return gap / scale if math.isfinite(gap) and scale > 0 else math.inf

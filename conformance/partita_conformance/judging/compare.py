"""Comparing what a device computed with what is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita_conformance.judging.requirements import ConformanceError

_TOLERANCES = {"float16": (4e-3, 2e-3), "bfloat16": (2**-6, 2e-2), "float64": (1e-6, 1e-9)}
TWO_STEPS = {"float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Of half precision, as a relative tolerance: what right answers of several rounded operations may
differ by. Each may be more than half a step off the exact one; ONNX's are up to one and a half."""
_SINGLE, _SINGLE_OF_MODELS = 1e-4, 1e-3
"""Of float32: of few operations, which half precision inside exceeds, and of whole models."""
OF_LARGEST = 3e-5
"""Sums that cancel keep an error of this share of the largest element."""


def compare(
    actual: Sequence[Any],
    expected: Sequence[Any],
    what: str,
    rtol: float | None = None,
    atol: float | None = None,
    form_only: bool = False,
    of_largest: float = OF_LARGEST,
) -> None:
    """Compares outputs: number, shape, dtype and elements.

    Args:
        actual: What the device returned.
        expected: What is right; lists are sequences, ``None`` an absent optional.
        what: Named in messages.
        rtol: Relative tolerance; by default one that fits the dtype.
        atol: Absolute tolerance, likewise.
        form_only: Do not look at elements (of random numbers).
        of_largest: Share of the largest element that the default absolute tolerance adds; a larger
            one than the default is for whole models, whose relative tolerance is larger too.

    Raises:
        ConformanceError: They differ; the message says where first.
    """
    if len(actual) != len(expected):
        raise ConformanceError(f"{what}: {len(actual)} values; expected {len(expected)}.")
    for index, (have, want) in enumerate(zip(actual, expected, strict=True)):
        place = f"{what}, output {index}"
        if isinstance(want, (list, tuple)):
            if not isinstance(have, (list, tuple)):
                raise ConformanceError(f"{place}: {type(have).__name__}; expected a sequence.")
            compare(have, want, place, rtol, atol, form_only, of_largest)
        elif want is None or have is None:
            if want is not have:
                raise ConformanceError(f"{place}: {have!r}; expected {want!r}.")
        else:
            arrays = np.asarray(have), np.asarray(want)
            _compare_arrays(*arrays, place, rtol, atol, form_only, of_largest)


def largest(want: np.ndarray[Any, Any]) -> float:
    """The largest finite magnitude of a float array."""
    if want.dtype.kind in "OUSbiu":
        return 0.0
    magnitudes = np.abs(want.astype(np.float64))
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def _compare_arrays(
    have: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    place: str,
    rtol: float | None,
    atol: float | None,
    form_only: bool,
    of_largest: float,
) -> None:
    """Raises where an array is not the expected one.

    Args:
        have: What the device computed.
        want: What is expected.
        place: What messages begin with.
        rtol: As `compare` has it.
        atol: As `compare` has it.
        form_only: As `compare` has it.
        of_largest: As `compare` has it.
    """
    if have.shape != want.shape:
        raise ConformanceError(f"{place}: shape {have.shape}; expected {want.shape}.")
    if have.dtype != want.dtype and not (have.dtype.kind in "OUS" and want.dtype.kind in "OUS"):
        raise ConformanceError(f"{place}: dtype {have.dtype}; expected {want.dtype}.")
    if form_only or want.size == 0:
        return
    if want.dtype.kind in "OUSb":
        wrong = np.asarray(have != want)
    else:
        low, high = _TOLERANCES.get(want.dtype.name, (_SINGLE, 1e-5))
        if low == _SINGLE and of_largest > OF_LARGEST:
            low = _SINGLE_OF_MODELS
        high += of_largest * largest(want)
        relative, absolute = low if rtol is None else rtol, high if atol is None else atol
        if want.dtype.kind in "iu":
            relative, absolute = 0.0, 0.0
        kind: type[Any] = np.complex128 if want.dtype.kind == "c" else np.float64
        if want.dtype.kind in "iu" and want.dtype.itemsize == 8:
            kind = np.longdouble  # float64 does not hold all of them
        with np.errstate(all="ignore"):
            close = np.isclose(
                have.astype(kind),
                want.astype(kind),
                rtol=relative,
                atol=absolute,
                equal_nan=True,
            )
        wrong = ~close
    if np.any(wrong):
        first = tuple(int(i) for i in np.argwhere(np.atleast_1d(wrong))[0])
        flat_have, flat_want = np.atleast_1d(have)[first], np.atleast_1d(want)[first]
        raise ConformanceError(
            f"{place}: {int(np.sum(wrong))} of {want.size} elements are wrong; at {list(first)} "
            f"{flat_have!r}, due is {flat_want!r}."
        )

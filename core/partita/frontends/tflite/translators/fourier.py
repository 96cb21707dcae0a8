"""Fourier transforms, and complex numbers: floats with one more axis of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.tflite.translator import Site, translates_complex
from partita.frontends.tflite.weights import COMPLEX64, element_type

if TYPE_CHECKING:
    import onnx_ir as ir

_REAL, _IMAGINARY = 0, 1
"""Parts of a complex number along the last axis."""

_LONGEST = 1 << 20
"""Numbers of a transform; files claim what they like."""


@translates_complex("RFFT2D")
def rfft2d(at: Site) -> ir.Value:
    """The transform of real images, padded or cut to the lengths, without the columns that mirror.

    Images of one row, which stand for sequences, are transformed along their columns alone.
    """
    height, width = lengths = at.numbers(1)
    rank = at.rank(0)
    if rank < len(lengths) or not all(0 < length <= _LONGEST for length in lengths):
        raise at.error(f"lengths {lengths} do not fit {rank} dimensions, or 1 to {_LONGEST:,}")
    numbers = at.emit("Unsqueeze", at.floats(0), at.const([-1], np.int64))
    columns = _transformed(at, numbers, width, rank - 1, onesided=1)
    if height == 1 and at.dims(0)[-2] == 1:
        return columns
    return _transformed(at, columns, height, rank - 2, onesided=0)


def _transformed(at: Site, value: ir.Value, length: int, axis: int, onesided: int) -> ir.Value:
    place = at.const(axis, np.int64)
    return at.emit("DFT", value, at.const(length, np.int64), place, onesided=onesided)


@translates_complex("REAL")
def real(at: Site) -> ir.Value:
    """Real parts."""
    return _part(at, _REAL)


@translates_complex("IMAG")
def imaginary(at: Site) -> ir.Value:
    """Imaginary parts."""
    return _part(at, _IMAGINARY)


@translates_complex("COMPLEX_ABS")
def absolute(at: Site) -> ir.Value:
    """How far numbers are from zero."""
    return at.emit("ReduceL2", at.value(0), at.const([-1], np.int64), keepdims=0)


@translates_complex("CAST")
def cast(at: Site) -> ir.Value:
    """Real parts as another type."""
    if at.tensor(0).type != COMPLEX64:
        raise at.error("it makes complex numbers of others, which is not known")
    return at.cast(_part(at, _REAL), element_type(at.target().type, at.target()))


def _part(at: Site, part: int) -> ir.Value:
    return at.emit("Gather", at.value(0), at.const(part, np.int64), axis=-1)


@translates_complex("RESHAPE")
def reshape(at: Site) -> ir.Value:
    """Another shape: that of the second input, or of the options."""
    given = at.indices(1) if at.has(1) else at.const(at.ints("NewShape"), np.int64)
    sizes = at.emit("Concat", at.reshaped(given, [-1]), at.const([2], np.int64), axis=0)
    return at.emit("Reshape", at.value(0), sizes, allowzero=1)


@translates_complex("SQUEEZE")
def squeeze(at: Site) -> ir.Value:
    """Without axes of size one: those named, or all."""
    dims = at.dims(0)
    axes = [at.axis(axis, len(dims)) for axis in at.ints("SqueezeDims")]
    if not axes and -1 in dims:
        raise at.error(f"it names no axes, and sizes {list(dims)} are not all known")
    axes = axes or [axis for axis, size in enumerate(dims) if size == 1]
    return at.emit("Squeeze", at.value(0), at.const(axes, np.int64)) if axes else at.value(0)


@translates_complex("EXPAND_DIMS")
def expand_dims(at: Site) -> ir.Value:
    """With one more axis, of size one."""
    axes = [at.axis(number, at.rank(0) + 1) for number in at.numbers(1)]
    return at.emit("Unsqueeze", at.value(0), at.const(axes, np.int64))

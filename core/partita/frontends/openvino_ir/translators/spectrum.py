"""Fourier transforms: complex numbers are pairs in a last axis, in OpenVINO as in ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("DFT", "IDFT")
def complex_transform(at: Site) -> ir.Value:
    """Complex numbers to complex ones, along each axis."""
    value = at.inputs[0]
    for axis, length in _lengths(at, at.rank(0) - 1):
        value = _along(at, value, axis, length, inverse=at.layer.type == "IDFT")
    return value


@translates("RDFT")
def real_transform(at: Site) -> ir.Value:
    """Numbers to complex ones, of which those that mirror others are left out at the last axis."""
    axes = _lengths(at, at.rank(0))
    value = at.emit("Unsqueeze", at.inputs[0], at.const([-1], np.int64))
    for place, (axis, length) in enumerate(reversed(axes)):
        value = _along(at, value, axis, length, onesided=not place)
    return value


@translates("IRDFT")
def transform_to_real(at: Site) -> ir.Value:
    """Complex numbers, of which those that mirror others are left out at the last axis, to real."""
    value = at.inputs[0]
    *others, (last, length) = _lengths(at, at.rank(0) - 1)
    for axis, size in others:
        value = _along(at, value, axis, size, inverse=True)
    one, two, along = (at.const([number], np.int64) for number in (1, 2, last))
    if length is None:
        fewer = at.emit("Sub", at.size(value, last), one)
        length = at.emit("Mul", fewer, two)
    half = at.emit("Add", at.emit("Div", length, two), one)
    value = _resized(at, value, last, half)
    mirror = at.emit("Div", at.emit("Add", length, one), two)
    inner = at.emit("Slice", value, one, mirror, along)
    signs = at.const([1.0, -1.0], at.dtype(0))
    conjugate = at.emit("Mul", at.reversed(inner, last), signs)
    whole = at.emit("Concat", value, conjugate, axis=last)
    found = _along(at, whole, last, None, inverse=True)
    return at.emit("Gather", found, at.const(0, np.int64), axis=-1)


@translates("STFT")
def short_time_transform(at: Site) -> ir.Value:
    """Real signals to the complex numbers of frames, without those that mirror others."""
    signal, window, is_row = at.inputs[0], at.inputs[1], at.rank(0) == 1
    size, step = (at.emit("Reshape", at.row(index), at.const([], np.int64)) for index in (2, 3))
    zero, two = at.const([0], np.int64), at.const([2], np.int64)
    missing = at.emit("Sub", at.row(2), at.size(window, 0))
    before = at.emit("Div", missing, two)
    pads = at.emit("Concat", before, at.emit("Sub", missing, before), axis=0)
    window = at.emit("Pad", window, pads)
    if is_row:
        signal = at.emit("Unsqueeze", signal, zero)
    signal = at.emit("Unsqueeze", signal, two)
    found = at.emit("STFT", signal, step, window, size, onesided=1)
    if at.flag("transpose_frames"):
        found = at.emit("Transpose", found, perm=[0, 2, 1, 3])
    return at.emit("Squeeze", found, zero) if is_row else found


def _lengths(at: Site, rank: int) -> list[tuple[int, ir.Value | None]]:
    """Axes and to which lengths they are cut or filled up; -1 leaves one as it is."""
    axes = at.axes(1, rank)
    sizes = at.axes(2) if at.has(2) else [-1] * len(axes)
    rows = [None if size == -1 else at.const([size], np.int64) for size in sizes]
    return list(zip(axes, rows, strict=True))


def _resized(at: Site, value: ir.Value, axis: int, length: ir.Value) -> ir.Value:
    """Cut off, or filled up with zeros, at the end of an axis."""
    along, zero = at.const([axis], np.int64), at.const([0], np.int64)
    missing = at.emit("Max", at.emit("Sub", length, at.size(value, axis)), zero)
    pads = at.emit("Concat", zero, missing, axis=0)
    return at.emit("Slice", at.emit("Pad", value, pads, None, along), zero, length, along)


def _along(
    at: Site,
    value: ir.Value,
    axis: int,
    length: ir.Value | None,
    inverse: bool = False,
    onesided: bool = False,
) -> ir.Value:
    if length is not None:
        length = at.emit("Reshape", length, at.const([], np.int64))
    place = at.const(axis, np.int64)
    flags = {"inverse": int(inverse), "onesided": int(onesided)}
    return at.emit("DFT", value, length, place, **flags)

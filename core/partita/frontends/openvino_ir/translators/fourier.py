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
    if length is None:
        fewer = at.emit("Sub", at.size(value, last), at.const([1], np.int64))
        length = at.emit("Mul", fewer, at.const([2], np.int64))
    return _mirrored(at, value, last, length)


def _mirrored(at: Site, value: ir.Value, axis: int, length: ir.Value) -> ir.Value:
    """So many real numbers of complex ones; those that mirror others are left out."""
    one, two, along = (at.const([number], np.int64) for number in (1, 2, axis))
    half = at.emit("Add", at.emit("Div", length, two), one)
    value = _resized(at, value, axis, half)
    mirror = at.emit("Div", at.emit("Add", length, one), two)
    inner = at.emit("Slice", value, one, mirror, along)
    signs = at.const([1.0, -1.0], at.dtype(0))
    conjugate = at.emit("Mul", at.reversed(inner, axis), signs)
    whole = at.emit("Concat", value, conjugate, axis=axis)
    found = _along(at, whole, axis, None, inverse=True)
    return at.emit("Gather", found, at.const(0, np.int64), axis=-1)


@translates("STFT")
def short_time_transform(at: Site) -> ir.Value:
    """Real signals to the complex numbers of frames, without those that mirror others."""
    signal, window, is_row = at.inputs[0], at.inputs[1], at.rank(0) == 1
    size, step = (at.emit("Reshape", at.row(index), at.const([], np.int64)) for index in (2, 3))
    zero, two = at.const([0], np.int64), at.const([2], np.int64)
    window = _in_the_middle(at, window, at.row(2))
    if is_row:
        signal = at.emit("Unsqueeze", signal, zero)
    signal = at.emit("Unsqueeze", signal, two)
    found = at.emit("STFT", signal, step, window, size, onesided=1)
    if at.flag("transpose_frames"):
        found = at.emit("Transpose", found, perm=[0, 2, 1, 3])
    return at.emit("Squeeze", found, zero) if is_row else found


@translates("ISTFT")
def inverse_short_time_transform(at: Site) -> ir.Value:
    """The complex numbers of frames to a real signal.

    Frames are weighted by the window and added up, and divided by the sum of their squared windows:
    the signal whose frames are the nearest ones (Griffin and Lim, "Signal Estimation from Modified
    Short-Time Fourier Transform", 1984, equation 6).
    """
    given, size, step = at.inputs[0], at.row(2), at.row(3)
    zero, one = at.const([0], np.int64), at.const([1], np.int64)
    is_row = at.rank(0) == 3
    if is_row:
        given = at.emit("Unsqueeze", given, zero)
    frames = _mirrored(at, at.emit("Transpose", given, perm=[0, 2, 1, 3]), 2, size)
    if at.flag("normalized"):
        frames = at.emit("Mul", frames, at.emit("Sqrt", at.emit("CastLike", size, frames)))
    window = _in_the_middle(at, at.inputs[1], size)
    squares = at.emit("Unsqueeze", at.emit("Mul", window, window), zero)
    squares = at.emit("Expand", squares, at.emit("Shape", frames, start=1, end=3))
    covered = _overlapping(at, at.emit("Unsqueeze", squares, zero), step)
    added = _overlapping(at, at.emit("Mul", frames, window), step)
    is_empty = at.emit("Equal", covered, at.like(0))
    signal = at.emit("Div", added, at.emit("Where", is_empty, at.like(1), covered))
    length = at.size(signal, 1)
    if at.flag("center"):
        margin = at.emit("Div", size, at.const([2], np.int64))
        signal = at.emit("Slice", signal, margin, length, one)
        length = at.emit("Sub", at.size(signal, 1), margin)  # as OpenVINO counts odd frames, too
    signal = _resized(at, signal, 1, at.row(4) if at.has(4) else length)
    return at.emit("Squeeze", signal, zero) if is_row else signal


def _overlapping(at: Site, frames: ir.Value, step: ir.Value) -> ir.Value:
    """The sum of frames, (rows, frames, size), of which each begins a step behind another."""
    count, size = at.size(frames, 1), at.size(frames, 2)
    one, row = at.const([1], np.int64), at.const([-1], np.int64)
    starts = at.emit("Unsqueeze", at.emit("Mul", at.counting(count), step), one)
    places = at.emit("Reshape", at.emit("Add", starts, at.counting(size)), row)
    rows = at.size(frames, 0)
    updates = at.emit("Reshape", frames, at.emit("Concat", rows, row, axis=0))
    length = at.emit("Add", at.emit("Mul", at.emit("Sub", count, one), step), size)
    nothing = at.emit("Expand", at.like(0), at.emit("Concat", rows, length, axis=0))
    places = at.emit("Expand", places, at.emit("Shape", updates))
    return at.emit("ScatterElements", nothing, places, updates, axis=1, reduction="add")


def _in_the_middle(at: Site, window: ir.Value, size: ir.Value) -> ir.Value:
    """A window with zeros before and behind it, up to the size of a frame."""
    missing = at.emit("Sub", size, at.size(window, 0))
    before = at.emit("Div", missing, at.const([2], np.int64))
    pads = at.emit("Concat", before, at.emit("Sub", missing, before), axis=0)
    return at.emit("Pad", window, pads)


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
    """The Fourier transform along one axis.

    Args:
        at: Where the operation is translated.
        value: Complex or real numbers (..., 1 or 2).
        axis: The axis.
        length: So many elements are transformed, cut off or filled up with zeros; None for all
            there are.
        inverse: Whether the transform is the inverse one.
        onesided: Whether the half of the spectrum is left out that mirrors the other.
    """
    if length is not None:
        length = at.emit("Reshape", length, at.const([], np.int64))
    place = at.const(axis, np.int64)
    flags = {"inverse": int(inverse), "onesided": int(onesided)}
    return at.emit("DFT", value, length, place, **flags)

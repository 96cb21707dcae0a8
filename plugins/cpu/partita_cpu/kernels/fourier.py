"""DFT and STFT by scipy's pocketfft, which takes any length and releases the GIL; mel bands."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.fourier import dft_axis, resolve_dft, resolve_stft
from partita_cpu.kernels.elementwise.cast import emit_cast, onnx_dtype
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, INDICES, kernel

Transform = Callable[..., Array]
"""Called as ``transform(numbers, length)``: along the last dimension."""

_PIECE = 1 << 17
"""Numbers that are transformed at once: in cache, and many to one call."""

_OPERATIONS = 16
"""Elementary ones for each number of a result, about."""


@kernel("DFT", dtypes={0: ALL_FLOATS, 1: INDICES, 2: INDICES})
@through_float32
def dft(
    b: Builder,
    node: Node,
    x: Operand,
    length: Operand | None = None,
    axis: Operand | None = None,
) -> Operand:
    """Along any axis, of real and complex numbers, either way, of all frequencies and of half."""
    along = dft_axis(node, None if axis is None else int(b.value(axis).item()))
    found = resolve_dft(node, x.shape, _number(b, length), along)
    y = b.empty(found.shape, x.dtype)
    if y.size:
        before, behind = math.prod(x.shape[: found.axis]), math.prod(x.shape[found.axis + 1 : -1])
        b.call(
            transform_lines,
            _transform(node, x.shape[-1] == 1),
            b.view(x, (before, x.shape[found.axis], behind, x.shape[-1])),
            b.view(y, (before, y.shape[found.axis], behind, y.shape[-1])),
            found.length,
            work=_OPERATIONS * y.size,
            exec_type="scipy",
        )
    return y


@kernel("STFT", dtypes={0: ALL_FLOATS, 1: INDICES, 2: ALL_FLOATS, 3: INDICES})
@through_float32
def stft(
    b: Builder,
    node: Node,
    signal: Operand,
    step: Operand,
    window: Operand | None = None,
    length: Operand | None = None,
) -> Operand:
    """Of real and complex signals; real ones may come without a last dimension."""
    size = None if window is None else window.size
    found = resolve_stft(node, signal.shape, b.value(step).item(), size, _number(b, length))
    y = b.empty(found.shape, signal.dtype)
    parts = signal.shape[2] if signal.ndim == 3 else 1
    if y.size:
        b.call(
            transform_frames,
            _transform(node, parts == 1),
            b.view(signal, (*signal.shape[:2], parts)),
            window,
            y,
            found.step,
            found.length,
            work=_OPERATIONS * y.size,
            exec_type="scipy",
        )
    return y


@kernel(
    "MelWeightMatrix", dtypes={0: INDICES, 1: INDICES, 2: INDICES, 3: ALL_FLOATS, 4: ALL_FLOATS}
)
def mel_weights(
    b: Builder,
    node: Node,
    bands: Operand,
    length: Operand,
    rate: Operand,
    lower: Operand,
    upper: Operand,
) -> Operand:
    """Frequencies of a transform by bands of the mel scale, whatever type is asked for."""
    count, points, samples = (b.value(x).item() for x in (bands, length, rate))
    edges = [float(b.value(x).item()) for x in (lower, upper)]
    if count < 0 or points < 0 or samples < 1 or not all(-700 < edge < math.inf for edge in edges):
        raise OperandError(
            f"Operation '{node.name}' (MelWeightMatrix) makes {count} bands from {edges[0]} to "
            f"{edges[1]} Hz of {points} points at {samples} samples a second; numbers are not to "
            "be negative, the rate at least 1, edges above -700 and finite."
        )
    y = b.empty((points // 2 + 1, count), np.float64)
    if y.size:
        b.call_numpy(fill_mel_weights, y, points, samples, *edges)
    return emit_cast(b, y, onnx_dtype(node.attrs.get("output_datatype", 1)))


def fill_mel_weights(y: Array, length: int, rate: int, lower: float, upper: float) -> None:
    """Writes triangles of height 1, one in each column, which meet at steps of the mel scale.

    Args:
        y: Frequencies by bands.
        length: Points of the transform.
        rate: Samples a second.
        lower: Where the first triangle begins, in Hertz.
        upper: Near where the last one ends.
    """
    low, high = (2595 * np.log1p(edge / 700) / np.log(10) for edge in (lower, upper))
    places = np.arange(y.shape[1] + 2)
    mels = places * ((high - low) / places.size) + low
    hertz = 700 * np.expm1(mels / 2595 * np.log(10))
    ends = (length + 1) * hertz // rate
    left, peak, right = ends[:-2], ends[1:-1], ends[2:]
    up, down = np.maximum(peak - left, 1), np.maximum(right - peak, 1)
    rows = max(1, _PIECE // y.shape[1])
    for first in range(0, y.shape[0], rows):
        block = y[first : first + rows]
        row = np.arange(first, first + block.shape[0])[:, None]
        sides = np.where(row < peak, (row - left) / up, (right - row) / down)
        block[...] = np.where(row == peak, 1, np.maximum(sides, 0))


def _number(b: Builder, x: Operand | None) -> int | None:
    """The one element of an input that may be left out."""
    found: int | None = None if x is None else b.value(x).item()
    return found


def _transform(node: Node, real: bool) -> Transform:
    """The function for a node; where it computes more frequencies, the first ones are due."""
    from scipy import fft

    onesided = node.attrs.get("onesided", int(node.op_type == "STFT"))
    if node.attrs.get("inverse", 0):
        found: Transform = fft.irfft if onesided else fft.ifft
    else:
        found = fft.rfft if onesided and real else fft.fft
    return found


def transform_lines(
    transform: Transform, x: Array, y: Array, length: int, tid: int, nt: int
) -> None:
    """Transforms along the second of four dimensions.

    Args:
        transform: The transform.
        x: (before, samples, behind, parts of a sample: 1, or 2 if it is complex).
        y: (before, frequencies or samples, behind, parts), which is written.
        length: Samples that are transformed: fewer are filled up by zeros, more are cut off. Of a
            transform back to real numbers, how many these are.
        tid: This thread.
        nt: All threads; they share the lines.
    """
    lines, results = (np.moveaxis(_numbers(array), 1, 2) for array in (x, y))
    _transform_share(transform, lines, None, results, length, tid, nt)


def transform_frames(
    transform: Transform,
    signal: Array,
    window: Array | None,
    y: Array,
    step: int,
    length: int,
    tid: int,
    nt: int,
) -> None:
    """Transforms frames of a signal, each sample times that of a window if there is one.

    Args:
        transform: The transform.
        signal: Batch, samples, parts of a sample.
        window: ``length`` factors, or ``None``.
        y: Batch, frames, frequencies, 2.
        step: From one frame to the next.
        length: Of a frame; no more than there are samples.
        tid: This thread.
        nt: All threads.
    """
    frames = np.lib.stride_tricks.sliding_window_view(_numbers(signal), length, axis=1)
    step = min(step, frames.shape[1])  # so that strides are numbers of 64 bits
    _transform_share(transform, frames[:, ::step], window, _numbers(y), length, tid, nt)


def _numbers(x: Array) -> Array:
    """The same memory with parts of numbers, in the last dimension, as complex or real numbers."""
    if x.shape[-1] == 2:
        x = x.view(np.complex64 if x.dtype == np.float32 else np.complex128)
    return x[..., 0]


def _transform_share(
    transform: Transform,
    lines: Array,
    window: Array | None,
    results: Array,
    length: int,
    tid: int,
    nt: int,
) -> None:
    """Transforms the lines of a share, a piece at a time; shares are of the longer dimension.

    Args:
        transform: The transform of lines.
        lines: (few or many, likewise, element).
        window: Factors of the elements; None for ones.
        results: Gets the transforms, as many bins of each as it holds.
        length: Elements that are transformed.
        tid: This thread.
        nt: All threads.
    """
    if lines.shape[0] > lines.shape[1]:
        lines, results = lines.swapaxes(0, 1), results.swapaxes(0, 1)
    few, many, _ = lines.shape
    count = max(1, _PIECE // (few * length))
    end, bins = many * (tid + 1) // nt, results.shape[2]
    for first in range(many * tid // nt, end, count):
        last = min(first + count, end)
        piece = lines[:, first:last]
        if window is not None:
            piece = piece * window
        results[:, first:last] = transform(piece, length)[..., :bins]

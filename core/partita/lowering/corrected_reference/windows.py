"""Operators over windows, where ``onnx.reference`` misreads or fails on some attributes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv_transpose import ConvTranspose as OriginalConvTranspose

from partita.lowering.corrected_reference.element_types import lowest

Array = np.ndarray[Any, Any]


class ConvTranspose(OriginalConvTranspose):
    """The original reshapes wrongly if there are groups; here each is computed on its own.

    Where an output of a given size, or of that of ``auto_pad``, needs no pads, it takes some in
    front. Of no images it fails.
    """

    def _run(self, *inputs: Any, group: int | None = None, **given: Any) -> tuple[Array]:
        x, w, b = (*inputs, None)[:3]
        images = len(x)
        x = x if images else np.zeros((1, *x.shape[1:]), x.dtype)
        same = given.get("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
        if same or given.get("output_shape"):
            given |= {"pads": _pads_of(x.shape, w.shape, given), "output_shape": None}
            given["auto_pad"] = "NOTSET"
        count = group or 1
        slices, weights = np.split(x, count, axis=1), np.split(w, count)
        biases = [None] * count if b is None else np.split(b, count)
        parts = [
            super(ConvTranspose, self)._run(*part, group=1, **given)[0]  # type: ignore[no-untyped-call]  # onnx
            for part in zip(slices, weights, biases, strict=True)
        ]
        return (np.concatenate(parts, axis=1)[:images],)


def _pads_of(shape: Sequence[int], kernel: Sequence[int], given: dict[str, Any]) -> list[int]:
    """The pads that a transposed convolution takes off for its ``output_shape`` or ``auto_pad``.

    None are taken off where the output has no more elements than are due. Those that are missing
    in a given shape are added behind; without one the output stays smaller than ``auto_pad``
    makes it in ONNX's text, as ONNX's inference and onnxruntime have it.
    """
    rank = len(shape) - 2
    steps, gaps = (given.get(key) or [1] * rank for key in ("strides", "dilations"))
    more = given.get("output_padding") or [0] * rank
    wanted = given.get("output_shape")
    first, last = [], []
    for axis in range(rank):
        extent = (kernel[axis + 2] - 1) * gaps[axis] + 1
        full = steps[axis] * (shape[axis + 2] - 1) + more[axis] + extent
        due = wanted[axis - rank] if wanted else shape[axis + 2] * steps[axis]
        total = max(0, full - due)
        upper = given.get("auto_pad") == "SAME_UPPER"
        first.append(total // 2 if upper else total - total // 2)
        last.append((full - due if wanted else total) - first[axis])
    return first + last


@dataclass(frozen=True)
class _Windows:
    """Where the windows of a pool lie; each field has a number per spatial axis.

    Attributes:
        size: Of the input.
        kernel: Elements of a window.
        step: From one window to the next.
        gap: From one element of a window to the next.
        before: Padding in front of the input.
        after: Padding behind it.
        count: Windows.
    """

    size: Sequence[int]
    kernel: Sequence[int]
    step: Sequence[int]
    gap: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]
    count: Sequence[int]

    @property
    def places(self) -> list[Array]:
        """Of each axis where its windows (rows) have their elements (columns) in the input."""
        return [
            np.arange(count)[:, None] * step + np.arange(taps) * gap - before
            for count, step, taps, gap, before in zip(
                self.count, self.step, self.kernel, self.gap, self.before, strict=True
            )
        ]

    def taps(self) -> Iterator[tuple[tuple[Any, ...], Array]]:
        """For one element of all windows after another: an index into the input, and a mask.

        The mask tells the windows whose element lies on the input; the index is within it.
        """
        places, axes = self.places, range(len(self.size))
        for tap in itertools.product(*(range(taps) for taps in self.kernel)):
            at = np.ix_(*(places[axis][:, tap[axis]] for axis in axes))
            inside = np.ones(self.count, bool)
            for place, size in zip(at, self.size, strict=True):
                inside &= (place >= 0) & (place < size)
            yield tuple(np.clip(p, 0, n - 1) for p, n in zip(at, self.size, strict=True)), inside

    def elements(self, include_padding: bool) -> Array:
        """How many elements each window has on the input, or on that and the padding.

        What the last window of ``ceil_mode`` has behind the padding is no element.
        """
        along = []
        for place, size, after in zip(self.places, self.size, self.after, strict=True):
            counts = place < size + after if include_padding else (place >= 0) & (place < size)
            along.append(counts.sum(axis=1))
        return np.asarray(functools.reduce(np.multiply.outer, along))


def _windows(
    shape: Sequence[int],
    kernel_shape: Sequence[int] = (),
    auto_pad: str | None = None,
    ceil_mode: int | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> _Windows:
    """The windows of a pool by its attributes, of an input of a shape.

    One that is larger than the padded input by less than a step is there once, as ONNX's
    inference and onnxruntime count, and sees what there is.

    Args:
        shape: Of the input (N, C, ...).
        kernel_shape: As in ONNX.
        auto_pad: As in ONNX.
        ceil_mode: As in ONNX.
        dilations: As in ONNX.
        pads: As in ONNX.
        strides: As in ONNX.
    """
    sizes, rank = shape[2:], len(shape) - 2
    steps, gaps = strides or [1] * rank, dilations or [1] * rank
    explicit = (pads or [0] * 2 * rank) if auto_pad in (None, "", "NOTSET") else [0] * 2 * rank
    before, after, counts = [], [], []
    for axis, (size, taps, step) in enumerate(zip(sizes, kernel_shape, steps, strict=True)):
        extent = (taps - 1) * gaps[axis] + 1
        first, last = explicit[axis], explicit[rank + axis]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            count = -(-size // step)
            total = max(0, (count - 1) * step + extent - size)
            first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            last = total - first
        else:
            room = size + first + last - extent
            count = (-(-room // step) if ceil_mode or room < 0 else room // step) + 1
            if ceil_mode and (count - 1) * step >= size + first:
                count -= 1  # the last window must start within the input or the padding before it
        before.append(first)
        after.append(last)
        counts.append(count)
    return _Windows(sizes, kernel_shape, steps, gaps, before, after, counts)


class AveragePool(OpRun):
    """The original counts its windows otherwise where they are dilated, larger or uneven.

    With ``auto_pad`` it takes no notice of dilations, it counts no window larger than the padded
    input, and what ``ceil_mode`` needs behind the padding it takes in halves from both sides.
    """

    def _run(self, x: Array, count_include_pad: int | None = None, **given: Any) -> tuple[Array]:
        windows = _windows(x.shape, **given)
        total = np.zeros((*x.shape[:2], *windows.count), x.dtype)
        for index, inside in windows.taps():
            total += np.where(inside, x[(..., *index)], x.dtype.type(0))
        elements = windows.elements(bool(count_include_pad))
        return ((total / np.maximum(elements, 1)).astype(x.dtype),)


class LpPool(OpRun):
    """The original takes the mean of :class:`AveragePool`'s original times the kernel's size."""

    def _run(self, x: Array, p: float | None = None, **given: Any) -> tuple[Array]:
        power = 2 if p is None else p
        windows = _windows(x.shape, **given)
        total = np.zeros((*x.shape[:2], *windows.count), x.dtype)
        for index, inside in windows.taps():
            total += np.where(inside, np.abs(x[(..., *index)]) ** power, x.dtype.type(0))
        return ((total ** (1 / power)).astype(x.dtype),)


class GlobalMaxPool(OpRun):
    """The original takes the wrong axes unless there are two spatial ones (onnx 1.18 to 1.23)."""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):
    """The original is missing."""

    def _run(self, x: Array, p: int | None = 2) -> tuple[Array]:
        power = 2 if p is None else p
        sums = np.sum(np.abs(x) ** power, axis=tuple(range(2, x.ndim)), keepdims=True)
        return ((sums ** (1 / power)).astype(x.dtype),)


class MaxPool(OpRun):
    """The original fails on some uneven paddings, and counts no window larger than the input."""

    def _run(self, x: Array, storage_order: int | None = None, **given: Any) -> tuple[Array, Array]:
        windows, spatial = _windows(x.shape, **given), x.shape[2:]
        best = np.full((*x.shape[:2], *windows.count), lowest(x.dtype), x.dtype)
        where = np.full(best.shape, -1, np.int64)
        order: Any = "F" if storage_order else "C"
        places = np.arange(math.prod(spatial)).reshape(spatial, order=order)
        images = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(spatial))
        for index, inside in windows.taps():
            values = x[(..., *index)]
            better = inside & ((values > best) | (where < 0) | (np.isnan(values) & ~np.isnan(best)))
            best = np.where(better, values, best)
            where = np.where(better, places[index] + images * places.size, where)
        return best, where


class LRN(OpRun):
    """The original runs over the batch where it should run over the channels."""

    def _run(
        self,
        x: Array,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float | None = None,
        size: int = 1,
    ) -> tuple[Array]:
        alpha = float(np.float32(1e-4) if alpha is None else alpha)
        beta = 0.75 if beta is None else beta
        bias = 1.0 if bias is None else bias
        squares = x.astype(np.float64) ** 2
        sums = np.zeros_like(squares)
        channels = x.shape[1]
        for offset in range(-((size - 1) // 2), size // 2 + 1):
            low, high = max(0, -offset), min(channels, channels - offset)
            if low < high:
                sums[:, low:high] += squares[:, low + offset : high + offset]
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)

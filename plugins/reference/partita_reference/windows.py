"""Operators over windows, where ``onnx.reference`` fails on some attributes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19 as OriginalAveragePool
from onnx.reference.ops.op_conv_transpose import ConvTranspose as OriginalConvTranspose
from onnx.reference.ops.op_lp_pool import LpPool as OriginalLpPool

from partita_reference.element_types import lowest

Array = np.ndarray[Any, Any]


class ConvTranspose(OriginalConvTranspose):
    """The original reshapes wrongly if there are groups; here each is computed on its own."""

    def _run(self, *inputs: Any, group: int | None = None, **given: Any) -> tuple[Array]:
        x, w, b = (*inputs, None)[:3]
        if given.get("output_shape"):
            given |= {"pads": _pads_of(x.shape, w.shape, given), "output_shape": None}
            given["auto_pad"] = "NOTSET"
        count = group or 1
        slices, weights = np.split(x, count, axis=1), np.split(w, count)
        biases = [None] * count if b is None else np.split(b, count)
        parts = [
            super(ConvTranspose, self)._run(*part, group=1, **given)[0]  # type: ignore[no-untyped-call]  # onnx
            for part in zip(slices, weights, biases, strict=True)
        ]
        return (np.concatenate(parts, axis=1),)


def _pads_of(shape: Sequence[int], kernel: Sequence[int], given: dict[str, Any]) -> list[int]:
    """The pads that make a transposed convolution's output as large as ``output_shape``."""
    rank = len(shape) - 2
    steps, gaps = (given.get(key) or [1] * rank for key in ("strides", "dilations"))
    more = given.get("output_padding") or [0] * rank
    sizes = given["output_shape"][-rank:]
    first, last = [], []
    for axis in range(rank):
        extent = (kernel[axis + 2] - 1) * gaps[axis] + 1
        total = steps[axis] * (shape[axis + 2] - 1) + more[axis] + extent - sizes[axis]
        less = total // 2
        upper = given.get("auto_pad") == "SAME_UPPER"
        first.append(less if upper else total - less)
        last.append(total - less if upper else less)
    return first + last


def _fitting(shape: Sequence[int], given: dict[str, Any]) -> dict[str, Any]:
    """A pool's attributes with windows that are no larger than the padded input.

    One that is larger by less than a stride is there once, as ONNX's inference and onnxruntime
    count, and sees what there is; the original counts none.
    """
    kernel, rank = list(given["kernel_shape"]), len(shape) - 2
    if given.get("auto_pad") in ("SAME_UPPER", "SAME_LOWER"):
        return given
    steps, gaps = (list(given.get(key) or [1] * rank) for key in ("strides", "dilations"))
    pads = given.get("pads") if given.get("auto_pad") != "VALID" else None
    for axis, size in enumerate(shape[2:]):
        padded = size + (pads[axis] + pads[rank + axis] if pads else 0)
        room = padded - ((kernel[axis] - 1) * gaps[axis] + 1)
        if padded > 0 and -steps[axis] < room < 0:
            kernel[axis] = (padded - 1) // gaps[axis] + 1
            steps[axis] = max(steps[axis], padded)
    return {**given, "kernel_shape": kernel, "strides": steps}


class AveragePool(OriginalAveragePool):
    """The original counts no window larger than the padded input, and takes NaN for padding."""

    def _run(self, x: Array, **given: Any) -> tuple[Array]:  # type: ignore[override]  # onnx names each
        fitting = _fitting(x.shape, given)
        (means,) = super()._run(x, **fitting)  # type: ignore[no-untyped-call]  # onnx
        lost = np.isnan(x)
        if lost.any():
            (seen,) = super()._run(lost.astype(np.float32), **fitting)  # type: ignore[no-untyped-call]  # onnx
            means = np.where(seen > 0, np.asarray(np.nan, x.dtype), means)
        return (means,)


class LpPool(OriginalLpPool):
    """The original counts no window where one is larger than the padded input."""

    def _run(self, *inputs: Any, **given: Any) -> Any:
        return super()._run(*inputs, **_fitting(inputs[0].shape, given))  # type: ignore[no-untyped-call]  # onnx


class GlobalLpPool(OpRun):
    """The original is missing."""

    def _run(self, x: Array, p: int | None = 2) -> tuple[Array]:
        power = 2 if p is None else p
        sums = np.sum(np.abs(x) ** power, axis=tuple(range(2, x.ndim)), keepdims=True)
        return ((sums ** (1 / power)).astype(x.dtype),)


class MaxPool(OpRun):
    """The original fails on some uneven paddings, and counts no window larger than the input."""

    def _run(
        self,
        x: Array,
        kernel_shape: Sequence[int] = (),
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array, ...]:
        rank = x.ndim - 2
        given = {"kernel_shape": kernel_shape, "auto_pad": auto_pad, "pads": pads}
        fitting = _fitting(x.shape, {**given, "strides": strides, "dilations": dilations})
        kernel_shape, strides = fitting["kernel_shape"], fitting["strides"]
        steps, gaps = strides or [1] * rank, dilations or [1] * rank
        extents = [(k - 1) * d + 1 for k, d in zip(kernel_shape, gaps, strict=True)]
        sizes, before = [], []
        for axis, (size, extent, step) in enumerate(zip(x.shape[2:], extents, steps, strict=True)):
            first, last = (pads[axis], pads[rank + axis]) if pads else (0, 0)
            if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                total = max(0, (math.ceil(size / step) - 1) * step + extent - size)
                first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
                last = total - first
            span = size + first + last - extent
            count = (math.ceil(span / step) if ceil_mode else span // step) + 1
            if ceil_mode and (count - 1) * step >= size + first:
                count -= 1  # the last window must start within the input or the padding before it
            sizes.append(count)
            before.append(first)
        return self._reduce(x, kernel_shape, steps, gaps, sizes, before, storage_order or 0)

    def _reduce(
        self,
        x: Array,
        kernel: Sequence[int],
        steps: Sequence[int],
        gaps: Sequence[int],
        sizes: Sequence[int],
        before: Sequence[int],
        column_major: int,
    ) -> tuple[Array, Array]:
        """The maxima and where they are, one tap of the window after another."""
        spatial = x.shape[2:]
        best = np.full((*x.shape[:2], *sizes), lowest(x.dtype), x.dtype)
        where = np.full(best.shape, -1, np.int64)
        places = np.arange(math.prod(spatial)).reshape(spatial, order="F" if column_major else "C")
        images = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(spatial))
        for tap in itertools.product(*(range(k) for k in kernel)):
            source, inside = [], np.ones(sizes, bool)
            for axis, (offset, size) in enumerate(zip(tap, spatial, strict=True)):
                at = np.arange(sizes[axis]) * steps[axis] + offset * gaps[axis] - before[axis]
                shape = [-1 if i == axis else 1 for i in range(len(sizes))]
                inside &= ((at >= 0) & (at < size)).reshape(shape)
                source.append(np.clip(at, 0, size - 1))
            index: tuple[Any, ...] = np.ix_(*source)
            values = x[(..., *index)]
            better = inside & ((values > best) | (where < 0) | (np.isnan(values) & ~np.isnan(best)))
            best = np.where(better, values, best)
            where = np.where(better, places[index] + images * places.size, where)
        return best, where

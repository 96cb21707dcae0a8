"""Operators that move elements, where ``onnx.reference`` leaves out what ONNX allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_split import Split_18 as OriginalSplit

Array = np.ndarray[Any, Any]


class Unsqueeze(OpRun):
    """The original inserts the axes one by one, in the order in which they are given."""

    before = 13

    def _run(self, x: Array, axes: Sequence[int] | None = None) -> tuple[Array]:
        return (np.expand_dims(x, tuple(axes or ())),)


class Flatten(OpRun):
    """The original asks numpy to find the size beside a size of 0."""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        first = 1 if axis is None else axis
        if first < 0:
            first += x.ndim
        return (x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:])),)


class Pad(OpRun):
    """The original refuses negative pads, which take elements away."""

    def _run(
        self,
        data: Array,
        pads: Sequence[int] | None = None,
        constant_value: Array | None = None,
        axes: Sequence[int] | None = None,
        mode: Any = None,
        value: float | None = None,
        paddings: Sequence[int] | None = None,
    ) -> tuple[Array]:
        given = [int(p) for p in (paddings if pads is None else pads)]  # type: ignore[union-attr]  # one of them is there
        chosen = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in axes]
        _check_distinct(chosen)
        if len(given) != 2 * len(chosen):
            raise ValueError(f"{len(given)} pads for {len(chosen)} axes; expected two per axis.")
        widths, kept = [(0, 0)] * data.ndim, [slice(None)] * data.ndim
        for axis, before, after in zip(chosen, given, given[len(chosen) :], strict=False):
            size = data.shape[axis]
            if size + before + after < 0:
                raise ValueError(f"Pads {before} and {after} take away more than {size} elements.")
            kept[axis] = slice(-min(0, before), max(0, size + min(0, after)))
            rest = len(range(size)[kept[axis]])
            first = min(max(0, before), size + before + after)
            widths[axis] = (first, size + before + after - rest - first)
        cut = data[tuple(kept)]
        name: Any = mode or "constant"
        if name != "constant":
            return (np.pad(cut, widths, mode=name),)
        fill: Any = value if constant_value is None else np.asarray(constant_value).reshape(())
        if fill is None:
            fill = "" if data.dtype.kind in "OUS" else 0
        result = np.full(_padded(cut.shape, widths), fill, data.dtype)
        inside = tuple(slice(b, b + n) for (b, _), n in zip(widths, cut.shape, strict=True))
        result[inside] = cut
        return (result,)


def _padded(shape: Sequence[int], widths: Sequence[tuple[int, int]]) -> list[int]:
    return [before + n + after for n, (before, after) in zip(shape, widths, strict=True)]


class Unique(OpRun):
    """The original takes rows where elements are due if the order is to be that of the input."""

    def _run(self, x: Array, axis: int | None = None, sorted: int | None = 1) -> tuple[Array, ...]:
        values = x.reshape(-1) if axis is None else x
        if values.dtype == np.object_:
            values = values.astype(np.str_)  # numpy compares no rows of objects
        along = 0 if axis is None else int(axis) % x.ndim
        _, first, inverse, counts = np.unique(
            values, return_index=True, return_inverse=True, return_counts=True, axis=along
        )
        order = np.arange(len(first)) if sorted else np.argsort(first)
        place = np.argsort(order)
        results = (
            np.take(values, first[order], axis=along).astype(x.dtype),
            first[order].astype(np.int64),
            place[inverse.reshape(-1)].astype(np.int64),
            counts[order].astype(np.int64),
        )
        return results[: len(self.onnx_node.output)]


class Split(OriginalSplit):
    """The original cuts off what its input has no elements for, and leaves out what is beyond."""

    def _run(
        self, mat: Array, split: Any = None, axis: Any = None, num_outputs: Any = None
    ) -> tuple[Array, ...]:
        size = mat.shape[axis or 0]
        if split is not None and (np.min(split, initial=0) < 0 or sum(split) != size):
            sizes = [int(part) for part in split]
            raise ValueError(f"Parts of {sizes} are not the {size} elements of axis {axis or 0}.")
        original: Any = super()._run
        return tuple(original(mat, split, axis or 0, num_outputs))


class Slice(OpRun):
    """The original hands starts to Python, which reads those out of range otherwise."""

    def _run(
        self,
        data: Array,
        starts: Any = None,
        ends: Any = None,
        axes: Any = None,
        steps: Any = None,
    ) -> tuple[Array]:
        firsts, lasts = np.atleast_1d(starts).tolist(), np.atleast_1d(ends).tolist()
        chosen = None if axes is None or len(np.atleast_1d(axes)) == 0 else np.atleast_1d(axes)
        every = [1] * len(firsts) if steps is None else np.atleast_1d(steps).tolist()
        result = data
        places = range(len(firsts)) if chosen is None else (chosen % data.ndim).tolist()
        _check_distinct(places)
        for axis, first, last, step in zip(places, firsts, lasts, every, strict=True):
            picked = np.arange(*_bounds(data.shape[axis], first, last, step))
            result = np.take(result, picked, axis=axis)
        return (result,)


def _check_distinct(axes: Sequence[int]) -> None:
    """Refuses axes that are named twice; ONNX leaves open what becomes of them."""
    if len(set(axes)) < len(axes):
        raise ValueError(f"An axis is named twice: axes {list(axes)}.")


def _bounds(size: int, first: int, last: int, step: int) -> tuple[int, int, int]:
    """Start, end and step as ONNX clamps them; the end of a step back may be -1."""
    if step == 0:
        raise ValueError("A step of 0 has no end.")
    first, last = (n + size if n < 0 else n for n in (first, last))
    if step > 0:
        return min(max(first, 0), size), min(max(last, 0), size), step
    return min(max(first, 0), size - 1), min(max(last, -1), size - 1), step

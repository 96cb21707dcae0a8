"""DeformConv, which ``onnx.reference`` computes an element at a time and rounds to float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]
Ints = Sequence[int]


class DeformConv(OpRun):
    """The original rounds places to float32, and divides by 0 where an axis has one element."""

    def _run(
        self,
        x: Array,
        w: Array,
        offset: Array,
        b: Array | None = None,
        mask: Array | None = None,
        **given: Any,
    ) -> tuple[Array]:
        if x.ndim != 4:
            raise ValueError(f"an input of {x.ndim} dimensions; images of 4 are read")
        groups, parts = given.get("group") or 1, given.get("offset_group") or 1
        steps, gaps = (given.get(name) or [1, 1] for name in ("strides", "dilations"))
        pads = given.get("pads") or [0] * 4
        n, channels = x.shape[:2]
        outputs, out = w.shape[0], _out(x.shape[2:], w.shape[2:], steps, gaps, pads)
        kernel = w.shape[2:]
        # Offsets that belong to another shape are refused by the reshape.
        moves = offset.astype(np.float64).reshape(n, parts, *kernel, 2, *out)
        factors = np.ones((1,) * 6) if mask is None else mask.reshape(n, parts, *kernel, *out)
        places = [
            moves[:, :, :, :, axis] + _grid(axis, kernel[axis], out[axis], steps, gaps, pads)
            for axis in range(2)
        ]
        images = x.astype(np.float64).reshape(n, parts, -1, *x.shape[2:])
        columns = _interpolated(images, *places) * factors.astype(np.float64)[:, :, None]
        columns = columns.reshape(n, groups, channels // groups * kernel[0] * kernel[1], -1)
        weights = w.astype(np.float64).reshape(groups, outputs // groups, -1)
        y = (weights @ columns).reshape(n, outputs, *out)
        return ((y if b is None else y + b.reshape(-1, 1, 1)).astype(x.dtype),)


def _out(size: Ints, kernel: Ints, steps: Ints, gaps: Ints, pads: Ints) -> tuple[int, ...]:
    return tuple(
        (size[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * gaps[i] - 1) // steps[i] + 1
        for i in range(2)
    )


def _grid(axis: int, taps: int, count: int, steps: Ints, gaps: Ints, pads: Ints) -> Array:
    """Where each tap of each window lies along an axis before it is moved.

    Args:
        axis: 0 for down, 1 for across.
        taps: Of the kernel along the axis.
        count: Windows along the axis.
        steps: Strides, for each axis.
        gaps: Dilations, for each axis.
        pads: What is added before the first element, for each axis.
    """
    tap = np.arange(taps).reshape(-1, *(1,) * (3 - axis)) * gaps[axis]
    window = np.arange(count).reshape(-1, *(1,) * (1 - axis)) * steps[axis]
    return np.asarray(tap + window - pads[axis])


def _interpolated(images: Array, rows: Array, columns: Array) -> Array:
    """Images (N, parts, C, H, W) between four pixels, at places (N, parts, ...); 0 beside them."""
    n, parts = rows.shape[:2]
    padded = np.pad(images, [(0, 0)] * 3 + [(1, 2)] * 2)  # a place at the end has one behind it
    found = np.empty((n, parts, images.shape[2], *rows.shape[2:]))
    for image in range(n):
        for part in range(parts):
            corners, shares = [], []
            for place, size in zip((rows, columns), images.shape[3:], strict=True):
                at = np.clip(np.nan_to_num(place[image, part], nan=-1), -1, size)
                corners.append(np.floor(at).astype(np.int64) + 1)
                shares.append(at - np.floor(at))
            (top, left), (down, across) = corners, shares
            planes = padded[image, part]
            above = planes[:, top, left] * (1 - across) + planes[:, top, left + 1] * across
            below = planes[:, top + 1, left] * (1 - across) + planes[:, top + 1, left + 1] * across
            found[image, part] = above * (1 - down) + below * down
    return found

"""Regions of images that onnx.reference does not pool: MaxRoiPool.

Written from the operator's documentation, and from the paper that it is of (Fast R-CNN, 2015),
whose regions are whole pixels, the last ones included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]

MOST_PARTS = 1 << 22
"""Parts of all regions, which are looked at one by one."""


class MaxRoiPool(OpRun):
    """The largest element of each of as many parts of each region as are asked for."""

    def _run(
        self, x: Array, rois: Array, pooled_shape: Sequence[int] = (), spatial_scale: float = 1.0
    ) -> tuple[Array]:
        if len(rois) * math.prod(pooled_shape) > MOST_PARTS:
            raise ValueError(
                f"MaxRoiPool looks at {len(rois)} regions of {list(pooled_shape)} parts; up to "
                f"{MOST_PARTS} parts are taken"
            )
        with np.errstate(invalid="ignore"):  # what is no number is no pixel either
            images = rois[:, 0].astype(np.int64)
            scaled = rois[:, 1:].astype(np.float64) * spatial_scale
            corners = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled).astype(np.int64)
        if len(images) and not (images.min() >= 0 and images.max() < len(x)):
            raise ValueError(f"a region is of none of {len(x)} images")
        y = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
        for place, (image, (left, top, right, bottom)) in enumerate(
            zip(images, corners, strict=True)
        ):
            rows = _parts(top, bottom, pooled_shape[0], x.shape[2])
            columns = _parts(left, right, pooled_shape[1], x.shape[3])
            for i, high in enumerate(rows):
                for j, wide in enumerate(columns):
                    part = x[image, :, high, wide]
                    if part.size:
                        y[place, :, i, j] = part.max(axis=(1, 2))
        return (y,)


def _parts(first: int, last: int, count: int, size: int) -> list[slice]:
    """Parts of pixels from one to another, which may share some, as far as there are such."""
    length = max(int(last) - int(first) + 1, 1)
    ends = [
        (int(first) + i * length // count, int(first) - (-(i + 1) * length // count))
        for i in range(count)
    ]
    return [slice(*(min(max(end, 0), size) for end in both)) for both in ends]


REGIONS: list[type[OpRun]] = [MaxRoiPool]

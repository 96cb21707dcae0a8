"""Checks of kernels that read images between pixels; see ``kernel_checks``."""

from __future__ import annotations

import numpy as np

from partita.lowering import Array
from partita_opencl.trials.sample import FamilyChecks, Sample

SAMPLING_CHECKS = FamilyChecks()
"""By family."""


@SAMPLING_CHECKS.family
def _grid_sample(s: Sample) -> None:
    x = s.feed("x", s.numbers(1, 3, 5, 9))
    rows, columns = np.array([0.0, 1.5, 3.0, 4.0]), np.array([8.0, 2.5, 0.0])
    grid = np.stack(np.meshgrid(columns / 4.0 - 1.0, rows / 2.0 - 1.0), -1)
    s.feed("grid", grid.astype(np.float32)[None])
    over, aside = (np.floor(places).astype(int) for places in (rows, columns))
    lower = np.minimum(over + 1, 4)
    share = (rows - over)[:, None]
    lines = x[:, :, over] * (1.0 - share) + x[:, :, lower] * share
    share = columns - aside
    due = lines[..., aside] * (1.0 - share) + lines[..., np.minimum(aside + 1, 8)] * share
    s.check("GridSample", "x grid", due, align_corners=1)
    nearest = x[:, :, np.rint(rows).astype(int)][..., np.rint(columns).astype(int)]
    s.check("GridSample", "x grid", nearest, align_corners=1, mode="nearest")


@SAMPLING_CHECKS.family
def _roi_align(s: Sample) -> None:
    x = s.feed("x", s.numbers(2, 3, 6, 9))
    s.feed("regions", np.array([[1, 1, 5, 3], [2, 0, 6, 4]], np.float32))
    s.feed("images", np.array([1, 0]))
    due = np.empty((2, 3, 2, 2))
    for n, (left, top, wide, high) in enumerate(((1, 1, 2, 1), (2, 0, 2, 2))):
        for i, j in np.ndindex(2, 2):  # a sample in the middle of each cell
            due[n, :, i, j] = _between(x[1 - n], top + (i + 0.5) * high, left + (j + 0.5) * wide)
    attrs = {"output_height": 2, "output_width": 2, "sampling_ratio": 1}
    how = {"coordinate_transformation_mode": "output_half_pixel"}
    s.check("RoiAlign", "x regions images", due, **attrs, **how)


def _between(image: Array, y: float, x: float) -> Array:
    """What lies between pixels of an image of channels."""
    row, column = int(y), int(x)
    part = image[:, row : row + 2, column : column + 2]
    over, beside = np.array([1 - y + row, y - row]), np.array([1 - x + column, x - column])
    result: Array = over @ part @ beside
    return result

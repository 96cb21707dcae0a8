"""Checks of kernels that read images between pixels; see ``kernel_checks``."""

from __future__ import annotations

import numpy as np

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

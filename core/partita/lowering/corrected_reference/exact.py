"""Operators that ``onnx.reference`` rounds to float32 on the way, whatever the type of its tensors.

Some have a body of other operators whose constants are of float32 (1/6 is off by 3e-8 then); in
float64 they are computed by their formulas here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_grid_sample import GridSample as OriginalGridSample

from partita.lowering.corrected_reference.deformed import DeformConv

Array = np.ndarray[Any, Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    """The original answers in float32."""

    def _run(self, x: Array) -> tuple[Array]:
        return (_erf(x).astype(x.dtype),)


class Gelu(OpRun):
    """The original's constants are of float32."""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        wide = x.astype(np.float64)
        if approximate == "tanh":
            grown = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
        else:
            grown = _erf(wide * math.sqrt(0.5))
        return ((0.5 * wide * (1 + grown)).astype(x.dtype),)


class HardSwish(OpRun):
    """The original's constants are of float32."""

    def _run(self, x: Array) -> tuple[Array]:
        wide = x.astype(np.float64)
        return ((wide * np.clip(wide / 6 + 0.5, 0, 1)).astype(x.dtype),)


class GroupNormalization(OpRun):
    """The original computes statistics in float32, as ``stash_type`` allows by default."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        epsilon: float | None = None,
        num_groups: int | None = None,
        **_: Any,
    ) -> tuple[Array]:
        rows = x.astype(np.float64).reshape(x.shape[0], num_groups or 1, -1)
        variance = rows.var(axis=2, keepdims=True)
        added = np.float32(1e-5) if epsilon is None else epsilon
        rows = (rows - rows.mean(axis=2, keepdims=True)) / np.sqrt(variance + added)
        shape = (-1, *(1,) * (x.ndim - 2))
        if self.run_params["opsets"].get("", 21) < 21:  # one number per group
            scale, bias = (np.repeat(t, x.shape[1] // t.size) for t in (scale, bias))
        y = rows.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)
        return (y.astype(x.dtype),)


class AffineGrid(OpRun):
    """The original answers in float32, and counts points by adding up steps."""

    def _run(self, theta: Array, size: Array, align_corners: int | None = None) -> tuple[Array]:
        lines = [_points(int(n), bool(align_corners)) for n in size[2:]]
        grid = np.stack(np.meshgrid(*lines, indexing="ij")[::-1], axis=-1)  # x comes first
        homogeneous = np.concatenate([grid, np.ones((*grid.shape[:-1], 1))], axis=-1)
        y = np.einsum("...j,nij->n...i", homogeneous, theta.astype(np.float64))
        return (y.astype(theta.dtype),)


def _points(n: int, align_corners: bool) -> Array:
    """Places of n pixels within [-1, 1]: their middles, or from corner to corner."""
    if align_corners:
        return np.arange(n) * (2 / max(n - 1, 1)) - 1
    return (2 * np.arange(n) + 1) / n - 1


class GridSample(OriginalGridSample):
    """The original keeps places in the image in float32, and knows opset 20's modes alone.

    It divides by the room between borders that are one where an axis has a single element, and
    returns no result where that has no elements. With padding ``border`` it moves a place beside
    the image onto its edge also where a cubic mode takes four pixels around it.
    """

    def _run(
        self,
        X: Array,  # noqa: N803  # the original's name
        grid: Array,
        mode: str | None = None,
        padding_mode: str | None = None,
        align_corners: int | None = None,
    ) -> Any:
        made = (*X.shape[:2], *grid.shape[1:-1])
        if 0 in made:
            return (np.empty(made, X.dtype),)
        original: Any = super()._run
        named: Any = mode or getattr(self, "mode", "linear")
        return original(X, grid, _MODES.get(named, named), padding_mode, align_corners)

    def _prepare_border(self, dims: Any, align_corners: bool) -> Array:
        """The first and last places of each axis that are left where they are."""
        mode, padding = getattr(self, "mode", ""), getattr(self, "padding_mode", "")
        if _MODES.get(mode, mode) == "cubic" and padding == "border":
            # Only beyond these are all four pixels that of the edge.
            return np.concatenate([np.full(len(dims), -2.0), np.asarray(dims) + 1.0])
        original: Any = super()._prepare_border
        return np.asarray(original(dims, align_corners))

    def _gs_denormalize_coordinates(self, n: Any, dims: Any, align_corners: bool) -> Array:
        place: Any = self._gs_denormalize
        pairs = zip(n, dims, strict=False)
        return np.array([place(v, length, align_corners) for v, length in pairs], np.float64)

    def _gs_reflect(self, x: Any, x_min: Any, x_max: Any) -> Any:
        original: Any = super()._gs_reflect
        return original(x, x_min, x_max) if x_max > x_min else x_min


_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of opset 16."""


class MeanVarianceNormalization(OpRun):
    """The original's constants are of float32, and of no other type."""

    def _run(self, x: Array, axes: list[int] | None = None) -> tuple[Array]:
        along = (0, 2, 3) if axes is None else tuple(axes)
        wide = x.astype(np.float64)
        deviation = wide.std(axis=along, keepdims=True)
        y = (wide - wide.mean(axis=along, keepdims=True)) / (deviation + np.float32(1e-9))
        return (y.astype(x.dtype),)


EXACT: list[type[OpRun]] = [
    AffineGrid,
    DeformConv,
    Erf,
    Gelu,
    GridSample,
    GroupNormalization,
    HardSwish,
    MeanVarianceNormalization,
]

"""Resize and Upsample: the last two dimensions in one kernel, others one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import getitem
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import Array, Node, Operand
from partita.lowering.geometry.axes import distinct_axes
from partita.lowering.geometry.interpolation import Interpolation
from partita.lowering.geometry.resampling import (
    NEAREST_MODES,
    TRANSFORMS,
    Axis,
    AxisSizes,
    fitted,
    nearest,
    scaled,
)
from partita.lowering.shapes.symbolic_size import evaluated
from partita_opencl.emitters.operator_table import FLOATS, INDICES, MOVED, operator
from partita_opencl.launches.emitter_kit import Argument, Kit, f32, i64, ints, raw_ctype

_OUTSIDE = -1
"""The place of what lies outside of the input and takes the extrapolation value."""


def _resize_check(node: Node) -> Reason | None:
    attrs, x = node.attrs, node.input(0)
    mode = attrs.get("mode", "nearest")
    wrong = ""
    if attrs.get("antialias", 0):
        wrong = "antialias 1; takes 0"
    elif mode not in ("nearest", "linear", "cubic"):
        wrong = f"mode {mode!r}"
    elif attrs.get("coordinate_transformation_mode", "half_pixel") not in TRANSFORMS:
        wrong = f"coordinate_transformation_mode {attrs['coordinate_transformation_mode']!r}"
    elif attrs.get("nearest_mode", "floor") not in NEAREST_MODES:
        wrong = f"nearest_mode {attrs['nearest_mode']!r}"
    if wrong:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, wrong)
    if mode != "nearest" and x is not None and x.dtype is not None and x.dtype not in FLOATS:
        return Reason(
            ReasonCode.UNSUPPORTED_DTYPE, f"input 0 is {x.dtype}; mode {mode!r} takes float32"
        )
    return None


@operator(
    "Resize",
    types={0: MOVED, 1: FLOATS, 2: FLOATS, 3: INDICES},
    values=(1, 2, 3),
    since=11,
    check=_resize_check,
    folds=False,
)
def resize(
    k: Kit,
    node: Node,
    x: Operand,
    roi: Operand | None = None,
    scales: Operand | None = None,
    sizes: Operand | None = None,
) -> Operand:
    """Resampling by nearest, linear or cubic interpolation."""
    attrs = node.attrs
    axes = distinct_axes(node, attrs.get("axes") or range(x.ndim), x.ndim)
    transformation = attrs.get("coordinate_transformation_mode", "half_pixel")
    region = np.array([0.0] * len(axes) + [1.0] * len(axes), np.float32)
    if transformation == "tf_crop_and_resize" and roi is not None:
        region = k.value(roi).ravel()
    shape = [x.shape[axis] for axis in axes]
    if sizes is not None and sizes.size:
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        outs, factors = fitted(shape, k.value(sizes).ravel().tolist(), policy)
    else:
        factors = [1.0] * len(axes) if scales is None else k.value(scales).ravel().tolist()
        outs = [scaled(size, scale) for size, scale in zip(shape, factors, strict=True)]
    bounds = zip(region[: len(axes)].tolist(), region[len(axes) :].tolist(), strict=True)
    resampled = {
        axis: AxisSizes(size, out, factor, transformation, *ends)
        for axis, size, out, factor, ends in zip(axes, shape, outs, factors, bounds, strict=True)
    }
    return _resample(k, node, x, resampled, attrs.get("nearest_mode", "round_prefer_floor"))


@operator(
    "Resize",
    types={0: MOVED, 1: FLOATS},
    values=(1,),
    since=10,
    until=10,
    check=_resize_check,
    folds=False,
)
@operator(
    "Upsample",
    types={0: MOVED, 1: FLOATS},
    values=(1,),
    since=9,
    until=9,
    check=_resize_check,
    folds=False,
)
def resize_by_scales(k: Kit, node: Node, x: Operand, scales: Operand) -> Operand:
    """Resampling as it was before coordinate transformations had names."""
    return _resize_simply(k, node, x, [float(s) for s in k.value(scales).ravel()])


@operator("Upsample", types=MOVED, since=7, until=8, check=_resize_check, folds=False)
def upsample_by_attribute(k: Kit, node: Node, x: Operand) -> Operand:
    """Resampling by scales from an attribute."""
    return _resize_simply(k, node, x, [float(s) for s in node.attrs["scales"]])


def _resize_simply(k: Kit, node: Node, x: Operand, scales: Sequence[float]) -> Operand:
    axes = {
        axis: AxisSizes(size, scaled(size, scale), scale)
        for axis, (size, scale) in enumerate(zip(x.shape, scales, strict=True))
    }
    return _resample(k, node, x, axes, "")


def _resample(
    k: Kit, node: Node, x: Operand, given: dict[int, AxisSizes], nearest_mode: str
) -> Operand:
    """Resamples the outer dimensions one by one, then the last two together."""
    axes = {number: axis for number, axis in given.items() if not axis.is_identity}
    for number, axis in axes.items():
        if number < x.ndim - 2:
            inner = math.prod(x.shape[number + 1 :])
            x = _planes(k, node, x, number, axis, _same(inner), nearest_mode)
    last = x.ndim - 1
    if last in axes or last - 1 in axes:
        columns = axes.get(last) or _same(x.shape[last])
        rows = axes.get(last - 1) or _same(x.shape[last - 1] if x.ndim > 1 else 1)
        x = _planes(k, node, x, max(0, last - 1), rows, columns, nearest_mode)
    return x


def _same(size: int) -> AxisSizes:
    return AxisSizes(size, size, 1.0)


def _planes(
    k: Kit,
    node: Node,
    x: Operand,
    axis: int,
    rows: AxisSizes,
    columns: AxisSizes,
    nearest_mode: str,
) -> Operand:
    """Records one resampling of (planes, rows, columns).

    Args:
        k: Records it.
        node: The Resize, for its mode.
        x: The tensor.
        axis: The axis of rows; dimensions before it are planes, those behind it columns.
        rows: Sizes along it.
        columns: Likewise of all dimensions behind it, as one.
        nearest_mode: How a place between two elements is rounded, where the nearest is taken.
    """
    attrs = node.attrs
    inner = x.shape[axis + 1 :] if axis < x.ndim - 2 else (columns.out,)
    shape = (*x.shape[:axis], rows.out, *inner) if x.ndim > 1 else (columns.out,)
    y = k.empty(shape, x.dtype)
    if not y.size:
        return y
    planes = math.prod(x.shape[:axis]) if x.ndim > 1 else 1
    size = ints(columns.size, rows.size, columns.out, rows.out)
    sizes = k.tuning.grid(columns.out, planes * rows.out)
    outside = float(attrs.get("extrapolation_value", 0.0))
    if attrs.get("mode", "nearest") == "nearest":
        fill = k.constant(_filled(node, outside, x.dtype))
        places = [
            k.builder.computed((s.out, 1), np.int32, _pick, nearest_mode, *s)
            for s in (rows, columns)
        ]
        arguments: tuple[Argument, ...] = (x, y, *places, fill, size, i64(planes))
        k.launch("resize.cl", "resize", sizes, *arguments, T=raw_ctype(x.dtype), PICK=None)
        return y
    is_linear = attrs.get("mode") == "linear"
    a = None if is_linear else node.number("cubic_coeff_a", -0.75)
    how = Interpolation(a, exclude_outside=bool(attrs.get("exclude_outside", 0)))
    taps = [1 if s.is_identity else 2 if is_linear else 4 for s in (rows, columns)]
    tables = [evaluated(_table, how, *s) for s in (rows, columns)]

    def part(number: int, kind: Any) -> list[Operand]:
        shapes = [(s.out, count) for s, count in zip((rows, columns), taps, strict=True)]
        return [
            k.builder.computed(shape, kind, getitem, table, number)
            for shape, table in zip(shapes, tables, strict=True)
        ]

    k.launch(
        "resize.cl",
        "resize",
        sizes,
        x,
        y,
        *part(0, np.int32),
        *part(1, np.float32),
        f32(outside),
        size,
        i64(planes),
        T="float",
        ROW_TAPS=taps[0],
        COLUMN_TAPS=taps[1],
    )
    return y


def _filled(node: Node, outside: float, dtype: np.dtype[Any]) -> Array:
    """What places outside of the input take, in the tensor's type.

    Raises:
        CompileError: The type does not have the number.
    """
    fits = True
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = limits.min <= outside <= limits.max
    if not fits:
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) has extrapolation_value {outside}, which "
            f"{dtype} does not have."
        )
    return np.full(1, outside, dtype)


def _pick(nearest_mode: str, *sizes: Any) -> Array:
    axis = Axis(*sizes)
    return _marked(axis, nearest(axis, nearest_mode)[:, None])


def _table(how: Interpolation, *sizes: Any) -> tuple[Array, Array]:
    """For each place of the result, places of the input and their weights."""
    axis = Axis(*sizes)
    if axis.is_identity:
        places = np.arange(axis.size, dtype=np.int32)[:, None]
        return places, np.ones((axis.size, 1), np.float32)
    first = np.empty(axis.out, np.int64)
    weights = np.empty((axis.out, how.taps(axis)), np.float32)
    how.weigh(axis, first, weights)
    places = np.clip(first[:, None] + np.arange(weights.shape[1]), 0, axis.size - 1)
    return _marked(axis, places), weights


def _marked(axis: Axis, places: Array) -> Array:
    """The places as kernels take them, with those outside the input marked where that counts."""
    marked = places.astype(np.int32)
    if axis.crops:
        marked[axis.outside()] = _OUTSIDE
    return marked

"""Layers over windows and grids: pooling, resizing, regions of interest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir

_ROUNDING = {"floor": 0, "ceil": 1, "ceil_torch": 1}
_PLACES = (
    "half_pixel",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

_MOST_SHARES = 1 << 24
"""Elements of a matrix that adaptive means multiply by."""


def _windows(at: Site) -> dict[str, Any]:
    ceil = at.one_of("rounding_type", "floor", _ROUNDING)
    dilations = at.ints("dilations") or None
    return at.steps() | {
        "kernel_shape": at.ints("kernel"), "ceil_mode": ceil, "dilations": dilations
    }  # fmt: skip


def _check_ends(at: Site) -> None:
    """Refuses windows that begin behind the input, which OpenVINO counts and ONNX does not."""
    kernel, strides = at.ints("kernel"), at.ints("strides")
    sides = zip(at.dims(0)[2:], at.layer.outputs[0].dims[2:], strict=True)
    for axis, (size, found) in enumerate(sides):
        begin = (found - 1) * strides[axis] - (at.ints("pads_begin") or [0] * len(kernel))[axis]
        if at.text("rounding_type") == "ceil" and size > 0 and begin >= size:
            raise at.error("a window begins behind the input; rounding_type 'ceil' is not exact")


@translates("AvgPool")
def average(at: Site) -> ir.Value:
    """The mean of each window."""
    _check_ends(at)
    counted = int(not at.flag("exclude-pad"))
    return at.emit("AveragePool", at.inputs[0], count_include_pad=counted, **_windows(at))


@translates("MaxPool")
def maximum(at: Site) -> Sequence[ir.Value]:
    """The largest of each window, and where it stood."""
    _check_ends(at)
    attributes = _windows(at)
    if not at.read(1):
        return [at.emit("MaxPool", at.inputs[0], **attributes)]
    values, places = at.emit_many("MaxPool", 2, at.inputs[0], **attributes)
    if axis := at.integer("axis", 0) % max(at.rank(0), 1):  # counted anew in each slice before it
        inside = at.emit("Shape", at.inputs[0], start=axis)
        places = at.emit("Mod", places, at.emit("ReduceProd", inside, keepdims=0))
    return [values, at.as_indices(places, "index_element_type")]


@translates("AdaptiveAvgPool", "AdaptiveMaxPool")
def adaptive(at: Site) -> ir.Value:
    """Windows that divide the axes evenly, or means of any; largest of others are refused."""
    mean = at.layer.type == "AdaptiveAvgPool"
    sizes, dims = at.axes(1), at.dims(0)[2:]
    if at.read(1):
        raise at.error("indices are not read")
    if all(size == 1 for size in sizes):
        return at.emit("GlobalAveragePool" if mean else "GlobalMaxPool", at.inputs[0])
    known = min(*dims, *sizes) > 0
    if not known or any(dim % size for dim, size in zip(dims, sizes, strict=True)):
        if mean and known:
            return _means(at, dims, sizes)
        raise at.error(f"windows of {list(dims)} by {sizes} do not divide evenly")
    kernel = [dim // size for dim, size in zip(dims, sizes, strict=True)]
    name = "AveragePool" if mean else "MaxPool"
    return at.emit(name, at.inputs[0], kernel_shape=kernel, strides=kernel)


def _means(at: Site, dims: Sequence[int], sizes: Sequence[int]) -> ir.Value:
    """Means of windows from floor(i d / n) to ceil((i + 1) d / n): a product for each axis."""
    value, rank = at.inputs[0], len(dims) + 2
    if max(dim * size for dim, size in zip(dims, sizes, strict=True)) > _MOST_SHARES:
        raise at.error(f"means of {list(dims)} in {list(sizes)} windows are not read")
    for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True), start=2):
        part, place = np.arange(size)[:, None], np.arange(dim)
        inside = (place >= part * dim // size) & (place < -(-(part + 1) * dim // size))
        shares = at.const((inside / inside.sum(1, keepdims=True)).T, at.dtype(0))
        order = [*(other for other in range(rank) if other != axis), axis]
        last = axis == rank - 1
        moved = value if last else at.emit("Transpose", value, perm=order)
        found = at.emit("MatMul", moved, shares)
        back = [int(place) for place in np.argsort(order)]
        value = found if last else at.emit("Transpose", found, perm=back)
    return value


@translates("Interpolate")
def interpolate(at: Site) -> ir.Value:
    """Resizing, of operation sets 4 and 11."""
    if at.layer.version == "opset1":
        raise at.error("only operation sets 4 and 11 are read; convert the original model again")
    modes = {"nearest": "nearest", "linear": "linear", "linear_onnx": "linear", "cubic": "cubic"}
    mode = at.one_of("mode", "nearest", modes)
    by_sizes = at.text("shape_calculation_mode") == "sizes"
    newer = at.layer.version != "opset4"
    target = 1 if newer or by_sizes else 2
    axes_at = 2 if newer else 3
    rank = at.rank(0)
    axes = at.axes(axes_at, rank) if at.has(axes_at) else list(range(rank))
    pads = [*at.ints("pads_begin"), *at.ints("pads_end")]
    x = at.inputs[0]
    if any(pads):
        x = at.emit("Pad", x, at.const(pads, np.int64))
    place = at.one_of("coordinate_transformation_mode", "half_pixel", _PLACES)
    if mode == "nearest" and at.text("nearest_mode") == "simple":
        raise at.error("nearest_mode 'simple' is not read")
    if mode != "nearest" and at.flag("antialias"):
        raise at.error("antialias 'true' is not read: OpenVINO's filter is not ONNX's")
    if by_sizes:
        sizes, scales = at.indices(target), None
    else:
        sizes, scales = None, at.emit("Cast", at.inputs[target], to=1)
    if scales is not None and place == "align_corners":  # ONNX would take sizes unrounded
        shape = at.emit("Gather", at.emit("Shape", x), at.const(axes, np.int64), axis=0)
        product = at.emit("Mul", at.emit("Cast", shape, to=1), scales)
        sizes, scales = at.emit("Cast", at.emit("Floor", product), to=7), None
    return at.emit(
        "Resize", x, None, scales, sizes,
        axes=axes,
        mode=mode,
        coordinate_transformation_mode=place,
        nearest_mode=at.one_of("nearest_mode", "round_prefer_floor", _NEAREST)
        if mode == "nearest" else None,
        cubic_coeff_a=at.real("cube_coeff", -0.75),
    )  # fmt: skip


@translates("GridSample")
def grid_sample(at: Site) -> ir.Value:
    """Samples at given places."""
    return at.emit(
        "GridSample",
        *at.inputs,
        align_corners=int(at.flag("align_corners")),
        mode=at.one_of(
            "mode", "bilinear", {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
        ),
        padding_mode=at.one_of("padding_mode", "zeros", ("zeros", "border", "reflection")),
    )


@translates("ROIAlign")
def roi_align(at: Site) -> ir.Value:
    """Regions of interest, sampled to one size."""
    x, boxes = at.inputs[:2]
    if at.text("mode", "avg") != "avg":
        raise at.error("only the mode 'avg' is read: the largest of what is not the same in ONNX")
    modes = {"asymmetric": "output_half_pixel", "half_pixel": "half_pixel"}
    modes["half_pixel_for_nn"] = "half_pixel"
    if at.text("aligned_mode") == "half_pixel":  # moves boxes before they are scaled, too
        boxes = at.emit("Add", boxes, at.like(0.5, 1))
    return at.emit(
        "RoiAlign", x, boxes, at.indices(2),
        coordinate_transformation_mode=at.one_of("aligned_mode", "asymmetric", modes),
        output_height=at.integer("pooled_h"),
        output_width=at.integer("pooled_w"),
        sampling_ratio=at.integer("sampling_ratio"),
        spatial_scale=at.real("spatial_scale"),
    )  # fmt: skip


@translates("ROIPooling")
def roi_pooling(at: Site) -> ir.Value:
    """The largest of each part of a region."""
    if at.text("method", "max") != "max":
        raise at.error("only the method 'max' is read")
    shape = at.ints("output_size") or [at.integer("pooled_h"), at.integer("pooled_w")]
    scale = at.real("spatial_scale")
    return at.emit("MaxRoiPool", *at.inputs, pooled_shape=shape, spatial_scale=scale)

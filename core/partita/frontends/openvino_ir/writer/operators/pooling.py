"""Operators over windows and grids: pooling, resizing, regions of interest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.openvino_ir.writer.document import Output
from partita.frontends.openvino_ir.writer.writing_context import Site, writes

if TYPE_CHECKING:
    import onnx_ir as ir


def _windows(at: Site) -> dict[str, Any]:
    kernel = at.ints("kernel_shape")
    count = len(kernel)
    auto = at.text("auto_pad", "NOTSET")
    pads = at.ints("pads") or [0] * (2 * count)
    return {
        "kernel": kernel,
        "strides": at.ints("strides") or [1] * count,
        "pads_begin": pads[:count],
        "pads_end": pads[count:],
        "rounding_type": "ceil_torch" if at.integer("ceil_mode") else "floor",
        "auto_pad": "explicit" if auto == "NOTSET" else auto.lower(),
    }


@writes("AveragePool")
def average_pool(at: Site) -> Output:
    """The mean of each window."""
    if set(at.ints("dilations")) - {1}:
        raise at.error("dilations")
    windows = _windows(at) | {"exclude-pad": not at.integer("count_include_pad")}
    return at.emit("AvgPool", at.read(0), version="opset14", **windows)


@writes("MaxPool")
def max_pool(at: Site) -> Sequence[Output]:
    """The largest of each window, and where it stood."""
    if at.integer("storage_order"):
        raise at.error("storage_order")
    attributes = _windows(at)
    dilations = at.ints("dilations") or [1] * len(attributes["kernel"])
    values = at.result()
    places = at.result(1) if at.is_used(1) else (_int64(), values[1])
    return at.emit_many(
        "MaxPool", [values, places], at.read(0), version="opset14",
        dilations=dilations, index_element_type="i64", axis=0, **attributes,
    )  # fmt: skip


def _int64() -> ir.DataType:
    import onnx_ir as ir

    return ir.DataType.INT64


@writes("GlobalAveragePool", "GlobalMaxPool")
def global_pool(at: Site) -> Output:
    """The mean or the largest of each channel."""
    kind = "ReduceMean" if at.node.op_type == "GlobalAveragePool" else "ReduceMax"
    axes = at.const(range(2, at.rank()), np.int64)
    return at.emit(kind, at.read(0), axes, keep_dims=True)


@writes("Resize")
def resize(at: Site) -> Output:
    """Resizing to sizes or by scales."""
    mode, place = at.text("mode", "nearest"), at.text("coordinate_transformation_mode")
    place = place or "half_pixel"
    if place in ("tf_crop_and_resize", "half_pixel_symmetric"):
        raise at.error(f"coordinate_transformation_mode '{place}'")
    if at.integer("antialias") or at.integer("exclude_outside"):
        raise at.error("antialias and exclude_outside, which OpenVINO does otherwise")
    if at.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise at.error("keep_aspect_ratio_policy")
    by_sizes = at.has(3)
    target = at.read(3 if by_sizes else 2)
    axes = at.const(at.ints("axes") or list(range(at.rank())), np.int64)
    rank = at.rank()
    return at.emit(
        "Interpolate", at.read(0), target, axes, version="opset11",
        mode={"nearest": "nearest", "linear": "linear_onnx", "cubic": "cubic"}[mode],
        shape_calculation_mode="sizes" if by_sizes else "scales",
        coordinate_transformation_mode=place,
        nearest_mode=at.text("nearest_mode", "round_prefer_floor"),
        antialias=False,
        pads_begin=[0] * rank,
        pads_end=[0] * rank,
        cube_coeff=at.real("cubic_coeff_a", -0.75),
    )  # fmt: skip


@writes("GridSample")
def grid_sample(at: Site) -> Output:
    """Samples at given places."""
    modes = {"cubic": "bicubic", "bicubic": "bicubic", "nearest": "nearest"}
    return at.emit(
        "GridSample", at.read(0), at.read(1), version="opset9",
        align_corners=bool(at.integer("align_corners")),
        mode=modes.get(at.text("mode", "linear"), "bilinear"),
        padding_mode=at.text("padding_mode", "zeros"),
    )  # fmt: skip


@writes("RoiAlign")
def roi_align(at: Site) -> Output:
    """Regions of interest, sampled to one size."""
    if at.text("mode", "avg") != "avg":
        raise at.error("mode 'max', which OpenVINO does otherwise")
    place = at.text("coordinate_transformation_mode", "half_pixel")
    return at.emit(
        "ROIAlign", at.read(0), at.read(1), at.read(2), version="opset9",
        pooled_h=at.integer("output_height", 1),
        pooled_w=at.integer("output_width", 1),
        sampling_ratio=at.integer("sampling_ratio"),
        spatial_scale=at.real("spatial_scale", 1.0),
        mode="avg",
        aligned_mode="half_pixel_for_nn" if place == "half_pixel" else "asymmetric",
    )  # fmt: skip


@writes("MaxRoiPool")
def max_roi_pool(at: Site) -> Output:
    """The largest of each part of a region."""
    return at.emit(
        "ROIPooling", at.read(0), at.read(1), version="opset2",
        output_size=at.ints("pooled_shape"),
        spatial_scale=at.real("spatial_scale", 1.0),
        method="max",
    )  # fmt: skip

"""Conversions between colour formats, as operations on a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.errors import ModelError
from partita.preprocess.axes import parse_axes, place_of
from partita.preprocess.flow import Flow
from partita.preprocess.formats import ColorFormat

if TYPE_CHECKING:
    import onnx_ir as ir

_RGB_OF_YUV = ((1.164, 0.0, 1.596), (1.164, -0.391, -0.813), (1.164, 2.018, 0.0))
"""Red, green and blue of Y - 16, U - 128 and V - 128 (ITU-R BT.601, studio range)."""

_GRAY_OF_RGB = (0.299, 0.587, 0.114)
"""Brightness of red, green and blue (ITU-R BT.601)."""

_PLAIN = (ColorFormat.RGB, ColorFormat.BGR)


def convert_color(flow: Flow, target: ColorFormat) -> None:
    """Converts to another colour format.

    Raises:
        ModelError: There is no way from the one to the other, or no axis of channels is known.
    """
    source = flow.color
    if source is target:
        return
    if source.is_yuv and target is ColorFormat.GRAY:
        flow.value, flow.planes = _planes(flow)[0], []
        flow.axes = parse_axes("NHWC", 4)
    elif source.is_yuv and target in _PLAIN:
        _from_yuv(flow, target)
    elif source in (ColorFormat.RGBX, ColorFormat.BGRX) and target in _PLAIN:
        _drop_fourth(flow)
        flow.color = ColorFormat.RGB if source is ColorFormat.RGBX else ColorFormat.BGR
        convert_color(flow, target)
    elif source in _PLAIN and target in _PLAIN:
        reverse_channels(flow)
    elif source in _PLAIN and target is ColorFormat.GRAY:
        _to_gray(flow)
    else:
        raise ModelError(
            f"An image of '{source.name}' cannot be converted to '{target.name}'; say what it is "
            "with tensor().set_color_format()."
        )
    flow.color = target


def reverse_channels(flow: Flow) -> None:
    """Puts channels the other way round, and so RGB to BGR."""
    axis = place_of(flow.axes, "C", "reverse_channels()")
    ends = (flow.ints(number) for number in (-1, np.iinfo(np.int64).min, axis, -1))
    flow.value = flow.emit("Slice", flow.value, *ends)


def _drop_fourth(flow: Flow) -> None:
    axis = place_of(flow.axes, "C", "convert_color()")
    flow.value = flow.emit("Slice", flow.value, *(flow.ints(number) for number in (0, 3, axis)))


def _to_gray(flow: Flow) -> None:
    """Brightness, with one channel left."""
    axis = place_of(flow.axes, "C", "convert_color()")
    weights = _GRAY_OF_RGB if flow.color is ColorFormat.RGB else _GRAY_OF_RGB[::-1]
    before = flow.in_floats()
    shape = [3 if place == axis else 1 for place in range(flow.rank)]
    scaled = flow.emit("Mul", flow.value, flow.constant(np.reshape(weights, shape), flow.dtype))
    flow.value = flow.emit("ReduceSum", scaled, flow.ints(axis), keepdims=1)
    flow.back_from_floats(before)


def _from_yuv(flow: Flow, target: ColorFormat) -> None:
    """Three colours of brightness and colour planes; all of them are images of layout NHWC."""
    before = flow.in_floats()
    y, u, v = _coloured(flow, _planes(flow))
    levels = [flow.emit("Sub", y, flow.constant(16, flow.dtype))]
    levels += [flow.emit("Sub", plane, flow.constant(128, flow.dtype)) for plane in (u, v)]
    yuv = flow.emit("Concat", *levels, axis=3)
    flow.planes = []
    matrix = np.array(_RGB_OF_YUV if target is ColorFormat.RGB else _RGB_OF_YUV[::-1])
    colors = flow.emit("MatMul", yuv, flow.constant(matrix.T, flow.dtype))
    bounds = (flow.constant(limit, flow.dtype) for limit in (0, 255))
    flow.value = flow.emit("Clip", colors, *bounds)
    flow.axes = parse_axes("NHWC", 4)
    flow.back_from_floats(before)


def _planes(flow: Flow) -> list[ir.Value]:
    """Brightness, and colour in one plane or two of half the size."""
    return [flow.value, *flow.planes] if flow.planes else _parted(flow)


def _coloured(flow: Flow, planes: list[ir.Value]) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Brightness and both colours, one channel each, all of the size of the image."""
    y, *colors = planes
    if len(colors) == 1:  # both take turns in it
        colors = flow.emit_many("Split", 2, colors[0], flow.ints(1, 1), axis=3)
    u, v = (_doubled(flow, plane) for plane in colors)
    return y, u, v


def _parted(flow: Flow) -> list[ir.Value]:
    """The planes of one tensor, in which they lie below one another: 3/2 as high as the image."""
    size = flow.emit("Gather", flow.emit("Shape", flow.value), flow.ints(1), axis=0)
    third = flow.emit("Div", size, flow.ints(3))
    y_rows = flow.emit("Mul", third, flow.ints(2))
    start, axis = flow.ints(0), flow.ints(1)
    y = flow.emit("Slice", flow.value, start, y_rows, axis)
    parts = [(y_rows, size, 2)]
    if flow.color is ColorFormat.I420_SINGLE_PLANE:
        half = flow.emit("Div", third, flow.ints(2))
        middle = flow.emit("Add", y_rows, half)
        parts = [(y_rows, middle, 1), (middle, size, 1)]
    batch, _, width, _ = (
        flow.emit("Gather", flow.emit("Shape", flow.value), flow.ints(place), axis=0)
        for place in range(4)
    )
    columns = flow.emit("Div", width, flow.ints(2))
    planes = [y]
    for begin, end, channels in parts:
        plane = flow.emit("Slice", flow.value, begin, end, axis)
        shape = flow.emit("Concat", batch, third, columns, flow.ints(channels), axis=0)
        planes.append(flow.emit("Reshape", plane, shape))
    return planes


def _doubled(flow: Flow, plane: ir.Value) -> ir.Value:
    """Each element as a block of four."""
    return flow.emit(
        "Resize", plane, None, flow.constant([1, 2, 2, 1], np.float32),
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip

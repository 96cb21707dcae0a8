"""Custom operators that are common, and those that only circle has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.operation_site import FULL
from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


class _Options:
    """The options of a custom operator, a map of numbers, each of which is read by itself.

    The map is never read as a whole: its parts may hold one another, so that a hundred bytes stand
    for more entries than there is memory for.

    Args:
        at: The operator.

    Raises:
        ModelFormatError: They are no map, or damaged.
    """

    def __init__(self, at: Site) -> None:
        from flatbuffers import flexbuffers

        self._at = at
        with self._blamed():
            root = flexbuffers.GetRoot(at.operator.custom_options)
            self._map: Any = root.AsMap if root.IsMap else None
        if self._map is None:
            raise at.error("its options are not a map")

    def number(self, name: str, default: float | None = None) -> float:
        """An option that is a number, not an infinite one.

        Args:
            name: Of the option.
            default: What it is if it is left out; ``None`` refuses that.
        """
        with self._blamed():
            try:
                found = self._map[name]
            except KeyError:
                number = default
            else:
                number = found.AsFloat if found.IsNumeric or found.IsBool else None
        if number is None or not np.isfinite(number):
            raise self._at.error(f"its option '{name}' is {number!r}, not a number")
        return float(number)

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the parser trusts its input, and raises what comes of it
            raise self._at.error(f"its options cannot be read ({error})") from error


@translates("TFLite_Detection_PostProcess")
def detection_post_process(at: Site) -> list[ir.Value]:
    """Boxes of a detector: decoded from anchors, the best kept that do not overlap too much.

    Returns:
        Boxes (top, left, bottom, right), classes, scores, and how many there are.
    """
    number = _Options(at).number
    most = int(number("max_detections"))
    classes = int(number("num_classes"))
    if at.rank(1) != 3 or not 0 < most < 1 << 16 or not 0 < classes <= at.dims(1)[2]:
        raise at.error(f"scores {list(at.dims(1))} do not fit {classes} classes, {most} boxes")
    regular = bool(number("use_regular_nms", 0))
    if not regular and int(number("max_classes_per_detection")) != 1:
        raise at.error("more than one class for each box is not read")
    boxes = _decoded(at, [number(f"{axis}_scale") for axis in "yxhw"])
    offset = at.dims(1)[2] - classes
    bounds = [at.const([end], np.int64) for end in (offset, FULL, 2)]
    scores = at.emit("Transpose", at.emit("Slice", at.floats(1), *bounds), perm=[0, 2, 1])
    judged = scores
    if not regular:
        judged = at.emit("ReduceMax", scores, at.const([1], np.int64), keepdims=1)
    each = int(number("detections_per_class", 100)) if regular else most
    rows = at.emit(
        "NonMaxSuppression",
        boxes,
        judged,
        at.const([each], np.int64),
        at.const([number("nms_iou_threshold")], np.float32),
        at.const([np.nextafter(np.float32(number("nms_score_threshold")), np.float32(-np.inf))]),
    )
    found = at.emit("GatherND", judged, rows)
    count = at.emit("Min", at.emit("Shape", found), at.const([most], np.int64))
    best, order = at.emit_many("TopK", 2, found, count, axis=0, largest=1, sorted=1)
    rows = at.emit("Gather", rows, order, axis=0)
    anchors = at.emit("Gather", rows, at.const(2, np.int64), axis=1)
    flat = at.reshaped(boxes, [-1, 4])
    if regular:
        kinds = at.emit("Gather", rows, at.const(1, np.int64), axis=1)
    else:
        own = at.emit("Gather", at.reshaped(scores, [classes, -1]), anchors, axis=1)
        kinds = at.emit("ArgMax", own, axis=0, keepdims=0)
    return [
        _filled(at, at.emit("Gather", flat, anchors, axis=0), count, most, [4]),
        _filled(at, at.cast(kinds, 1), count, most, []),
        _filled(at, best, count, most, []),
        at.cast(count, 1),
    ]


def _decoded(at: Site, scales: list[float]) -> ir.Value:
    """Corners of boxes: middles and sizes relative to those of the anchors."""
    parts = at.emit("Div", at.floats(0), at.const(scales, np.float32))
    y, x, h, w = at.emit_many("Split", 4, parts, axis=-1, num_outputs=4)
    anchors = at.emit_many("Split", 4, at.floats(2), axis=-1, num_outputs=4)
    half = at.const(0.5, np.float32)
    begins, ends = [], []
    for place, size, middle, length in (
        (y, h, anchors[0], anchors[2]),
        (x, w, anchors[1], anchors[3]),
    ):
        center = at.emit("Add", at.emit("Mul", place, length), middle)
        reach = at.emit("Mul", at.emit("Mul", at.emit("Exp", size), length), half)
        begins.append(at.emit("Sub", center, reach))
        ends.append(at.emit("Add", center, reach))
    return at.emit("Concat", *begins, *ends, axis=-1)


def _filled(at: Site, value: ir.Value, count: ir.Value, most: int, rest: list[int]) -> ir.Value:
    """Rows filled up with zeros, in a batch of one."""
    gap = at.emit("Sub", at.const([most], np.int64), count)
    zeros = at.const([0] * (1 + len(rest)), np.int64)
    behind = [at.const([0] * len(rest), np.int64)] if rest else []
    pads = at.emit("Concat", zeros, gap, *behind, axis=0)
    return at.reshaped(at.emit("Pad", value, pads), [1, most, *rest])


@translates("INSTANCE_NORM")
def instance_norm(at: Site) -> ir.Value:
    """Each channel of each image with mean zero and variance one, then scaled and shifted."""
    if at.rank(0) != 4:
        raise at.error(f"the image has shape {list(at.dims(0))}; expected four sizes")
    scale, shift = (at.reshaped(at.floats(index), [-1]) for index in (1, 2))
    value = at.emit(
        "InstanceNormalization", at.channels_first(0), scale, shift, epsilon=at.real("Epsilon")
    )
    return at.to_last(at.result(at.activated(value)))


@translates("RMS_NORM")
def rms_norm(at: Site) -> ir.Value:
    """Numbers by the root of their mean square along the last axis, then scaled."""
    value = at.emit(
        "RMSNormalization", at.floats(0), at.floats(1), axis=-1, epsilon=at.real("Epsilon")
    )
    return at.result(at.activated(value))

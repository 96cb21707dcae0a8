"""The layer between the stages of a two-stage detector: regions that may hold something."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from partita.frontends.openvino_ir.translator import Array, Site, translates
from partita.frontends.openvino_ir.translators.labels import in_front

if TYPE_CHECKING:
    import onnx_ir as ir

_WIDE = np.float32
"""What regions are computed in, whatever the type of the inputs."""


class _Image(NamedTuple):
    """Of an image: its far corner, and the sides of the smallest box; float32[2] each.

    Width comes first; where boxes are measured as TensorFlow does it, the corner's height.
    """

    corner: ir.Value
    smallest: ir.Value


@translates("Proposal")
def proposals(at: Site) -> list[ir.Value]:
    """The best regions that overlap no better one, and their scores, for each image as many.

    Rows are (image, xmin, ymin, xmax, ymax); where an image has fewer, one of image -1 ends them.
    """
    image = _image(at)
    boxes, scores = _regions(at, image)
    last, post = at.const([1], np.int64), at.integer("post_nms_topn")
    most = at.emit("Min", at.size(scores, 1), at.const([at.integer("pre_nms_topn")], np.int64))
    scores, order = at.emit_many("TopK", 2, scores, most, axis=1)
    boxes = _picked(at, boxes, order)
    chosen, count = _without_overlaps(at, boxes, scores, post)
    there = at.emit("Less", at.const(range(post), np.int64), at.emit("Unsqueeze", count, last))
    boxes, scores = _picked(at, boxes, chosen), _picked(at, scores, chosen)
    edges = at.emit("Concat", image.corner, image.corner, axis=0)
    if at.flag("clip_after_nms"):
        boxes = _clipped(at, boxes, edges)
    if at.flag("normalize"):
        boxes = at.emit("Div", boxes, edges)
    numbers = at.emit("Unsqueeze", at.counting(at.size(scores, 0)), last)
    numbers = at.emit("CastLike", at.emit("Expand", numbers, at.emit("Shape", scores)), scores)
    ends = at.emit("Equal", at.const(range(post), np.int64), at.emit("Unsqueeze", count, last))
    behind = at.emit("Where", ends, at.const(-1, _WIDE), at.const(0, _WIDE))
    numbers = at.emit("Where", there, numbers, behind)
    column = at.const([2], np.int64)
    boxes = at.emit("Where", at.emit("Unsqueeze", there, column), boxes, at.const(0, _WIDE))
    rows = at.emit("Concat", at.emit("Unsqueeze", numbers, column), boxes, axis=2)
    scores = at.emit("Where", there, scores, at.const(0, _WIDE))
    outputs = [
        at.emit("Reshape", rows, at.const([-1, 5], np.int64)),
        at.emit("Reshape", scores, at.const([-1], np.int64)),
    ]
    return [at.emit("CastLike", output, at.inputs[0]) for output in outputs]


def _is_tensorflow(at: Site) -> bool:
    """Whether boxes are measured between pixels' edges, not their middles, and have y before x."""
    return bool(at.one_of("framework", "", {"": False, "tensorflow": True}))


def _pixel(at: Site) -> ir.Value:
    """What a box that begins and ends at the same place measures."""
    return at.const(0 if _is_tensorflow(at) else 1, _WIDE)


def _anchors(at: Site) -> Array:
    """The boxes about a place: xmin, ymin, xmax, ymax of each ratio and scale.

    As ``generate_anchors`` of py-faster-rcnn (Ren et al., "Faster R-CNN", 2015) makes them, or as
    TensorFlow's detectors do: these round no sizes, and begin at the middle of a box.
    """
    base, ratios = at.integer("base_size"), np.array(at.floats("ratio"))
    scales, tensorflow = np.array(at.floats("scale")), _is_tensorflow(at)
    pixel = 0 if tensorflow else 1
    widths = np.sqrt(base * base / ratios)
    if not tensorflow:
        widths = np.floor(widths + 0.5)
    heights = widths * ratios
    if not tensorflow:
        heights = np.floor(heights + 0.5)
    sizes = np.stack([widths, heights], -1)[:, None] * scales[:, None]
    reach = (sizes.reshape(-1, 2) - pixel) / 2
    middle = 0.0 if tensorflow else (base - pixel) / 2
    return np.concatenate([middle - reach, middle + reach], -1).astype(_WIDE)


def _wide(at: Site, index: int) -> ir.Value:
    return at.emit("CastLike", at.inputs[index], at.const(0, _WIDE))


def _image(at: Site) -> _Image:
    count = at.dims(2)[-1]
    if count not in (3, 4):
        raise at.error("the image's sizes must be 3 or 4 numbers")
    numbers = at.emit("Reshape", _wide(at, 2), at.const([-1], np.int64))
    sides = [0, 1] if _is_tensorflow(at) else [1, 0]
    corner, scale = (
        at.emit("Gather", numbers, at.const(places, np.int64)) for places in (sides, [count - 1, 2])
    )
    return _Image(corner, at.emit("Mul", scale, at.const(at.integer("min_size"), _WIDE)))


def _clipped(at: Site, boxes: ir.Value, edges: ir.Value) -> ir.Value:
    """Boxes that end where the image does."""
    return at.emit("Max", at.emit("Min", boxes, edges), at.const(0, _WIDE))


def _regions(at: Site, image: _Image) -> tuple[ir.Value, ir.Value]:
    """All regions, (images, places and anchors, 4), and their scores; 0 for those too small."""
    anchors, pixel = _anchors(at), _pixel(at)
    count = len(anchors)
    corner = at.emit("Concat", image.corner, image.corner, axis=0)
    boxes = at.emit("Add", _places(at), at.const(anchors))
    if _is_tensorflow(at):
        boxes = _clipped(at, boxes, corner)
    low, high = _ends(at, boxes)
    size = at.emit("Add", at.emit("Sub", high, low), pixel)
    half = at.const(0.5, _WIDE)
    middle = at.emit("Add", low, at.emit("Mul", size, half))
    steps = at.emit("Reshape", _wide(at, 1), _parted(at, 1, count, 4))
    moved, grown = _ends(at, at.emit("Transpose", steps, perm=[0, 3, 4, 1, 2]))
    moved = at.emit("Div", moved, at.const(at.real("box_coordinate_scale", 1), _WIDE))
    grown = at.emit("Div", grown, at.const(at.real("box_size_scale", 1), _WIDE))
    middle = at.emit("Add", at.emit("Mul", moved, size), middle)
    reach = at.emit("Mul", at.emit("Mul", at.emit("Exp", grown), size), half)
    boxes = at.emit("Concat", at.emit("Sub", middle, reach), at.emit("Add", middle, reach), axis=-1)
    if at.flag("clip_before_nms", True):
        boxes = _clipped(at, boxes, at.emit("Sub", corner, pixel))
    low, high = _ends(at, boxes)
    size = at.emit("Add", at.emit("Sub", high, low), pixel)
    fits = at.emit("Cast", at.emit("GreaterOrEqual", size, image.smallest), to=7)
    fits = at.emit("ReduceMin", fits, at.const([-1], np.int64), keepdims=0)
    scores = at.emit("Reshape", _wide(at, 0), _parted(at, 0, 2, count))
    scores = at.emit("Gather", scores, at.const(1, np.int64), axis=1)  # not the background's
    scores = at.emit("Transpose", scores, perm=[0, 2, 3, 1])
    large = at.emit("Equal", fits, at.const(1, np.int64))
    scores = at.emit("Where", large, scores, at.const(0, _WIDE))
    return (
        at.emit("Reshape", boxes, at.const([0, -1, 4], np.int64)),
        at.emit("Reshape", scores, at.const([0, -1], np.int64)),
    )


def _parted(at: Site, index: int, *counts: int) -> ir.Value:
    """The shape of an input port with its channels parted."""
    sizes = [at.size(at.inputs[index], axis) for axis in (0, 2, 3)]
    return at.emit("Concat", sizes[0], at.const(counts, np.int64), *sizes[1:], axis=0)


def _places(at: Site) -> ir.Value:
    """Where anchors are put: (rows, columns, 1, 4) numbers of pixels."""
    stride = at.const(at.integer("feat_stride"), np.int64)
    down, across = (
        at.emit("Mul", at.counting(at.size(at.inputs[0], axis)), stride) for axis in (2, 3)
    )
    lines = [
        at.emit("Reshape", across, at.const([1, -1, 1, 1], np.int64)),
        at.emit("Reshape", down, at.const([-1, 1, 1, 1], np.int64)),
    ]
    shape = at.emit("Shape", at.emit("Add", *lines))
    pair = [at.emit("Expand", line, shape) for line in lines]
    if _is_tensorflow(at):
        pair.reverse()
    return at.emit("CastLike", at.emit("Concat", *pair, *pair, axis=3), at.const(0, _WIDE))


def _ends(at: Site, boxes: ir.Value) -> list[ir.Value]:
    """The first and the last two of four numbers."""
    return at.emit_many("Split", 2, boxes, at.const([2, 2], np.int64), axis=-1)


def _picked(at: Site, values: ir.Value, places: ir.Value) -> ir.Value:
    """Values of each image at places, (images, count)."""
    where = at.emit("Unsqueeze", places, at.const([-1], np.int64))
    return at.emit("GatherND", values, where, batch_dims=1)


def _without_overlaps(
    at: Site, boxes: ir.Value, scores: ir.Value, most: int
) -> tuple[ir.Value, ir.Value]:
    """Places of so many regions of each image, by score, and how many of them there are."""
    one = at.const([1], np.int64)
    pixel = _pixel(at)
    low, high = _ends(at, boxes)
    covered = at.emit("Concat", low, at.emit("Add", high, pixel), axis=-1)
    limits = at.const([most], np.int64), at.const([at.real("nms_thresh")], _WIDE)
    chosen = at.emit("NonMaxSuppression", covered, at.emit("Unsqueeze", scores, one), *limits)
    chosen = at.emit("Gather", chosen, at.const([0, 2], np.int64), axis=1)  # image, box
    shape = at.emit("Shape", scores)
    nothing = at.emit("Expand", at.const(0, np.int64), shape)
    ones = at.emit("Expand", at.const(1, np.int64), at.size(chosen, 0))
    kept = at.emit("Equal", at.emit("ScatterND", nothing, chosen, ones), at.const(1, np.int64))
    numbers = at.emit("Expand", at.counting(at.size(scores, 1)), shape)
    places, count = in_front(at, numbers, kept, at.const(0, np.int64))
    places = at.emit("Pad", places, at.const([0, 0, 0, most], np.int64))
    return at.emit("Slice", places, at.const([0], np.int64), limits[0], one), count

"""Layers of single-shot detectors: boxes to begin with, and the detections made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir

_CORNERS = np.array([[-1, -1, 1, 1]], np.float32)
"""Where corners lie from the centre, in halves of a box: xmin, ymin, xmax, ymax."""


class Box(NamedTuple):
    """A box about each place, in pixels.

    Attributes:
        width: Half its width.
        height: Half its height.
        dx: How far its centre is from the place.
        dy: Likewise.
        clips: Whether it ends where the image does.
    """

    width: float
    height: float
    dx: float = 0
    dy: float = 0
    clips: bool = False


class _Image(NamedTuple):
    """Sizes as float32 scalars: of the grid of places, and of the image."""

    rows: ir.Value
    columns: ir.Value
    height: ir.Value
    width: ir.Value


@translates("PriorBox")
def prior_box(at: Site) -> ir.Value:
    """Boxes of given sizes and ratios about each place of a grid, and their variances."""
    image, scales = _image(at), at.flag("scale_all_sizes", True)
    step = at.real("step", 0)
    boxes = [*_dense_boxes(at), *_boxes_by_ratio(at, scales)]
    if not scales:  # sizes and steps are parts of the image's height
        if any(box.clips for box in boxes):
            raise at.error("fixed_size with scale_all_sizes 'false' is not read")
        steps = at.emit("Div", image.height, image.rows)
        if step != -1:
            steps = at.emit("Mul", image.height, at.const(step, np.float32))
        return _priors(at, image, boxes, [steps] * 2 if step else None, image.height)
    if step < 0:
        raise at.error(f"step {step} is not read")
    return _priors(at, image, boxes, [at.const(step, np.float32)] * 2 if step else None, None)


@translates("PriorBoxClustered")
def prior_box_clustered(at: Site) -> ir.Value:
    """Boxes of given widths and heights about each place of a grid, and their variances."""
    widths, heights = at.floats("width"), at.floats("height")
    if len(widths) != len(heights):
        raise at.error(f"there are {len(widths)} widths and {len(heights)} heights")
    steps = [at.real(f"step_{side}", 0) or at.real("step", 0) for side in "wh"]
    boxes = [Box(w / 2, h / 2) for w, h in zip(widths, heights, strict=True)]
    image = _image(at)
    if not all(steps):
        if any(steps):
            raise at.error("step_w and step_h are to be both given, or both left out")
        across = at.emit("Div", image.width, image.columns)
        down = at.emit("Div", image.height, image.rows)
        return _priors(at, image, boxes, [across, down], None)
    return _priors(at, image, boxes, [at.const(step, np.float32) for step in steps], None)


def _dense_boxes(at: Site) -> Iterator[Box]:
    """Boxes of fixed sizes, several of each about a place."""
    density, ratios = at.ints("density"), at.floats("fixed_ratio")
    sizes = at.floats("fixed_size")
    if len(density) < len(sizes):
        raise at.error(f"there are {len(sizes)} fixed sizes and {len(density)} densities")
    others = [ratio for ratio in _ratios(at) if ratio != 1]
    if len(ratios) > 1 or (ratios and others):
        raise at.error("several fixed_ratio, or some beside aspect_ratio, are not read")
    for size, count in zip(sizes, density, strict=False):
        whole, shift = int(size), int(size / count)
        first = shift / 2 - whole // 2
        for ratio in ratios or [1, *others]:
            root = math.sqrt(ratio)
            width, height = size / 2 * root, size / 2 / root
            if not ratios and ratio == 1:
                width = height = whole / 2
            for down in range(count):
                for across in range(count):
                    place = first + across * shift, first + down * shift
                    yield Box(width, height, *place, clips=True)


def _boxes_by_ratio(at: Site, scales: bool) -> Iterator[Box]:
    """Boxes of the smallest sizes, each with one up to the largest and some of other ratios."""
    smallest, largest = at.floats("min_size"), at.floats("max_size")
    if largest and not scales:
        raise at.error("max_size with scale_all_sizes 'false' is not read")
    others = [math.sqrt(ratio) for ratio in _ratios(at) if ratio != 1]
    for number, size in enumerate(smallest):
        yield Box(size / 2, size / 2)
        between = []
        if number < len(largest):
            half = math.sqrt(size * largest[number]) / 2
            between = [Box(half, half)]
        by_ratio = []
        if scales or number == len(smallest) - 1:
            own = size if scales else smallest[0]
            by_ratio = [Box(own / 2 * root, own / 2 / root) for root in others]
        in_order = at.flag("min_max_aspect_ratios_order", True)
        yield from [*between, *by_ratio] if in_order else [*by_ratio, *between]


def _ratios(at: Site) -> list[float]:
    """The ratios of width to height, 1 first, none twice."""
    found = [1.0]
    for ratio in at.floats("aspect_ratio"):
        if all(abs(ratio - one) >= 1e-6 for one in found):
            found += [ratio, 1 / ratio] if at.flag("flip") else [ratio]
    return found


def _image(at: Site) -> _Image:
    sizes = []
    for index in (0, 1):
        numbers = at.emit("CastLike", at.indices(index), at.const(0, np.float32))
        sizes += [at.emit("Gather", numbers, at.const(place, np.int64)) for place in (0, 1)]
    return _Image(*sizes)


def _priors(
    at: Site,
    image: _Image,
    boxes: Sequence[Box],
    steps: Sequence[ir.Value] | None,
    unit: ir.Value | None,
) -> ir.Value:
    """Corners of all boxes as parts of the image, and variances: (2, places * boxes * 4).

    Args:
        at: The layer.
        image: Its sizes.
        boxes: About each place.
        steps: Across and down, between places; ``None`` if these share the image evenly.
        unit: What boxes are measured in; ``None`` for pixels.
    """
    if not boxes:
        raise at.error("it has no sizes of boxes")
    offset = at.const(at.real("offset", 0.5) if steps else 0.5, np.float32)
    if steps is None:
        steps = [
            at.emit("Div", image.width, image.columns),
            at.emit("Div", image.height, image.rows),
        ]
    lines = []
    for count, step in zip((image.columns, image.rows), steps, strict=True):
        numbers = at.emit("Range", at.const(0, np.float32), count, at.const(1, np.float32))
        lines.append(at.emit("Mul", at.emit("Add", numbers, offset), step))
    middles = [
        at.emit("Reshape", lines[0], at.const([1, -1, 1, 1], np.int64)),
        at.emit("Reshape", lines[1], at.const([-1, 1, 1, 1], np.int64)),
    ]
    shape = at.emit("Shape", at.emit("Add", *middles))
    both = at.emit("Concat", *(at.emit("Expand", one, shape) for one in middles), axis=3)
    places = at.emit("Concat", both, both, axis=3)  # rows, columns, 1, corners
    sides = np.array([[b.dx, b.dy, b.dx, b.dy] for b in boxes], np.float32)
    sides += _CORNERS * np.array([[b.width, b.height] * 2 for b in boxes], np.float32)
    reach = at.const(sides)
    reach = reach if unit is None else at.emit("Mul", reach, unit)
    row = at.const([-1], np.int64)
    ends = [at.emit("Reshape", one, row) for one in (image.width, image.height)]
    corners = at.emit("Div", at.emit("Add", places, reach), at.emit("Concat", *ends * 2, axis=0))
    corners = _clipped(at, corners, boxes)
    first = at.emit("Reshape", corners, at.const([1, -1], np.int64))
    given = at.floats("variance") or [0.1]
    if len(given) not in (1, 4):
        raise at.error(f"there are {len(given)} variances; expected one or four")
    variances = np.array(given * (4 // len(given)), np.float32)
    spread = at.emit("Expand", at.const(variances), at.emit("Shape", corners))
    second = at.emit("Reshape", spread, at.const([1, -1], np.int64))
    return at.emit("Concat", first, second, axis=0)


def _clipped(at: Site, corners: ir.Value, boxes: Sequence[Box]) -> ir.Value:
    """Corners that are not outside of the image, where boxes end there or all do."""
    default = at.layer.type == "PriorBoxClustered"
    if at.flag("clip", default):
        return at.emit("Clip", corners, at.const(0, np.float32), at.const(1, np.float32))
    if not any(box.clips for box in boxes):
        return corners
    clips = np.array([[box.clips] for box in boxes])
    below = np.where(clips & (_CORNERS < 0), np.float32(0), np.float32(-np.inf))
    above = np.where(clips & (_CORNERS > 0), np.float32(1), np.float32(np.inf))
    return at.emit("Min", at.emit("Max", corners, at.const(below)), at.const(above))


class _Detector(NamedTuple):
    """Attributes of a DetectionOutput.

    Attributes:
        boxes: The number of boxes.
        classes: The number of classes.
        shared: Whether all classes have the same boxes.
        kept: Most detections of an image, which as many rows are for.
    """

    boxes: int
    classes: int
    shared: bool
    kept: int


@translates("DetectionOutput")
def detection_output(at: Site) -> ir.Value:
    """The best detections of each image that overlap no better one of their class.

    Rows are (image, class, score, xmin, ymin, xmax, ymax), by image, class and score; an image of
    number -1 ends them.
    """
    detector = _detector(at)
    boxes = _decoded(at, detector)
    scores = _scores(at, detector)
    chosen = _without_overlaps(at, detector, boxes, scores)
    there = min(detector.kept, detector.classes * detector.boxes)
    best, places = at.emit_many("TopK", 2, chosen, at.const([there], np.int64), axis=1)
    if there < detector.kept:
        room = at.const([0, 0, 0, detector.kept - there], np.int64)
        best = at.emit("Pad", best, room, at.like(-np.inf, 1))
        places = at.emit("Pad", places, room)
    return _rows(at, detector, boxes, best, places)


def _detector(at: Site) -> _Detector:
    """The layer's attributes; raises for those that are not supported."""
    if at.has(3):
        raise at.error("inputs of a second detector (ARM) are not read")
    if at.flag("decrease_label_id"):
        raise at.error("decrease_label_id 'true' is not read")
    if not at.flag("normalized"):
        raise at.error("boxes in pixels (normalized 'false') are not read")
    boxes, columns = at.dims(2)[2] // 4, at.dims(1)[1]
    if boxes <= 0 or columns <= 0 or columns % boxes:
        raise at.error("the number of boxes and of classes must be known")
    classes, kept, most = columns // boxes, at.ints("keep_top_k", [-1])[0], at.integer("top_k", -1)
    if kept <= 0:
        kept = classes * (most if most > 0 else boxes)
    return _Detector(boxes, classes, at.flag("share_location", True), kept)


def _decoded(at: Site, detector: _Detector) -> ir.Value:
    """Corners of all boxes, (images, classes or 1, boxes, 4)."""
    four = at.const([1, -1, 4], np.int64)
    priors = at.inputs[2]
    ends = [at.const([number], np.int64) for number in (0, 1, 2)]
    prior = at.emit("Slice", priors, ends[0], ends[1], ends[1])
    if at.dims(2)[0] != 1:
        raise at.error("boxes to begin with must be the same for all images")
    prior = at.emit("Unsqueeze", at.emit("Reshape", prior, four), ends[0])
    own = 1 if detector.shared else detector.classes
    moved = at.emit("Reshape", at.inputs[0], at.const([-1, detector.boxes, own, 4], np.int64))
    moved = at.emit("Transpose", moved, perm=[0, 2, 1, 3])
    if not at.flag("variance_encoded_in_target"):
        factors = at.emit("Slice", priors, ends[1], ends[2], ends[1])
        factors = at.emit("Unsqueeze", at.emit("Reshape", factors, four), ends[0])
        moved = at.emit("Mul", moved, factors)
    known = {f"caffe.priorboxparameter.{kind}": kind for kind in ("corner", "center_size")}
    if at.one_of("code_type", "caffe.priorboxparameter.corner", known) == "corner":
        boxes = at.emit("Add", prior, moved)
    else:
        boxes = _about_centres(at, prior, moved)
    if at.flag("clip_before_nms"):
        boxes = at.emit("Clip", boxes, at.like(0), at.like(1))
    return boxes


def _about_centres(at: Site, prior: ir.Value, moved: ir.Value) -> ir.Value:
    """Boxes whose centres are moved by parts of their sizes, and whose sizes grow by powers."""
    low, high = (_half(at, prior, end) for end in (0, 1))
    size, half = at.emit("Sub", high, low), at.like(0.5)
    middle = at.emit("Mul", at.emit("Add", low, high), half)
    middle = at.emit("Add", at.emit("Mul", _half(at, moved, 0), size), middle)
    reach = at.emit("Mul", at.emit("Mul", at.emit("Exp", _half(at, moved, 1)), size), half)
    return at.emit("Concat", at.emit("Sub", middle, reach), at.emit("Add", middle, reach), axis=3)


def _half(at: Site, corners: ir.Value, end: int) -> ir.Value:
    """The first or the last two of four numbers."""
    return at.emit("Slice", corners, *(at.const([n], np.int64) for n in (2 * end, 2 * end + 2, 3)))


def _scores(at: Site, detector: _Detector) -> ir.Value:
    """Scores, (images, classes, boxes); infinitely low for all but the best of each class."""
    shape = at.const([-1, detector.boxes, detector.classes], np.int64)
    scores = at.emit("Transpose", at.emit("Reshape", at.inputs[1], shape), perm=[0, 2, 1])
    background = at.integer("background_label_id", 0)
    if 0 <= background < detector.classes:
        lowest = np.zeros((detector.classes, 1), at.dtype(1))
        lowest[background] = -np.inf
        scores = at.emit("Add", scores, at.const(lowest))
    most = at.integer("top_k", -1)
    if not 0 < most < detector.boxes:
        return scores
    best, places = at.emit_many("TopK", 2, scores, at.const([most], np.int64), axis=2)
    return at.emit("ScatterElements", _lowest(at, scores), places, best, axis=2)


def _lowest(at: Site, like: ir.Value) -> ir.Value:
    """Infinitely low scores, as many as there are."""
    return at.emit("Expand", at.like(-np.inf, 1), at.emit("Shape", like))


def _without_overlaps(at: Site, detector: _Detector, boxes: ir.Value, scores: ir.Value) -> ir.Value:
    """Scores, (images, classes * boxes); infinitely low for what is not detected."""
    if detector.shared:
        given = at.emit("Squeeze", boxes, at.const([1], np.int64))
    else:  # NonMaxSuppression has the same boxes for all classes: each is an image of its own
        given = at.emit("Reshape", boxes, at.const([-1, detector.boxes, 4], np.int64))
        scores = at.emit("Reshape", scores, at.const([-1, 1, detector.boxes], np.int64))
    limits = at.const([detector.boxes], np.int64), at.const([at.real("nms_threshold")], np.float32)
    least = at.const([at.real("confidence_threshold", 0)], np.float32)
    wide = [at.emit("CastLike", one, at.const(0, np.float32)) for one in (given, scores)]
    places = at.emit("NonMaxSuppression", *wide, *limits, least)
    found = at.emit("ScatterND", _lowest(at, scores), places, at.emit("GatherND", scores, places))
    return at.emit("Reshape", found, at.const([-1, detector.classes * detector.boxes], np.int64))


def _rows(
    at: Site, detector: _Detector, boxes: ir.Value, best: ir.Value, places: ir.Value
) -> ir.Value:
    """The rows of the result, of the best scores and where these are among classes and boxes."""
    number = at.const(detector.boxes, np.int64)
    labels, of_class = at.emit("Div", places, number), at.emit("Mod", places, number)
    detected = at.emit("Greater", best, at.like(-np.inf, 1))
    # By class, then by score; what is not detected comes last.
    rank = at.const(np.arange(detector.kept), np.int64)
    group = at.emit("Where", detected, labels, at.const(detector.classes, np.int64))
    order = at.emit("Add", at.emit("Mul", group, at.const(detector.kept, np.int64)), rank)
    shape = at.emit("Shape", order)
    flat = at.const([-1], np.int64)
    images = at.emit("Range", at.const(0, np.int64), _scalar(at, shape), at.const(1, np.int64))
    images = at.emit("Expand", at.emit("Unsqueeze", images, at.const([1], np.int64)), shape)
    span = at.const((detector.classes + 1) * detector.kept, np.int64)
    after = at.emit("Mul", _scalar(at, shape), span)  # behind all images
    late = at.emit("Where", detected, at.emit("Mul", images, span), after)
    keys = at.emit("Reshape", at.emit("Add", order, late), flat)
    _, picked = at.emit_many("TopK", 2, keys, at.size(keys, 0), axis=0, largest=0, sorted=1)

    def in_order(value: ir.Value) -> ir.Value:
        return at.emit("Gather", at.emit("Reshape", value, flat), picked)

    own = at.const(0, np.int64) if detector.shared else at.const(1, np.int64)
    indices = [in_order(images), at.emit("Mul", in_order(labels), own), in_order(of_class)]
    one = at.const([1], np.int64)
    where = at.emit("Concat", *(at.emit("Unsqueeze", value, one) for value in indices), axis=1)
    corners = at.emit("GatherND", boxes, where)
    if at.flag("clip_after_nms"):
        corners = at.emit("Clip", corners, at.like(0), at.like(1))
    numbers = [at.emit("CastLike", in_order(value), best) for value in (images, labels)]
    heads = [at.emit("Unsqueeze", value, one) for value in (*numbers, in_order(best))]
    rows = at.emit("Concat", *heads, corners, axis=1)
    valid = in_order(detected)
    rows = at.emit("Where", at.emit("Unsqueeze", valid, one), rows, at.like(0))
    # The first row that is none has the number -1.
    count = at.emit("ReduceSum", at.emit("CastLike", valid, at.const(0, np.int64)), keepdims=1)
    ends = at.emit("Equal", at.emit("Range", *_counted(at, keys)), count)
    end = at.emit("Unsqueeze", at.emit("CastLike", ends, best), one)
    first = np.zeros((1, 7), at.dtype(1))
    first[0, 0] = 1
    rows = at.emit("Sub", rows, at.emit("Mul", end, at.const(first)))
    return at.emit("Unsqueeze", rows, at.const([0, 1], np.int64))


def _counted(at: Site, values: ir.Value) -> Sequence[ir.Value]:
    """The ends of a range of as many numbers as there are values."""
    return at.const(0, np.int64), _scalar(at, at.size(values, 0)), at.const(1, np.int64)


def _scalar(at: Site, numbers: ir.Value) -> ir.Value:
    return at.emit("Gather", numbers, at.const(0, np.int64))

"""Operators of object detection: boxes that survive suppression, features of regions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import InputError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.shapes.symbolic_size import integers
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.movement.index_steps import checked_index
from partita_cpu.kernels.movement.rearrange import transposed
from partita_cpu.kernels.operator_table import ALL_FLOATS, F32, FLOATS, INT64, kernel
from partita_cpu.scalar.instructions import like

MOST_SAMPLES = 1024
"""Samples that RoiAlign takes per cell and dimension; networks take 2, or one per pixel."""


TOGETHER = 64
"""Boxes kept that a candidate is compared with between two looks at whether one covers it."""


STRIP = 256
"""Boxes of a strip, whose kept ones are passed over if a candidate is beside all of them."""

MOST_STRIPS = 256
"""Strips at most; each is looked at for every candidate."""


@loop
def suppress(
    sides: Array,
    order: Array,
    strips: Array,
    kept: Array,
    found: Array,
    counts: Array,
    bounds: Array,
    limit: int,
    threshold: float,
) -> int:
    """Go through boxes from the best on, and keep those that overlap no kept one too much.

    Args:
        sides: (5, boxes): least x and y, largest x and y, and area of each.
        order: Boxes to look at, the best first.
        strips: Of each box the strip that it lies in; all 0 of one strip.
        kept: Output: the boxes kept; at least `limit` elements.
        found: (5, strips, boxes of a strip) as `sides`; scratch for those kept.
        counts: Scratch: boxes kept of each strip.
        bounds: (2, strips): scratch for the least and largest x of those.
        limit: The most to keep.
        threshold: Largest intersection over union allowed; that of boxes without area is 0. Not
            below 0 if there are several strips.

    Returns:
        The number of boxes kept.
    """
    all_strips = counts.size
    for strip in range(all_strips):
        counts[strip] = 0
        bounds[0, strip], bounds[1, strip] = like(bounds[0, 0], np.inf), like(bounds[0, 0], -np.inf)
    count = 0
    for candidate in order:
        if count == limit:
            break
        x0, y0 = sides[0, candidate], sides[1, candidate]
        x1, y1 = sides[2, candidate], sides[3, candidate]
        area = sides[4, candidate]
        hits = 0
        for strip in range(all_strips):
            apart = all_strips > 1 and not (x1 > bounds[0, strip] and x0 < bounds[1, strip])
            begin = counts[strip] if apart else 0
            while begin < counts[strip] and hits == 0:
                end = min(begin + TOGETHER, counts[strip])
                for k in range(begin, end):
                    left = found[0, strip, k] if found[0, strip, k] > x0 else x0
                    top = found[1, strip, k] if found[1, strip, k] > y0 else y0
                    right = found[2, strip, k] if found[2, strip, k] < x1 else x1
                    bottom = found[3, strip, k] if found[3, strip, k] < y1 else y1
                    width, height = right - left, bottom - top
                    shared = width * height
                    beside = (width > 0) & (height > 0) & (area > 0) & (found[4, strip, k] > 0)
                    quotient = shared / (area + found[4, strip, k] - shared)
                    hits |= int((quotient if beside else like(quotient, 0)) > threshold)
                begin = end
            if hits:
                break
        if hits == 0:
            kept[count] = candidate
            strip = strips[candidate]
            for i in range(5):
                found[i, strip, counts[strip]] = sides[i, candidate]
            bounds[0, strip] = min(bounds[0, strip], x0)
            bounds[1, strip] = max(bounds[1, strip], x1)
            counts[strip] += 1
            count += 1
    return count


def _strips(sides: Array, threshold: float) -> tuple[Array, int, int]:
    """The strip of each box by its middle, how many there are, and how many boxes one holds."""
    boxes = sides.shape[1]
    count = min(boxes // STRIP, MOST_STRIPS)
    if count < 2 or not threshold >= 0 or not np.isfinite(sides).all():
        return np.zeros(boxes, np.int64), 1, boxes
    room = -(-boxes // count)
    ranks = np.empty(boxes, np.int64)
    ranks[np.argsort(sides[0] / 2 + sides[2] / 2)] = np.arange(boxes)
    return ranks // room, count, room


def _sides(boxes: Array, centred: int) -> Array:
    """Of boxes (boxes, 4), by two corners or by centre and size, what `suppress` reads."""
    first, last = boxes[:, :2], boxes[:, 2:]
    if centred:
        first, last = first - last / 2, first + last / 2
    else:
        first, last = np.minimum(first, last)[:, ::-1], np.maximum(first, last)[:, ::-1]
    sides = np.empty((5, boxes.shape[0]), boxes.dtype)
    sides[:2], sides[2:4] = first.T, last.T
    sides[4] = (sides[2] - sides[0]) * (sides[3] - sides[1])
    return sides


@kernel("NonMaxSuppression", dtypes={0: F32, 1: F32, 2: INT64, 3: F32, 4: F32})
def non_max_suppression(
    b: Builder,
    node: Node,
    boxes: Operand,
    scores: Operand,
    most: Operand | None = None,
    overlap: Operand | None = None,
    least: Operand | None = None,
) -> Operand:
    """(batch, class, box) of the boxes kept, best first within each class."""
    centred = int(node.attrs.get("center_point_box", 0))
    inputs = [boxes, scores, most, overlap, least, centred]
    return b.dynamic(_kept_boxes, inputs, [np.int64])[0]


def _kept_boxes(
    boxes: Array,
    scores: Array,
    most: Array | None,
    overlap: Array | None,
    least: Array | None,
    centred: int,
) -> tuple[Array]:
    """What NonMaxSuppression selects: rows of image, class and box.

    Args:
        boxes: (image, box, 4).
        scores: (image, class, box).
        most: How many boxes of a class are kept at most; None for none.
        overlap: The largest overlap of two that are kept; None for 0.
        least: Scores must be larger; None for all.
        centred: Whether boxes are given by their centres.
    """
    limit = 0 if most is None else min(int(most.ravel()[0]), boxes.shape[1])
    threshold = 0.0 if overlap is None else float(overlap.ravel()[0])
    found: list[Array] = [np.empty((0, 3), np.int64)]
    kept = np.empty(max(limit, 0), np.int64)
    for batch, per_class in enumerate(scores if limit > 0 else ()):
        sides = _sides(boxes[batch], centred)
        strips, strip_count, room = _strips(sides, threshold)
        chosen = np.empty((5, strip_count, room), boxes.dtype)
        counts = np.empty(strip_count, np.int64)
        bounds = np.empty((2, strip_count), boxes.dtype)
        for number, row in enumerate(per_class):
            order = np.argsort(-row, kind="stable")
            if least is not None:
                order = order[row[order] > least.ravel()[0]]
            count = suppress(sides, order, strips, kept, chosen, counts, bounds, limit, threshold)
            rows = np.empty((count, 3), np.int64)
            rows[:] = batch, number, 0
            rows[:, 2] = kept[:count]
            found.append(rows)
    return (np.concatenate(found),)


class RoiSampling(NamedTuple):
    """How regions are sampled.

    Attributes:
        scale: From region to input coordinates.
        offset: Subtracted from them; 0.5 where pixels are areas, 0 where they are points.
        ratio: Samples per cell and dimension; 0 for as many as the cell has pixels.
        is_max: Whether the largest weighted neighbour is wanted instead of the mean.
    """

    scale: float
    offset: float
    ratio: int
    is_max: int


@loop
def roi_align_cells(
    x: Array,
    rois: Array,
    batches: Array,
    y: Array,
    sizes: Array,
    sampling: RoiSampling,
    tid: int,
    nt: int,
) -> None:
    """Each cell of each region: the mean, or the largest, of bilinear samples within it.

    Args:
        x: Input (N, H, W, C), flat.
        rois: (regions, 4): x1, y1, x2, y2.
        batches: The image of each region.
        y: Output (regions, out height, out width, C), flat.
        sizes: C, H, W, out height, out width.
        sampling: How regions are sampled.
        tid: This thread.
        nt: All threads; they share the cells.
    """
    channels, height, width, oh, ow = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    kind, ratio, is_max = x.dtype.type, sampling.ratio, sampling.is_max
    # In the regions' type, as other engines: how many samples there are depends on the last bit.
    scale, offset = kind(sampling.scale), kind(sampling.offset)
    cells = rois.shape[0] * oh * ow
    for place in range(cells * tid // nt, cells * (tid + 1) // nt):
        n = place // (oh * ow)
        i, j = place // ow % oh, place % ow
        x0, y0 = rois[n, 0] * scale - offset, rois[n, 1] * scale - offset
        across, down = rois[n, 2] * scale - offset - x0, rois[n, 3] * scale - offset - y0
        if offset == 0:
            across, down = max(across, 1.0), max(down, 1.0)
        cell_w, cell_h = kind(across / ow), kind(down / oh)
        # Regions may be of any size: counts are floats, and samples beside the image are left out.
        count_w = float(ratio) if ratio > 0 else max(np.ceil(cell_w), 0.0)
        count_h = float(ratio) if ratio > 0 else max(np.ceil(cell_h), 0.0)
        first_a, last_a = _samples(y0 + i * cell_h, cell_h, count_h, height)
        first_b, last_b = _samples(x0 + j * cell_w, cell_w, count_w, width)
        # The largest begins with the first sample, unless those left out, which are 0, count.
        is_first = last_a - first_a == count_h and last_b - first_b == count_w
        cell = y[place * channels : (place + 1) * channels]
        for c in range(channels):
            cell[c] = kind(0)
        for a in range(first_a, last_a):
            py = y0 + i * cell_h + (a + 0.5) * cell_h / count_h
            for b in range(first_b, last_b):
                px = x0 + j * cell_w + (b + 0.5) * cell_w / count_w
                inside = -1 <= py <= height and -1 <= px <= width  # NaN is not
                if height == 0 or width == 0 or not inside:
                    if is_max:
                        for c in range(channels):
                            cell[c] = kind(0) if is_first else max(cell[c], kind(0))
                        is_first = False
                    continue
                qy, qx = max(py, 0.0), max(px, 0.0)
                top, left = min(int(qy), height - 1), min(int(qx), width - 1)
                bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
                fy = qy - top if top < height - 1 else 0.0
                fx = qx - left if left < width - 1 else 0.0
                w0, w1 = kind((1 - fy) * (1 - fx)), kind((1 - fy) * fx)
                w2, w3 = kind(fy * (1 - fx)), kind(fy * fx)
                upper = (batches[n] * height + top) * width
                lower = (batches[n] * height + bottom) * width
                x00 = x[(upper + left) * channels : (upper + left + 1) * channels]
                x01 = x[(upper + right) * channels : (upper + right + 1) * channels]
                x10 = x[(lower + left) * channels : (lower + left + 1) * channels]
                x11 = x[(lower + right) * channels : (lower + right + 1) * channels]
                if not is_max:
                    for c in range(channels):
                        above, below = w0 * x00[c] + w1 * x01[c], w2 * x10[c] + w3 * x11[c]
                        cell[c] += above + below
                    continue
                for c in range(channels):
                    most = max(max(w0 * x00[c], w1 * x01[c]), max(w2 * x10[c], w3 * x11[c]))
                    cell[c] = most if is_first else max(cell[c], most)
                is_first = False
        if not is_max:
            count = kind(max(count_h * count_w, 1.0))
            for c in range(channels):
                cell[c] /= count


@jit(inline=True)
def _samples(start: float, cell: float, count: float, size: int) -> tuple[int, int]:
    """The samples of a cell that may lie on the image, of ``count`` that are evenly spread."""
    if not (count > 0 and abs(start) < np.inf and cell < np.inf):
        return 0, 0
    if not cell > 0:
        return 0, int(min(count, MOST_SAMPLES))
    first = np.floor((-1.0 - start) / cell * count) - 1.0
    last = np.ceil((size - start) / cell * count) + 1.0
    low = min(max(first, 0.0), count)
    high = min(max(last, low), min(count, low + float(MOST_SAMPLES) * (size + 4)))
    return (int(low), int(high)) if low < 9e18 and high < 9e18 else (0, 0)


def check_ratio(node: Node) -> Reason | None:
    """Why a RoiAlign takes more samples than its kernel, or ``None``."""
    ratio = node.attrs.get("sampling_ratio", 0)
    if 0 <= ratio <= MOST_SAMPLES:
        return None
    return Reason(
        ReasonCode.UNSUPPORTED_ATTRIBUTE,
        f"sampling_ratio is {ratio}; takes 0 to {MOST_SAMPLES}",
    )


@kernel("RoiAlign", dtypes={0: ALL_FLOATS, 1: ALL_FLOATS, 2: INT64}, check=check_ratio)
@through_float32
def roi_align(b: Builder, node: Node, x: Operand, rois: Operand, batches: Operand) -> Operand:
    """Regions of interest, sampled bilinearly to a fixed size."""
    y = emit_roi_align(b, node, transposed(b, x, (0, 2, 3, 1)), rois, batches)
    return transposed(b, y, (0, 3, 1, 2))


def emit_roi_align(b: Builder, node: Node, x: Operand, rois: Operand, batches: Operand) -> Operand:
    """Regions of an image with channels last (N, H, W, C), likewise: (regions, oh, ow, C).

    Args:
        b: Records it.
        node: The operation, whose attributes count.
        x: The images.
        rois: (regions, 4) of the type of `x`: x1, y1, x2, y2.
        batches: int64 (regions); the image of each.

    Raises:
        InputError: An image is not there: now if they are constant, else at the run.
    """
    attrs = node.attrs
    oh, ow = attrs.get("output_height", 1), attrs.get("output_width", 1)
    n, height, width, channels = x.shape
    y = b.empty((rois.shape[0], oh, ow, channels), x.dtype)
    mode = attrs.get("coordinate_transformation_mode", "half_pixel")
    offset = 0.5 if node.version >= 16 and mode == "half_pixel" else 0.0
    images = checked_index(b, batches, n)
    if y.size:
        b.call(
            roi_align_cells,
            b.flat(x),
            rois,
            images,
            b.flat(y),
            b.constant(integers([channels, height, width, oh, ow])),
            RoiSampling(
                float(attrs.get("spatial_scale", 1.0)),
                offset,
                int(attrs.get("sampling_ratio", 0)),
                int(attrs.get("mode", "avg") == "max"),
            ),
            work=y.size * 16,
        )
    return y


@jit(inline=True)
def _nearest(place: float) -> int:
    """The whole number next to a place; of two, that which is farther from zero."""
    return int(np.floor(place + 0.5) if place >= 0 else np.ceil(place - 0.5))


@jit
def max_roi_rows(
    x: Array, rois: Array, y: Array, sizes: Array, scale: float, tid: int, nt: int
) -> None:
    """Each cell of each region (image, x1, y1, x2, y2): the largest element in it.

    Args:
        x: Input (N, C, H, W), flat.
        rois: (regions, 5).
        y: Output (regions, C, out height, out width), flat.
        sizes: C, H, W, out height, out width.
        scale: From region to input coordinates.
        tid: This thread.
        nt: All threads; they share regions times channels.
    """
    channels, height, width, oh, ow = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    planes = rois.shape[0] * channels
    for plane in range(planes * tid // nt, planes * (tid + 1) // nt):
        n = plane // channels
        source = (int(rois[n, 0]) * channels + plane % channels) * height * width
        x0 = _nearest(rois[n, 1] * scale)
        y0 = _nearest(rois[n, 2] * scale)
        across = max(_nearest(rois[n, 3] * scale) - x0 + 1, 1)
        down = max(_nearest(rois[n, 4] * scale) - y0 + 1, 1)
        for i in range(oh):
            top = min(max(y0 + i * down // oh, 0), height)
            bottom = min(max(y0 - (-(i + 1) * down // oh), 0), height)
            for j in range(ow):
                left = min(max(x0 + j * across // ow, 0), width)
                right = min(max(x0 - (-(j + 1) * across // ow), 0), width)
                empty = bottom <= top or right <= left
                best = x.dtype.type(0) if empty else x[source + top * width + left]
                for r in range(top, bottom):
                    for c in range(left, right):
                        best = max(best, x[source + r * width + c])
                y[(plane * oh + i) * ow + j] = best


@kernel("MaxRoiPool", dtypes=FLOATS)
def max_roi_pool(b: Builder, node: Node, x: Operand, rois: Operand) -> Operand:
    """Regions of interest, pooled to a fixed size."""
    oh, ow = node.attrs["pooled_shape"]
    y = b.empty((rois.shape[0], x.shape[1], oh, ow), x.dtype)
    b.call_numpy(_check_images, rois, x.shape[0], node.name)
    if y.size:
        sizes = b.constant(np.array([*x.shape[1:], oh, ow], np.int64))
        scale = node.number("spatial_scale", 1.0)
        b.call(max_roi_rows, b.flat(x), rois, b.flat(y), sizes, scale, work=x.size)
    return y


def _check_images(rois: Array, images: int, name: str) -> None:
    numbers = rois[:, 0]
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < images):
        raise InputError(
            f"Operation '{name}': a region is of image {numbers.min():g} or {numbers.max():g}, "
            f"but there are {images}."
        )

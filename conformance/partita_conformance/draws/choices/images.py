"""Systematic draws of resampling between pixels, and of regions and boxes in images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.choices.meet import meetings, meetings_of_three
from partita_conformance.draws.choices.numbers import numbers, whole
from partita_conformance.draws.draw import Array, Draw, scalar

_PLACES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
_BETWEEN = ("half_pixel", "asymmetric", "half_pixel_symmetric")
"""Of which engines do not differ where scales times sizes are no whole numbers."""
_ROUNDED = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")


def _resized(x: Array, row: Mapping[str, Any], given: dict[str, Any], opset: int = 17) -> Draw:
    """An image resized by the factors of a row, which are scales or sizes."""
    scales = np.array([1, 1, *row["factors"]], np.float32)
    sizes = whole([*x.shape[:2], *(scales[2:] * x.shape[2:])])
    inputs, known = ([x, None, None, sizes], [3]) if row["sized"] else ([x, None, scales], [2])
    return Draw(inputs, given, known, opset=opset)


def resize() -> Iterator[Draw]:
    """Ways to look for places and to weigh, up and down, by scales and sizes; see what it calls."""
    for row in meetings(
        mode=("linear", "cubic"), where=_PLACES, slope=(-0.75, -0.5), outside=(0, 1),
        factors=((0.5, 0.5), (0.5, 2), (0.25, 0.5), (2, 0.25)), sized=(0, 1),
    ):  # fmt: skip
        given = {"mode": row["mode"], "antialias": 1, "exclude_outside": row["outside"]}
        given |= {"coordinate_transformation_mode": row["where"], "cubic_coeff_a": row["slope"]}
        yield _resized(numbers(1, 2, 8, 12), row, given, 18)
    for row in meetings(
        mode=("nearest", "linear", "cubic"), where=_PLACES, rounded=_ROUNDED,
        factors=((2, 3), (0.5, 2), (1.5, 0.5), (1, 2)), outside=(0, 1), sized=(0, 1),
        slope=(-0.75, -0.5),
    ):  # fmt: skip
        given = _weighed(row) | {"coordinate_transformation_mode": row["where"]}
        yield _resized(numbers(2, 1, 4, 6), row, given)
    yield from _of_axes()
    yield from _of_each_rank()
    yield from _cropped()
    for mode in ("nearest", "linear"):  # where an image shrinks, engines round otherwise
        scales = np.array([1, 1, 1.25, 2.25], np.float32)
        yield Draw([numbers(1, 2, 8, 4), scales], {"mode": mode}, [1], opset=10)


def _weighed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a row that its mode reads."""
    given: dict[str, Any] = {"mode": row["mode"]}
    if row["mode"] == "nearest":
        given["nearest_mode"] = row["rounded"]
    if row["mode"] == "cubic":
        given |= {"exclude_outside": row["outside"], "cubic_coeff_a": row["slope"]}
    return given


def _of_axes() -> Iterator[Draw]:
    """Named axes in each order, by scales and by sizes, kept in proportion or not."""
    x = numbers(1, 2, 4, 6)
    for axes, mode in itertools.product(
        ([2, 3], [3, 2], [-1, -2], [3], [-2]), ("nearest", "linear")
    ):
        given: dict[str, Any] = {"axes": axes, "mode": mode}
        scales = np.array([2, 0.5][: len(axes)], np.float32)
        yield Draw([x, None, scales], given, (1, 2), opset=18)
        sizes = whole([7, 3][: len(axes)])
        for policy in _POLICIES if min(axes) >= 0 else _POLICIES[:1]:  # engines differ otherwise
            more = {**given, "keep_aspect_ratio_policy": policy}
            yield Draw([x, None, None, sizes], more, (3,), opset=18)
    for row in meetings(
        mode=("nearest", "linear", "cubic"), where=_BETWEEN, rounded=_ROUNDED,
        axes=([2, 3], [3, 2]), factors=((0.71, 1.67), (2.59, 0.61), (1.37, 2.41)),
        outside=(0, 1), slope=(-0.75, -0.5), smooth=(0, 1),
    ):  # fmt: skip
        given = _weighed(row) | {"coordinate_transformation_mode": row["where"]}
        given |= {"axes": row["axes"]}
        given |= {"antialias": 1} if row["smooth"] and row["mode"] != "nearest" else {}
        yield Draw([x, None, np.array(row["factors"], np.float32)], given, (2,), opset=19)


def _of_each_rank() -> Iterator[Draw]:
    """Rows, images and volumes, batches and channels that grow too, down to a single pixel."""
    shapes = ((3, 5), (1, 2, 5), (2, 3, 4), (1, 1, 3, 4, 5))
    grown = ((4, 8), (1, 2, 9), (3, 5, 6), (1, 1, 5, 3, 8))
    sizes = grown, ((2, 1), (1, 2, 1), (1, 2, 2), (1, 1, 2, 1, 3))
    for mode, where, (turn, targets) in itertools.product(
        ("nearest", "linear"),
        ("half_pixel", "align_corners", "pytorch_half_pixel"),
        enumerate(sizes),
    ):
        for number, (shape, target) in enumerate(zip(shapes, targets, strict=True)):
            if (number + turn) % 2 or where == "half_pixel":
                given = {"mode": mode, "coordinate_transformation_mode": where}
                yield Draw([numbers(*shape), None, None, whole(target)], given, (3,))


def _cropped() -> Iterator[Draw]:
    """Regions of an image, of named axes and of all, in part beyond its edge."""
    for row in meetings(
        mode=("nearest", "linear", "cubic"), rounded=_ROUNDED, axes=(None, [2, 3], [3, 2]),
        beyond=(0.0, -3.5), roi=((0.23, -0.31, 1.37, 0.89), (0.11, 0.21, 0.83, 0.77)),
        sizes=((5, 7), (3, 2), (4, 6)), outside=(0, 1), slope=(-0.75, -0.5),
    ):  # fmt: skip
        given = _weighed(row) | {"coordinate_transformation_mode": "tf_crop_and_resize"}
        given |= {"extrapolation_value": row["beyond"]}
        roi, sizes = [*row["roi"]], [*row["sizes"]]
        opset = 18
        if row["axes"] is None:
            roi, sizes = [0, 0, *roi[:2], 1, 1, *roi[2:]], [1, 2, *sizes]
            opset = 13
        else:
            given["axes"] = row["axes"]
        inputs = [numbers(1, 2, 4, 6), np.array(roi, np.float32), None, whole(sizes)]
        yield Draw(inputs, given, (1, 3), opset=opset)


def upsample() -> Iterator[Draw]:
    """Images of each rank, by whole factors and by others, batches too."""
    for mode in ("nearest", "linear"):
        for shape, scales in (
            ((1, 2, 3, 4), (1, 1, 2, 3)), ((1, 2, 4, 6), (1, 1, 1.5, 2.5)), ((2, 3, 5), (1, 1, 2)),
            ((2, 3), (2, 3)), ((1, 2, 4, 6), (1, 1, 1, 1.25)),
        ):  # fmt: skip
            inputs = [numbers(*shape), np.array(scales, np.float32)]
            if mode == "nearest" or len(shape) != 3:
                yield Draw(inputs, {"mode": mode}, [1], opset=9)


def grid_sample() -> Iterator[Draw]:
    """Modes, what lies beyond the edge, corners, places far away, images and volumes."""
    for row in meetings_of_three(
        mode=("linear", "nearest", "cubic"), padding_mode=("zeros", "border", "reflection"),
        align_corners=(0, 1), batch=(1, 2), rank=(4, 5), reach=(1.31, 4.3),
    ):  # fmt: skip
        batch, rank, reach = row.pop("batch"), row.pop("rank"), row.pop("reach")
        if rank == 5 and row["mode"] == "cubic":
            continue
        sizes = (3, 4, 5)[5 - rank :]
        grid = (numbers(batch, *(2, 3, 4)[5 - rank :], rank - 2) - 1.22) * reach
        yield Draw([numbers(batch, 2, *sizes), grid.astype(np.float32)], row, opset=20)


def affine_grid() -> Iterator[Draw]:
    """Planes and volumes, corners aligned or not."""
    for align, size in itertools.product((0, 1), ((2, 3, 4, 5), (1, 2, 3, 2), (2, 1, 2, 3, 4))):
        theta = numbers(size[0], len(size) - 2, len(size) - 1) - 1
        yield Draw([theta, whole(size)], {"align_corners": align}, [1], opset=20)


_BOXES = ((0.6, 1.2, 6.3, 5.1), (-2.4, -1.3, 3.7, 9.6), (2.2, 3.4, 2.5, 3.6), (1.1, 0.3, 8.9, 2.2))
"""Regions within the image, across its edge, smaller than a pixel, and long ones."""


def roi_align() -> Iterator[Draw]:
    """Ways to sample, scales, sizes, and regions of other images in other orders."""
    for row in meetings_of_three(
        mode=("avg", "max"), sampling_ratio=(0, 1, 2), spatial_scale=(1.0, 0.5),
        coordinate_transformation_mode=("half_pixel", "output_half_pixel"),
        size=((2, 3), (1, 1), (3, 2)), order=((0, 1, 0, 1), (1, 1, 0, 0)),
    ):  # fmt: skip
        height, width = row.pop("size")
        order = whole(row.pop("order"))
        given = {**row, "output_height": height, "output_width": width}
        yield Draw([numbers(2, 3, 7, 9), np.array(_BOXES, np.float32), order], given)


def max_roi_pool() -> Iterator[Draw]:
    """Scales and sizes, regions of other images, of one pixel and of all."""
    rois = [[1, 0, 0, 7, 6], [0, 2, 1, 5, 6], [1, 3, 3, 3, 3], [0, 1, 4, 6, 5]]
    for scale, shape in itertools.product((1.0, 0.5), ([2, 3], [1, 1], [3, 2])):
        given = {"pooled_shape": shape, "spatial_scale": scale}
        yield Draw([numbers(2, 3, 7, 8) - 1.2, np.array(rois, np.float32)], given)


def max_unpool() -> Iterator[Draw]:
    """Ranks, windows and pads, of several images and channels."""
    for row in meetings_of_three(rank=(1, 2, 3), kernel=(2, 3), pads=(0, 1), batch=(1, 2)):
        rank, kernel = row["rank"], row["kernel"]
        shape = (row["batch"], 2, *(2, 3, 2)[:rank])
        given = {"kernel_shape": [kernel] * rank, "strides": [kernel] * rank}
        given |= {"pads": [row["pads"]] + [0] * (2 * rank - 1)} if row["pads"] else {}
        sizes = [n * kernel for n in shape[2:]]
        sizes[0] -= row["pads"]
        plane, count = int(np.prod(sizes)), int(np.prod(shape[2:]))
        planes = np.arange(shape[0] * shape[1])[:, None] * plane
        places = (planes + np.arange(count) * (plane // count)).reshape(shape)
        yield Draw([numbers(*shape) - 1, places.astype(np.int64)], given)


def col2im() -> Iterator[Draw]:
    """Ranks, blocks, strides, dilations and pads that are uneven, of several images."""
    for row in meetings_of_three(
        rank=(2, 1, 3), block=((2, 3, 1), (3, 1, 2)), strides=((1, 1, 1), (2, 1, 2)),
        dilations=((1, 1, 1), (1, 2, 1)), pads=(0, 1, 2), batch=(1, 2), channels=(1, 3),
    ):  # fmt: skip
        rank = row["rank"]
        sizes, block = (5, 6, 4)[:rank], row["block"][:rank]
        steps, gaps = list(row["strides"][:rank]), list(row["dilations"][:rank])
        pads = [int(row["pads"] == 1)] * rank + [int(row["pads"] == 2)] * rank
        count = 1
        for axis in range(rank):
            reach = sizes[axis] + pads[axis] + pads[axis + rank] - (block[axis] - 1) * gaps[axis]
            count *= (reach - 1) // steps[axis] + 1
        x = numbers(row["batch"], row["channels"] * int(np.prod(block)), count)
        given = {"strides": steps, "dilations": gaps, "pads": pads}
        yield Draw([x, whole(sizes), whole(block)], given, [1, 2], opset=18)


def suppression() -> Iterator[Draw]:
    """Boxes by corners in any order or by centres, limits and none, batches and classes."""
    for row in meetings(
        center=(0, 1), batch=(1, 2), classes=(1, 3), most=(None, 0, 1, 3, 9),
        overlap=(None, 0.0, 0.4, 1.0), least=(None, 0.6), known=(0, 1),
    ):  # fmt: skip
        low = numbers(row["batch"], 9, 2) * 2
        size = numbers(row["batch"], 9, 2)[:, ::-1] + 1
        parts = [low + size / 2, size] if row["center"] else [low, low + size]
        if not row["center"]:  # each other box by its other corners
            parts = [
                np.where(np.arange(9)[:, None] % 3 == n, parts[1 - n], parts[n]) for n in (0, 1)
            ]
        scores = numbers(row["batch"], row["classes"], 9) / 2.6
        most = None if row["most"] is None else scalar(row["most"])
        limits = [
            most,
            *(None if row[n] is None else scalar(row[n], np.float32) for n in ("overlap", "least")),
        ]
        while limits and limits[-1] is None:
            limits.pop()
        boxes = np.concatenate(parts, 2).astype(np.float32)
        known = [n for n in (2, 3, 4) if n < 2 + len(limits)] if row["known"] else []
        yield Draw([boxes, scores, *limits], {"center_point_box": row["center"]}, known)


def deform_conv() -> Iterator[Draw]:
    """Groups of either kind, steps, pads, a mask and a bias, of several images."""
    for row in meetings(
        group=(1, 2), offset_group=(1, 2, 4), strides=((1, 1), (2, 1)), dilations=((1, 1), (1, 2)),
        pads=((0, 0, 0, 0), (1, 0, 1, 2)), bias=(0, 1), mask=(0, 1), batch=(1, 2),
        kernel=((2, 2), (1, 3)),
    ):  # fmt: skip
        kernel, sizes = row["kernel"], (4, 5)
        given = {n: row[n] for n in ("group", "offset_group")}
        given |= {n: list(row[n]) for n in ("strides", "dilations", "pads")}
        pads, steps, gaps = (row[n] for n in ("pads", "strides", "dilations"))
        out = [
            (sizes[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * gaps[i] - 1) // steps[i] + 1
            for i in (0, 1)
        ]
        taps = row["offset_group"] * kernel[0] * kernel[1]
        x, w = numbers(row["batch"], 4, *sizes) - 1.2, numbers(2, 4 // row["group"], *kernel) - 1.1
        inputs: list[Array | None] = [x, w, numbers(row["batch"], 2 * taps, *out) - 1.2]
        inputs.append(numbers(2) if row["bias"] else None)
        inputs.append(numbers(row["batch"], taps, *out) if row["mask"] else None)
        while inputs[-1] is None:
            inputs.pop()
        yield Draw(inputs, given, [1], opset=19)


IMAGES: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "Resize": resize,
    "Upsample": upsample,
    "GridSample": grid_sample,
    "AffineGrid": affine_grid,
    "RoiAlign": roi_align,
    "MaxRoiPool": max_roi_pool,
    "MaxUnpool": max_unpool,
    "Col2Im": col2im,
    "NonMaxSuppression": suppression,
    "DeformConv": deform_conv,
}
"""Operator to its draws."""

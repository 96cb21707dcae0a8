"""Random models of operators on images, and on boxes in them."""

from __future__ import annotations

import numpy as np

from partita_conformance.draws.draw import Draw, Rng, floats, one_of, scalar


def grid_sample(rng: Rng) -> Draw:
    """Draws GridSample."""
    grid = np.asarray(rng.uniform(-1.6, 1.6, [2, 3, 4, 2]), np.float32)
    given = {
        "mode": one_of(rng, "linear", "nearest", "cubic"),
        "padding_mode": one_of(rng, "zeros", "border", "reflection"),
        "align_corners": int(rng.integers(2)),
    }
    return Draw([floats(rng, [2, 2, 4, 5]), grid], given, opset=20)


def affine_grid(rng: Rng) -> Draw:
    """Draws AffineGrid."""
    size = np.array([2, 3, 4, 5], np.int64)
    return Draw(
        [floats(rng, [2, 2, 3]), size], {"align_corners": int(rng.integers(2))}, [1], opset=20
    )


def roi_align(rng: Rng) -> Draw:
    """Draws RoiAlign."""
    corners = np.asarray(rng.uniform(0, 3, [3, 2]), np.float32)
    boxes = np.concatenate([corners, corners + rng.uniform(2, 5, [3, 2])], 1).astype(np.float32)
    given = {
        "output_height": 2,
        "output_width": 3,
        "mode": one_of(rng, "avg", "max"),
        "sampling_ratio": one_of(rng, 0, 1, 3),
        "spatial_scale": one_of(rng, 1.0, 0.5),
        "coordinate_transformation_mode": one_of(rng, "half_pixel", "output_half_pixel"),
    }
    return Draw([floats(rng, [2, 2, 8, 8]), boxes, np.array([0, 1, 0], np.int64)], given)


def suppression(rng: Rng) -> Draw:
    """Draws NonMaxSuppression."""
    batch = int(rng.integers(1, 3))
    a = np.asarray(rng.uniform(0, 3, [batch, 8, 2]), np.float32)
    boxes = np.concatenate([a, a + rng.uniform(1, 3, [batch, 8, 2])], 2).astype(np.float32)
    limits = [scalar(7), scalar(0.3, np.float32), scalar(0.2, np.float32)]
    scores = np.asarray(rng.random([batch, 2, 8]), np.float32)
    scores[..., ::2] = limits[2]  # which is not above the threshold
    given = {"center_point_box": int(rng.integers(2))}
    count = one_of(rng, 3, 3, 2, 1, 0)  # boxes per class are none unless a limit is given
    if rng.random() < 0.3:
        boxes = np.stack([rng.permutation(_OVERLAPPING) for _ in range(batch)])
        limits[1] = scalar(0.5, np.float32)
        if given["center_point_box"]:
            low, high = (
                np.minimum(boxes[..., :2], boxes[..., 2:]),
                np.maximum(*np.split(boxes, 2, 2)),
            )
            boxes = np.concatenate([(low + high) / 2, high - low], 2)[..., [1, 0, 3, 2]]
    return Draw([boxes, scores, *limits[:count]], given, [2, 3, 4])


_OVERLAPPING = np.array(
    [
        *([0, 0, 2, 2], [0, 0, 2, 1], [2, 1, 0, 2], [0, 2, 1, 0]),
        *([4, 0, 6, 2], [6, 2, 5, 0], [4, 0, 6, 2], [7, 7, 7, 9]),
    ],
    np.float32,
)
"""Boxes by any two opposite corners, some of which share half their area, or all of it."""


def upsample(rng: Rng) -> Draw:
    """Draws Upsample of opset 9."""
    scales = np.array([1, 1, 2, 3], np.float32)
    mode = {"mode": one_of(rng, "nearest", "linear")}
    return Draw([floats(rng, [1, 2, 3, 4]), scales], mode, [1], opset=9)


def col2im(rng: Rng) -> Draw:
    """Draws Col2Im."""
    size, block = np.array([5, 5], np.int64), np.array([2, 2], np.int64)
    more, count = one_of(
        rng,
        ({}, 16),
        ({"dilations": [2, 2]}, 9),
        ({"pads": [1, 0, 1, 0]}, 24),
        ({"strides": [2, 2]}, 4),
    )
    return Draw([floats(rng, [1, 8, count]), size, block], more, [1, 2], opset=18)


def center_crop_pad(rng: Rng) -> Draw:
    """Draws CenterCropPad."""
    axes = one_of(rng, [0, 1], [1, 0], [-1, 0], [1, 2])
    sizes = np.asarray(rng.integers(2, 9, 2), np.int64)
    return Draw([floats(rng, [4, 5, 6]), sizes], {"axes": axes}, [1], opset=18)

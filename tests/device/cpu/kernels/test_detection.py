"""Box suppression and features of regions against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from single_op import assert_same, check, normal, run_ours

from partita.errors import InputError


def scalar(value: float, kind: type) -> np.ndarray:
    return np.array([value], kind)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("least", [None, 0.3])
@pytest.mark.parametrize("most", [0, 3, 100])
def test_non_max_suppression(centred, overlap, least, most):
    rng = np.random.default_rng(1)
    boxes = rng.random((2, 12, 4)).astype(np.float32)
    scores = (rng.integers(0, 10, (2, 3, 12)) / 10).astype(np.float32)
    inputs = [boxes, scores, scalar(most, np.int64), scalar(overlap, np.float32)]
    inputs += [] if least is None else [scalar(least, np.float32)]
    check("NonMaxSuppression", inputs, center_point_box=centred)


def test_suppression_of_no_boxes():
    boxes, scores = np.zeros((1, 0, 4), np.float32), np.zeros((1, 1, 0), np.float32)
    (kept,) = run_ours("NonMaxSuppression", [boxes, scores, scalar(3, np.int64)])
    assert kept.shape == (0, 3)
    (kept,) = run_ours("NonMaxSuppression", [boxes, scores])
    assert kept.shape == (0, 3)


REGIONS = np.array([[1, 1, 6, 7], [0, 0, 3.5, 3.5], [-2, 3, 20, 5], [4, 4, 4, 4]], np.float32)


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_roi_align(opset, mode, ratio, scale):
    images = np.array([0, 1, 1, 0])
    check(
        "RoiAlign",
        [normal(1, 2, 3, 9, 8), REGIONS, images],
        opset=opset,
        mode=mode,
        sampling_ratio=ratio,
        spatial_scale=scale,
        output_height=3,
        output_width=2,
    )


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("where", ["half_pixel", "output_half_pixel"])
def test_roi_align_counts_samples_in_the_regions_type(where, mode):
    """15 times 0.8 are 12 pixels in float32, 6 per cell; in float64 a little more, and 7."""
    region, given = np.array([[-3, -2, 12, 5]], np.float32), {"spatial_scale": 0.8, "mode": mode}
    given |= {"output_height": 3, "output_width": 2, "coordinate_transformation_mode": where}
    check("RoiAlign", [normal(1, 1, 2, 8, 8), region, np.array([0])], **given)


def test_roi_align_without_offset():
    inputs = [normal(1, 2, 3, 9, 8), REGIONS, np.array([0, 1, 1, 0])]
    check("RoiAlign", inputs, coordinate_transformation_mode="output_half_pixel")


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool(scale):
    numbers = np.array([[0], [1], [1], [0]], np.float32)
    regions = np.concatenate([numbers, REGIONS], axis=1)
    regions = np.concatenate([regions, np.array([[0, -3, -1, 5, 7]], np.float32)])  # halves below 0
    inputs = [normal(1, 2, 3, 9, 8), regions]
    check("MaxRoiPool", inputs, pooled_shape=[3, 2], spatial_scale=scale)


def test_images_out_of_range():
    x = normal(1, 2, 3, 9, 8)
    with pytest.raises(InputError, match="index 2 is out of range"):
        run_ours("RoiAlign", [x, REGIONS[:1], np.array([2])])
    region = np.array([[2, 0, 0, 1, 1]], np.float32)
    with pytest.raises(InputError, match="but there are 2"):
        run_ours("MaxRoiPool", [x, region], pooled_shape=[1, 1])


def test_undefined_regions_read_nothing():
    regions = np.full((1, 4), np.nan, np.float32)
    (got,) = run_ours("RoiAlign", [normal(1, 1, 2, 5, 5), regions, np.array([0])], sampling_ratio=2)
    assert_same(got, np.zeros((1, 2, 1, 1), np.float32), 0, 0)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.7])
def test_many_boxes_of_which_some_have_no_area(centred, overlap):
    """More than are compared at a time, so that some are kept in each block."""
    rng = np.random.default_rng(3)
    boxes = rng.uniform(0, 9, (2, 400, 4)).astype(np.float32)
    boxes[:, ::7] = boxes[:, :1]
    boxes[:, ::11, 2:] = 0 if centred else boxes[:, ::11, :2]
    scores = rng.permutation(2 * 3 * 400).reshape(2, 3, 400).astype(np.float32)
    limits = np.array([300]), np.array([overlap], np.float32), np.array([100], np.float32)
    inputs = [boxes, scores, *limits]
    check("NonMaxSuppression", inputs, opset=11, center_point_box=centred)


@pytest.mark.parametrize("overlap", [0.0, 0.5])
@pytest.mark.parametrize("apart", [0.0, 30.0], ids=["one place", "classes side by side"])
def test_boxes_of_several_strips_are_compared_with_those_that_they_may_overlap(apart, overlap):
    """Classes moved away from one another, as suppression of all classes at once has them."""
    rng = np.random.default_rng(4)
    corners = rng.uniform(0, 20, (1, 1500, 2)) + apart * rng.integers(0, 7, (1, 1500, 1))
    boxes = np.concatenate([corners, corners + rng.uniform(0, 4, (1, 1500, 2))], -1)
    boxes[:, 3, 2] = 300  # over all strips
    scores = rng.permutation(1500).reshape(1, 1, 1500).astype(np.float32)
    limits = np.array([1500]), np.array([overlap], np.float32), np.array([0], np.float32)
    check("NonMaxSuppression", [boxes.astype(np.float32), scores, *limits], opset=11)

"""Layers of single-shot detectors mean what their definitions say: compared with plain loops.

The loops follow OpenVINO's operation sets 1 and 8 (PriorBox, PriorBoxClustered, DetectionOutput).
"""

from __future__ import annotations

import numpy as np
import pytest
from irs import listed, single

from partita.errors import ModelFormatError

GRID, IMAGE = np.array([3, 5], np.int64), np.array([300, 400], np.int64)


def priors(kind, version="opset1", **data):
    lines = {key: listed(v) if isinstance(v, list) else v for key, v in data.items()}
    return single(kind, GRID, inputs=[IMAGE], out=[("f32", (2, -1))], version=version, **lines)[0]


def corners(x, y, width, height):
    (rows, columns), _ = IMAGE, GRID
    box = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    return box / [columns, rows, columns, rows]


def places(step, offset):
    """Centres, in pixels, row by row."""
    for row in range(GRID[0]):
        for column in range(GRID[1]):
            if step:
                yield (column + offset) * step, (row + offset) * step
            else:
                yield (column + 0.5) * IMAGE[1] / GRID[1], (row + 0.5) * IMAGE[0] / GRID[0]


def sizes_of(smallest, largest, ratios, in_order=True):
    """Widths and heights about one place."""
    for number, size in enumerate(smallest):
        yield size, size
        between = [(size * largest[number]) ** 0.5] * 2 if largest else None
        if between and in_order:
            yield between
        yield from ((size * ratio**0.5, size / ratio**0.5) for ratio in ratios)
        if between and not in_order:
            yield between


@pytest.mark.parametrize("step", [0, 16])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("in_order", [True, False])
def test_boxes_by_ratio(step, clip, in_order):
    found = priors(
        "PriorBox", "opset8", min_size=[30, 41.5], max_size=[60, 70], aspect_ratio=[2, 1, 3, 2],
        flip="true", clip=clip, step=step, offset=0.3, variance=[0.1, 0.1, 0.2, 0.2],
        min_max_aspect_ratios_order=in_order,
    )  # fmt: skip
    sizes = list(sizes_of([30, 41.5], [60, 70], [2, 1 / 2, 3, 1 / 3], in_order))
    due = np.array([corners(*at, *size) for at in places(step, 0.3) for size in sizes])
    due = due.clip(0, 1) if clip else due
    np.testing.assert_allclose(found[0], due.reshape(-1), atol=1e-6)
    np.testing.assert_allclose(found[1].reshape(-1, 4), [[0.1, 0.1, 0.2, 0.2]] * len(due))


@pytest.mark.parametrize("step", [0, -1, 0.1])
def test_boxes_in_parts_of_the_image(step):
    found = priors(
        "PriorBox", min_size=[0.1, 0.2], aspect_ratio=[2], scale_all_sizes="false", step=step,
        offset=0.5,
    )  # fmt: skip
    height = IMAGE[0]
    sizes = [(0.1, 0.1), (0.2, 0.2), (0.1 * 2**0.5, 0.1 / 2**0.5)]  # ratios of the first, at last
    sizes = [(width * height, tall * height) for width, tall in sizes]
    pixels = {0: 0, -1: height / GRID[0], 0.1: 0.1 * height}[step]
    due = np.array([corners(*at, *size) for at in places(pixels, 0.5) for size in sizes])
    np.testing.assert_allclose(found[0], due.reshape(-1), atol=1e-6)
    np.testing.assert_allclose(found[1], np.float32(0.1))


@pytest.mark.parametrize(("data", "ratios"), [({"aspect_ratio": [4]}, [1, 4]), ({}, [1])])
def test_many_boxes_about_a_place(data, ratios):
    found = priors(
        "PriorBox", fixed_size=[33, 64], density=[2, 1], step=32, offset=0.5, **data
    )  # fmt: skip
    due = []
    for x, y in places(32, 0.5):
        for size, density in ((33, 2), (64, 1)):
            shift = size // density
            for ratio in ratios:
                width, height = (size * ratio**0.5, size / ratio**0.5)
                first = -(size // 2) + shift / 2
                for down in range(density):
                    for across in range(density):
                        at = x + first + across * shift, y + first + down * shift
                        due.append(corners(*at, width, height).clip(0, 1))
    np.testing.assert_allclose(found[0], np.reshape(due, -1), atol=1e-6)


@pytest.mark.parametrize("steps", [{}, {"step": 16}, {"step_w": 16, "step_h": 16}])
@pytest.mark.parametrize("clip", [False, True])
def test_boxes_of_given_widths(steps, clip):
    found = priors(
        "PriorBoxClustered", width=[30, 140.5], height=[20, 90], clip=clip, offset=0.5,
        variance=[0.3], **steps,
    )  # fmt: skip
    sizes = [(30, 20), (140.5, 90)]
    at = places(16 if steps else 0, 0.5)
    due = np.array([corners(*place, *size) for place in at for size in sizes])
    np.testing.assert_allclose(found[0], (due.clip(0, 1) if clip else due).ravel(), atol=1e-6)
    np.testing.assert_allclose(found[1], np.float32(0.3))


def overlap(one, other):
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    common = np.prod(np.maximum(high - low, 0))
    area = [np.prod(box[2:] - box[:2]) for box in (one, other)]
    return common / (sum(area) - common) if common else 0


def decoded(prior, spread, moved, is_corner):
    if is_corner:
        return prior + spread * moved
    size = prior[2:] - prior[:2]
    middle = (prior[:2] + prior[2:]) / 2 + spread[:2] * moved[:2] * size
    reach = size * np.exp(spread[2:] * moved[2:]) / 2
    return np.concatenate([middle - reach, middle + reach])


def detections(moved, scores, prior, spread, told):
    """Rows of all images; ``moved`` is (images, boxes, classes or 1, 4)."""
    rows = []
    for image, of_image in enumerate(scores):
        found = []
        for label in range(of_image.shape[1]):
            if label == told["background_label_id"]:
                continue
            own = label if moved.shape[2] > 1 else 0
            order = np.argsort(-of_image[:, label])[: told["top_k"] if told["top_k"] > 0 else None]
            kept = []
            for place in order:
                if of_image[place, label] <= told["confidence_threshold"]:
                    continue
                box = decoded(prior[place], spread[place], moved[image, place, own], told["corner"])
                box = box.clip(0, 1) if told["clip_before_nms"] else box
                if all(overlap(box, other) <= told["nms_threshold"] for other in kept):
                    kept.append(box)
                    found.append([image, label, of_image[place, label], *box])
        if told["keep_top_k"] > 0:
            found = sorted(found, key=lambda row: -row[2])[: told["keep_top_k"]]
        rows += sorted(found, key=lambda row: (row[1], -row[2]))
    return np.array(rows).reshape(-1, 7)


USUAL = {
    "background_label_id": 0,
    "top_k": -1,
    "keep_top_k": 20,
    "nms_threshold": 0.45,
    "confidence_threshold": 0.05,
    "clip_before_nms": False,
    "corner": False,
}


def tensors(images, boxes, own, classes):
    """Moves, scores, boxes to begin with and variances."""
    draw = np.random.default_rng(5)
    middle, size = draw.random((boxes, 2)), 0.05 + 0.3 * draw.random((boxes, 2))
    prior = np.concatenate([middle - size / 2, middle + size / 2], axis=1).astype(np.float32)
    spread = np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), (boxes, 1))
    moved = draw.standard_normal((images, boxes, own, 4)).astype(np.float32)
    scores = (draw.random((images, boxes, classes)) ** 3).astype(np.float32)
    return moved, scores, prior, spread


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_k": 5},
        {"keep_top_k": 3},
        {"keep_top_k": 500},
        {"keep_top_k": -1, "top_k": 4},
        {"background_label_id": -1, "corner": True, "clip_before_nms": True},
        {"share_location": "false"},
        {"confidence_threshold": 0.9},
        {"confidence_threshold": 2.0},
        {"variance_encoded_in_target": "true"},
    ],
    ids=str,
)
def test_detections(images, changes):
    boxes, classes, told = 25, 4, USUAL | changes
    own = classes if "share_location" in changes else 1
    moved, scores, prior, spread = tensors(images, boxes, own, classes)
    encoded = "variance_encoded_in_target" in changes
    given = prior.reshape(1, 1, -1) if encoded else np.stack([prior, spread]).reshape(1, 2, -1)
    data = {key: value for key, value in told.items() if key != "corner"}
    kind = "CORNER" if told["corner"] else "CENTER_SIZE"
    feeds = moved.reshape(images, -1), scores.reshape(images, -1), given
    [found] = single(
        "DetectionOutput", feeds[0], inputs=feeds[1:], out=[("f32", (1, 1, -1, 7))],
        version="opset8", code_type=f"caffe.PriorBoxParameter.{kind}", normalized="true", **data,
    )  # fmt: skip
    spread = np.ones_like(spread) if encoded else spread
    due = detections(*(x.astype(np.float64) for x in (moved, scores, prior, spread)), told)
    most = told["keep_top_k"] if told["keep_top_k"] > 0 else classes * told["top_k"]
    assert found.shape == (1, 1, images * most, 7)
    np.testing.assert_allclose(found[0, 0, : len(due)], due, rtol=1e-5, atol=1e-5)
    rest = np.zeros((images * most - len(due), 7))
    rest[:1, 0] = -1
    np.testing.assert_array_equal(found[0, 0, len(due) :], rest)


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("PriorBox", {}, "it has no sizes of boxes"),
        ("PriorBox", {"min_size": 3, "step": -2}, "step -2.0 is not read"),
        (
            "PriorBox",
            {"min_size": 3, "variance": "1,2"},
            "there are 2 variances; expected one or four",
        ),
        ("PriorBox", {"fixed_size": 3}, "1 fixed sizes and 0 densities"),
        (
            "PriorBox",
            {"fixed_size": 3, "density": 1, "scale_all_sizes": "false"},
            "fixed_size with scale_all_sizes",
        ),
        (
            "PriorBox",
            {"min_size": 3, "max_size": 4, "scale_all_sizes": "false"},
            "max_size with scale_all_sizes",
        ),
        ("PriorBox", {"fixed_size": 3, "density": 1, "fixed_ratio": "1,2"}, "several fixed_ratio"),
        ("PriorBoxClustered", {"width": "3,4", "height": 3}, "2 widths and 1 heights"),
        ("PriorBoxClustered", {"width": 3, "height": 3, "step_w": 4}, "both given, or both left"),
    ],
)
def test_boxes_that_are_not_read(kind, data, said):
    with pytest.raises(ModelFormatError, match=said):
        priors(kind, **data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"decrease_label_id": "true"}, "decrease_label_id 'true' is not read"),
        ({"normalized": "false"}, r"boxes in pixels \(normalized 'false'\) are not read"),
        ({"code_type": "other"}, "code_type 'other' is not known"),
    ],
)
def test_detectors_that_are_not_read(data, said):
    moved, scores, prior, spread = tensors(1, 3, 1, 2)
    feeds = moved.reshape(1, -1), scores.reshape(1, -1), np.stack([prior, spread]).reshape(1, 2, -1)
    told = {"normalized": "true", "nms_threshold": 0.5, "keep_top_k": 3} | data
    with pytest.raises(ModelFormatError, match=said):
        single("DetectionOutput", feeds[0], inputs=feeds[1:], version="opset8", **told)

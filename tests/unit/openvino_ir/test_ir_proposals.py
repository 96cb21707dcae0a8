"""Proposal means what its definition says: compared with plain loops in float64.

The loops follow OpenVINO's Proposal-1 and Proposal-4; anchors are those that ``generate_anchors``
of py-faster-rcnn prints.
"""

from __future__ import annotations

import numpy as np
import pytest
from irs import listed, single

from partita.errors import ModelFormatError

RNG = np.random.default_rng(11)

PRINTED = [
    [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
    [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
    [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
]  # fmt: skip
"""Of a base of 16, ratios 0.5, 1 and 2, and scales 8, 16 and 32."""

FASTER = {"base_size": 16, "ratio": [0.5, 1, 2], "scale": [8, 16, 32], "feat_stride": 16}


def proposals(scores, steps, image, kept, version="opset4", **data):
    """Rows and, from set 4 on, scores; lists and truth values as an IR writes them."""
    images = len(scores)
    written = {key: listed(v) if isinstance(v, list) else str(v).lower() for key, v in data.items()}
    kind = {np.float16: "f16", np.float32: "f32"}[scores.dtype.type]
    out = [(kind, (images * kept, 5)), (kind, (images * kept,))]
    return single(
        "Proposal", scores, inputs=[steps, image], version=version, post_nms_topn=kept,
        out=out[: 1 + (version == "opset4")], **written,
    )  # fmt: skip


@pytest.mark.parametrize("version", ["opset1", "opset4"])
def test_anchors_are_those_of_the_first_detector(version):
    scores = np.zeros((1, 18, 2, 3), np.float32)
    scores[0, 9:, 1, 2] = np.linspace(0.9, 0.1, 9)  # all of one place, in order
    steps, image = np.zeros((1, 36, 2, 3), np.float32), np.array([600, 800, 1], np.float32)
    found = proposals(
        scores, steps, image, 9, version, **FASTER, min_size=1, nms_thresh=1.0, pre_nms_topn=9,
        clip_before_nms=False,
    )  # fmt: skip
    moved = np.add(PRINTED, [32, 16, 33, 17])  # decoded: half of a width that counts one more pixel
    np.testing.assert_allclose(found[0], np.c_[np.zeros(9), moved], atol=1e-3)
    assert len(found) == 1 + (version == "opset4")


def anchors_of(base, ratios, scales, tensorflow):
    for ratio in ratios:
        width = (base * base / ratio) ** 0.5
        width = width if tensorflow else np.round(width)
        height = width * ratio if tensorflow else np.round(width * ratio)
        for scale in scales:
            reach = np.array([width * scale, height * scale]) / 2
            if tensorflow:
                yield -reach, reach
            else:
                yield base / 2 - reach, base / 2 + reach - 1


def regions_of(scores, steps, image, data):
    """(score, xmin, ymin, xmax, ymax) of all anchors at all places of one image."""
    tensorflow = data["framework"] == "tensorflow"
    pixel = 0 if tensorflow else 1
    corner = np.float64(image[:2] if tensorflow else image[1::-1])
    smallest = data["min_size"] * np.float64([image[-1], image[2]])
    anchors = list(anchors_of(data["base_size"], data["ratio"], data["scale"], tensorflow))
    for row, column in np.ndindex(scores.shape[1:]):
        place = np.array([row, column] if tensorflow else [column, row]) * data["feat_stride"]
        for number, (low, high) in enumerate(anchors):
            low, high = place + low, place + high
            if tensorflow:
                low, high = np.clip(low, 0, corner), np.clip(high, 0, corner)
            size = high - low + pixel
            step = np.float64(steps[4 * number : 4 * number + 4, row, column])
            middle = low + size / 2 + step[:2] / data["box_coordinate_scale"] * size
            reach = np.exp(step[2:] / data["box_size_scale"]) * size / 2
            ends = middle - reach, middle + reach
            if data["clip_before_nms"]:
                ends = [np.clip(end, 0, corner - pixel) for end in ends]
            fits = (ends[1] - ends[0] + pixel >= smallest).all()
            yield fits * float(scores[len(anchors) + number, row, column]), *ends[0], *ends[1]


def overlap(a, b, pixel):
    """Intersection over union."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    shared = np.prod(np.maximum(high - low + pixel, 0))
    return shared / (sum(np.prod(box[2:] - box[:2] + pixel) for box in (a, b)) - shared)


def expected(scores, steps, image, kept, data):
    rows, chances = [], []
    pixel = 0 if data["framework"] == "tensorflow" else 1
    corner = np.float64(image[:2] if not pixel else image[1::-1])
    for number, (score, step) in enumerate(zip(scores, steps, strict=True)):
        best = np.array(sorted(regions_of(score, step, image, data), key=lambda row: -row[0]))
        chosen = []
        for one in best[: data["pre_nms_topn"]]:
            others = (overlap(one[1:], other[1:], pixel) for other in chosen)
            if len(chosen) < kept and all(part <= data["nms_thresh"] for part in others):
                chosen.append(one)
        found = np.zeros((kept, 5))
        boxes = np.array(chosen)[:, 1:]
        if data["clip_after_nms"]:
            boxes = np.clip(boxes, 0, np.tile(corner, 2))
        if data["normalize"]:
            boxes = boxes / np.tile(corner, 2)
        found[: len(chosen)] = np.c_[np.full(len(chosen), number), boxes]
        if len(chosen) < kept:
            found[len(chosen), 0] = -1
        rows.append(found)
        chances.append(np.r_[np.array(chosen)[:, 0], np.zeros(kept - len(chosen))])
    return np.concatenate(rows), np.concatenate(chances)


@pytest.mark.parametrize("framework", ["", "tensorflow"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("after", "normalize"), [(True, False), (False, True)])
@pytest.mark.parametrize(("most", "kept", "sizes"), [(30, 25, 3), (1000, 10, 4)])
def test_regions(framework, before, after, normalize, most, kept, sizes):
    data = {
        "base_size": 16, "ratio": [0.5, 1.0, 2.0], "scale": [1.0, 2.5], "feat_stride": 8,
        "min_size": 12, "nms_thresh": 0.4, "pre_nms_topn": most, "box_size_scale": 1.5,
        "box_coordinate_scale": 2.0, "framework": framework, "clip_before_nms": before,
        "clip_after_nms": after, "normalize": normalize,
    }  # fmt: skip
    scores = RNG.permutation(2 * 12 * 20).reshape(2, 12, 4, 5).astype(np.float32) / 480
    steps = RNG.standard_normal((2, 24, 4, 5)).astype(np.float32) / 2
    image = np.array([34, 44, 1, 1.25][:sizes], np.float32)
    found = proposals(scores, steps, image, kept, **data)
    due = expected(scores, steps, image, kept, data)
    np.testing.assert_allclose(found[1], due[1], rtol=1e-6)
    np.testing.assert_allclose(found[0], due[0], rtol=1e-4, atol=1e-4)
    assert (found[0][:, 0] == -1).sum() == (2 if most == 30 else 0)


def test_image_of_other_sizes_is_refused():
    scores, steps = np.zeros((1, 18, 2, 3), np.float32), np.zeros((1, 36, 2, 3), np.float32)
    with pytest.raises(ModelFormatError, match="sizes must be 3 or 4 numbers"):
        proposals(
            scores, steps, np.ones(2, np.float32), 9, **FASTER, min_size=1, nms_thresh=1.0,
            pre_nms_topn=9,
        )  # fmt: skip

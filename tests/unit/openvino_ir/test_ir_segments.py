"""Layers that join rows by segment, and that read labels from scores, from their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from irs import single

RNG = np.random.default_rng(7)
INDICES = np.array([0, 2, 3, 5, 5, 1], np.int32)
SEGMENTS = np.array([0, 0, 2, 2, 2, 4], np.int32)
WEIGHTS = RNG.standard_normal(6).astype(np.float32)
TABLES = [RNG.standard_normal(shape).astype(np.float32) for shape in ((6, 3), (6,), (6, 2, 3))]


def joined(table, segments, count, default=-1, weights=None, mean=False):
    """Bag by bag, in float64; OpenVINO 2026.4 gives the same."""
    found = np.zeros((count, *table.shape[1:]))
    for bag in range(count):
        places = np.flatnonzero(segments == bag)
        rows = table.astype(np.float64)[INDICES[places]]
        if weights is not None:
            rows = rows * weights[places].reshape(-1, *[1] * (table.ndim - 1))
        if len(rows):
            found[bag] = rows.mean(0) if mean else rows.sum(0)
        elif default >= 0:
            found[bag] = table[default]
    return found


def close(found, expected):
    np.testing.assert_allclose(found, expected, 1e-6, 1e-6)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.ndim}d")
@pytest.mark.parametrize("default", [None, -1, 4])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_rows_of_segments(table, default, weights):
    if default is None and weights is not None:
        default = -1
    more = [] if default is None else [np.int32(default)]
    more += [] if weights is None else [weights]
    constants = [INDICES, SEGMENTS, np.int32(6), *more]
    found = single("EmbeddingSegmentsSum", table, *constants, version="opset3")[0]
    close(found, joined(table, SEGMENTS, 6, -1 if default is None else default, weights))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.ndim}d")
@pytest.mark.parametrize("reduction", [None, "sum", "mean"])
@pytest.mark.parametrize("default", [None, -1, 1])
def test_bags_that_begin_at_offsets(table, reduction, default):
    starts = np.array([0, 2, 2, 5, 6], np.int32)  # one in the middle and the last have no row
    bags = np.array([0, 0, 2, 2, 2, 3])
    more = [] if default is None else [np.int32(default)]
    kind = "EmbeddingBagOffsetsSum" if reduction is None else "EmbeddingBagOffsets"
    data = {} if reduction is None else {"reduction": reduction}
    found = single(kind, table, INDICES, starts, *more, version="opset15", **data)[0]
    empty = -1 if default is None else default
    close(found, joined(table, bags, 5, empty, mean=reduction == "mean"))


def test_rows_of_halves():
    table = TABLES[0].astype(np.float16)
    constants = [INDICES, SEGMENTS, np.int32(6), np.int32(0)]
    found = single("EmbeddingSegmentsSum", table, *constants, version="opset3")[0]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, joined(table, SEGMENTS, 6, 0), 1e-3)


def test_bags_that_are_told_by_a_run():
    starts = np.array([0, 2, 2, 5, 5])
    inputs = [INDICES.astype(np.int64), starts]
    found = single("EmbeddingBagOffsets", TABLES[0], inputs=inputs, reduction="mean")[0]
    close(found, joined(TABLES[0], np.array([0, 0, 2, 2, 2, 4]), 5, mean=True))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.ndim}d")
def test_bags_of_as_many_rows(table):
    packed, weights = INDICES.reshape(3, 2), WEIGHTS.reshape(3, 2)
    bags = np.repeat(np.arange(3), 2)
    found = single("EmbeddingBagPackedSum", table, packed, weights, version="opset3")[0]
    close(found, joined(table, bags, 3, weights=WEIGHTS))
    found = single("EmbeddingBagPacked", table, packed, version="opset15", reduction="mean")[0]
    close(found, joined(table, bags, 3, mean=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8])
@pytest.mark.parametrize("count", [None, 3, 5, 7])
@pytest.mark.parametrize("mode", ["ZERO", "LOWEST"])
def test_the_largest_of_segments(dtype, count, mode):
    data = (RNG.standard_normal((6, 3)) * 9 + 20).astype(dtype)
    more = [] if count is None else [np.int32(count)]
    found = single("SegmentMax", data, SEGMENTS, *more, version="opset16", fill_mode=mode)[0]
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    expected = np.full((8, 3), 0 if mode == "ZERO" else limits.min, dtype)
    for segment in set(SEGMENTS):
        expected[segment] = data[segment == SEGMENTS].max(0)
    np.testing.assert_array_equal(found, expected[: 5 if count is None else count])


def decoded(scores, length, blank, merges):
    """The labels of one sequence, step by step."""
    labels, before = [], -1
    for step in range(length):
        best = int(np.argmax(scores[step]))
        if best != blank and not (merges and best == before):
            labels.append(best)
        before = best
    return np.array(labels + [-1] * (len(scores) - len(labels))), len(labels)


def scores_of(batch, steps, classes):
    """Scores in which labels follow themselves, and the last class is often the best."""
    best = RNG.integers(0, classes, (batch, steps)).repeat(2, 1)[:, :steps]
    best[:, ::3] = classes - 1
    scores = RNG.random((batch, steps, classes)).astype(np.float32)
    np.put_along_axis(scores, best[..., None], 2, 2)
    return scores


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize("blank", [None, 0, 4])
@pytest.mark.parametrize("whole", ["i32", "i64"])
def test_labels_of_sequences_of_given_lengths(merges, blank, whole):
    scores, lengths = scores_of(3, 9, 5), np.array([9, 4, 0], np.int32)
    constants = [] if blank is None else [np.array([blank], np.int32)]
    types = {"classes_index_type": whole, "sequence_length_type": whole}
    out = [(whole, (3, 9)), (whole, (3,))]
    labels, counts = single(
        "CTCGreedyDecoderSeqLen", scores, *constants, inputs=[lengths], out=out,
        version="opset6", merge_repeated=str(merges).lower(), **types,
    )  # fmt: skip
    for row in range(3):
        due = decoded(scores[row], lengths[row], 4 if blank is None else blank, merges)
        np.testing.assert_array_equal(labels[row], due[0])
        assert counts[row] == due[1]
    assert {labels.dtype, counts.dtype} == {np.dtype(whole.replace("i", "int"))}


@pytest.mark.parametrize("merges", [True, False])
def test_labels_of_sequences_that_end_with_their_mask(merges):
    scores = scores_of(3, 7, 5)
    mask = np.array([[1] * 7, [1, 1, 1, 1, 0, 1, 1], [0] * 7], np.float32)
    found = single(
        "CTCGreedyDecoder", scores.transpose(1, 0, 2).copy(), inputs=[mask.T.copy()],
        out=[("f32", (3, 7, 1, 1))], ctc_merge_repeated=str(merges).lower(),
    )[0]  # fmt: skip
    assert found.shape == (3, 7, 1, 1)
    for row, length in enumerate([7, 4, 0]):
        labels, _ = decoded(scores[row], length, 4, merges)
        np.testing.assert_array_equal(found[row, :, 0, 0], labels)

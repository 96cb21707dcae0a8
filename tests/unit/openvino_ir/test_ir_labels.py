"""Layers of sequences of labels mean what their definitions say.

They are compared with plain loops: GatherTree-1 as its pseudocode goes, and all alignments of
CTCLoss-4 one by one, as OpenVINO's operation sets define them.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from irs import single

RNG = np.random.default_rng(5)


def traced(tokens, parents, lengths, end):
    """GatherTree-1 as its pseudocode goes."""
    found = np.full_like(tokens, end)
    steps, batch, beams = tokens.shape
    for row, beam in np.ndindex(batch, beams):
        length = min(steps, int(lengths[row]))
        place = beam
        for level in reversed(range(length)):
            found[level, row, beam] = tokens[level, row, place]
            place = int(parents[level, row, place])
        is_over = False
        for level in range(length):
            if is_over:
                found[level, row, beam] = end
            is_over = is_over or found[level, row, beam] == end
    return found


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize(("steps", "batch", "beams"), [(1, 1, 1), (6, 3, 4), (9, 2, 1)])
def test_beams(dtype, steps, batch, beams):
    tokens = RNG.integers(0, 7, (steps, batch, beams)).astype(dtype)
    parents = RNG.integers(0, beams, (steps, batch, beams)).astype(dtype)
    lengths = RNG.integers(1, steps + 3, batch).astype(dtype)
    found = single("GatherTree", tokens, inputs=[parents, lengths, np.array(3, dtype)])[0]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, traced(tokens, parents, lengths, 3))


def labels_due(labels, collapse, unique):
    """What is left of a target: without repeated labels, or without any twice."""
    if unique:
        return list(dict.fromkeys(labels))
    return [label for label, _ in itertools.groupby(labels)] if collapse else list(labels)


def losses(logits, lengths, labels, counts, blank, collapse=False, merges=True, unique=False):
    """CTCLoss-4: every path of classes is decoded, and those that give the labels are summed up."""
    found = []
    for row, length, target, count in zip(logits, lengths, labels, counts, strict=True):
        chances = np.exp(np.float64(row))
        chances /= chances.sum(-1, keepdims=True)
        due, total = labels_due(target[:count].tolist(), collapse, unique), 0.0
        for path in itertools.product(range(row.shape[1]), repeat=length):
            merged = [one for one, _ in itertools.groupby(path)] if merges else path
            if [one for one in merged if one != blank] == due:
                total += np.prod(chances[np.arange(length), list(path)])
        with np.errstate(divide="ignore"):
            found.append(-np.log(total))
    return np.array(found)


FLAGS = [
    {},
    {"ctc_merge_repeated": "false"},
    {"preprocess_collapse_repeated": "true"},
    {"preprocess_collapse_repeated": "true", "ctc_merge_repeated": "false"},
    {"unique": "true"},
    {"unique": "true", "preprocess_collapse_repeated": "true", "ctc_merge_repeated": "false"},
]


@pytest.mark.parametrize("data", FLAGS)
@pytest.mark.parametrize(("blank", "whole"), [(None, np.int32), (0, np.int64), (2, np.int32)])
def test_loss_of_alignments(data, blank, whole):
    batch, steps, classes = 6, 5, 4
    logits = RNG.standard_normal((batch, steps, classes)).astype(np.float32) * 2
    lengths = np.array([5, 5, 4, 5, 3, 1], whole)
    counts = np.array([3, 2, 4, 5, 0, 1], whole)
    skipped = classes - 1 if blank is None else blank
    labels = RNG.choice([one for one in range(classes) if one != skipped], (batch, steps))
    labels[0, :3] = labels[0, 0]  # equal ones in a row: blanks must part them
    labels[1, :3] = labels[1, 0]
    given = [lengths, labels.astype(whole), counts]
    given += [] if blank is None else [np.array(blank, whole)]
    found = single("CTCLoss", logits, inputs=given, out=[("f32", (batch,))], **data)[0]
    flags = {
        "collapse": "preprocess_collapse_repeated" in data,
        "merges": "ctc_merge_repeated" not in data,
        "unique": "unique" in data,
    }
    due = losses(logits, lengths, labels, counts, skipped, **flags)
    np.testing.assert_allclose(found, due, rtol=2e-6)


def test_loss_of_many_steps_in_half_precision():
    """One label in 40 steps: in how many ways, where all classes are as likely."""
    steps, classes = 40, 3
    logits = np.zeros((1, steps, classes), np.float16)
    given = [np.array([steps], np.int32), np.zeros((1, steps), np.int32), np.array([1], np.int32)]
    found = single("CTCLoss", logits, inputs=given, out=[("f16", (1,))])[0]
    ways = steps * (steps + 1) / 2  # where it begins and ends
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, [steps * np.log(classes) - np.log(ways)], rtol=1e-3)

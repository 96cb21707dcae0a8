"""Scores of classes, and the label of the best: how classifiers of ai.onnx.ml end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.kernel_table import refused_choice
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.instructions import like
from partita_cpu.scalar.math import exp_below_zero, sigmoid

PLAIN, LOGISTIC, SOFTMAX = 0, 1, 2
TRANSFORMS = {"NONE": PLAIN, "LOGISTIC": LOGISTIC, "SOFTMAX": SOFTMAX}


@loop
def score_rows(
    sums: Any,
    base: Any,
    labels: Any,
    y: Any,
    scores: Any,
    classes: int,
    transform: int,
    one_sided: int,
    tid: int,
    nt: int,
) -> None:
    """Of each row the scores, and the label of the largest sum; of equal ones the first.

    Args:
        sums: `classes` for each row, flat.
        base: What is added to them, `classes` of them.
        labels: Of classes.
        y: Output: a label for each row.
        scores: Output: `classes` for each row, flat.
        classes: How many there are.
        transform: `PLAIN`, `LOGISTIC` or `SOFTMAX`.
        one_sided: Whether the first sum is that of the second of two classes, and the first class
            has what is left of 1, or of a sum that is transformed its negative.
        tid: This thread.
        nt: All threads; they share rows.
    """
    for row in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        own = scores[row * classes : (row + 1) * classes]
        for i in range(classes):
            own[i] = sums[row * classes + i] + base[i]
        if one_sided:
            own[1] = own[0]
            own[0] = like(own[1], 1) - own[1] if transform == PLAIN else -own[1]
        best = 0
        for i in range(1, classes):
            if own[i] > own[best]:
                best = i
        y[row] = labels[best]
        if transform == LOGISTIC:
            for i in range(classes):
                own[i] = sigmoid(own[i])
        elif transform == SOFTMAX:
            top, total = own[best], like(own[0], 0)
            for i in range(classes):
                own[i] = exp_below_zero(own[i] - top)
                total += own[i]
            for i in range(classes):
                own[i] /= total


def emit_scores(
    b: Builder, node: Node, sums: Operand, base: Array, labels: Sequence[int], one_sided: bool
) -> tuple[Operand, Operand]:
    """Labels, and scores in float32.

    Args:
        b: Records the step.
        node: The operation, whose post_transform is one of `TRANSFORMS`.
        sums: (rows, classes).
        base: Of each class what is added; of one number it is that of `one_sided`, of none nothing.
        labels: Of the classes.
        one_sided: See `score_rows`.
    """
    rows, classes = sums.shape
    y, scores = b.empty((rows,), np.int64), b.empty(sums.shape, np.float32)
    if y.size:
        added = np.zeros(classes, sums.dtype)
        added[: base.size] = base
        b.call(
            score_rows,
            b.flat(sums),
            b.constant(added),
            b.constant(np.array(labels, np.int64)),
            y,
            b.flat(scores),
            classes,
            TRANSFORMS[node.attrs.get("post_transform", "NONE")],
            int(one_sided),
        )
    return y, scores


def refused_labels(node: Node, labels: Sequence[int]) -> Reason | None:
    """Why scores of a classifier are not computed here: how they end, or labels that are texts."""
    if reason := refused_choice(node, "post_transform", *TRANSFORMS):
        return reason
    if len(labels) > 1:
        return None
    text = f"{len(labels)} classes are labelled by integers; takes 2 or more"
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, text)


def refused_scores(
    node: Node, labels: Sequence[int], spoken: Collection[int], weights: Array, base: Array
) -> Reason | None:
    """Why scores of trees are not computed here: where engines differ, or labels are texts.

    Args:
        node: The operation.
        labels: Of its classes.
        spoken: The classes that leaves speak of.
        weights: What they say.
        base: What is added.
    """
    if reason := refused_labels(node, labels):
        return reason
    plain = node.attrs.get("post_transform", "NONE") == "NONE"
    if len(spoken) > 1 or not spoken:
        if base.size in (0, len(labels)) and len(labels) > 2:
            return None
        text = f"{base.size} base values, leaves for {len(spoken)} of {len(labels)} classes"
    elif set(spoken) != {0} or len(labels) > 2 or base.size > 1:
        text = f"{base.size} base values, leaves for one of {len(labels)} classes"
    elif plain == bool((weights >= 0).all()):
        return None
    else:
        text = "votes for one of two classes are neither probabilities nor transformed"
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, text)

"""From a model's numbers to what they mean: text, boxes, labels, stretches of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.zoo.sample import Array


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in a picture.

    Attributes:
        label: What it holds.
        score: How sure the model is, 0 to 1.
        left: First column, in pixels.
        top: First row.
        right: Column behind the last.
        bottom: Row behind the last.
    """

    label: str
    score: float
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Intersection over union."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        if width <= 0 or height <= 0:
            return 0.0
        both = width * height
        return both / (self._area + other._area - both)

    def scaled(self, x: float, y: float) -> Box:
        """The same box in a picture that is larger by these factors."""
        return Box(
            self.label, self.score, self.left * x, self.top * y, self.right * x, self.bottom * y
        )

    @property
    def _area(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)


def top(scores: Array, count: int = 5) -> list[tuple[int, float]]:
    """The largest elements of a flat array as (index, value), largest first."""
    flat = np.asarray(scores).ravel()
    order = np.argsort(-flat.astype(np.float64), kind="stable")[:count]
    return [(int(index), float(flat[index])) for index in order]


def ctc_text(probabilities: Array, characters: Sequence[str]) -> tuple[str, float]:
    """Greedy CTC decoding: repeats merged, blanks (class 0) dropped.

    Args:
        probabilities: Shape (time, 1 + number of characters).
        characters: Those of classes 1, 2, ...

    Returns:
        The text, and the mean probability of its characters (0 if there are none).
    """
    classes = probabilities.argmax(axis=1)
    fresh = np.diff(classes, prepend=0) != 0
    kept = np.flatnonzero(fresh & (classes != 0))
    text = "".join(characters[classes[step] - 1] for step in kept)
    score = float(probabilities[kept, classes[kept]].mean()) if len(kept) else 0.0
    return text, score


def text_boxes(probabilities: Array, threshold: float = 0.3, sure: float = 0.6) -> list[Box]:
    """Text regions in a map of probabilities, top to bottom.

    Connected regions above the threshold become boxes; they are grown by what the training shrank
    (Liao et al., Real-time scene text detection with differentiable binarization, 2020).

    Args:
        probabilities: Shape (height, width).
        threshold: What counts as text.
        sure: Least mean probability of a region.
    """
    boxes = []
    height, width = probabilities.shape
    for rows, columns in _regions(probabilities > threshold):
        score = float(probabilities[rows, columns].mean())
        left, right = int(columns.min()), int(columns.max()) + 1
        upper, lower = int(rows.min()), int(rows.max()) + 1
        if score < sure or min(right - left, lower - upper) < 3:
            continue
        grow = 2.0 * (right - left) * (lower - upper) / (2 * (right - left + lower - upper))
        boxes.append(
            Box(
                "text",
                score,
                max(0.0, left - grow),
                max(0.0, upper - grow),
                min(float(width), right + grow),
                min(float(height), lower + grow),
            )
        )
    return sorted(boxes, key=lambda box: (box.top, box.left))


def _regions(mask: Array) -> list[tuple[Array, Array]]:
    """Rows and columns of each region of pixels that touch, corners included.

    Horizontal runs are found first; runs of neighbouring rows that touch are joined (union-find).
    """
    parent: list[int] = []
    runs: list[tuple[int, int, int]] = []

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    above: list[int] = []
    for row in range(mask.shape[0]):
        edges = np.flatnonzero(np.diff(mask[row].astype(np.int8), prepend=0, append=0))
        current = []
        for start, stop in edges.reshape(-1, 2).tolist():
            index = len(runs)
            runs.append((row, start, stop))
            parent.append(index)
            current.append(index)
            for other in above:
                if runs[other][1] <= stop and start <= runs[other][2]:
                    parent[root(index)] = root(other)
        above = current
    regions: dict[int, list[int]] = {}
    for index in range(len(runs)):
        regions.setdefault(root(index), []).append(index)
    result = []
    for members in regions.values():
        spans = [(runs[i][0], np.arange(runs[i][1], runs[i][2])) for i in members]
        columns = np.concatenate([span for _, span in spans])
        rows = np.concatenate([np.full(len(span), row) for row, span in spans])
        result.append((rows, columns))
    return result


def layout_boxes(
    scores: Sequence[Array],
    distances: Sequence[Array],
    labels: Sequence[str],
    size: tuple[int, int],
    sure: float = 0.5,
) -> list[Box]:
    """Boxes of a PicoDet head, the surest first, doubles removed.

    Each cell of a grid gives for each side of its box a distribution over multiples of the stride
    (Li et al., Generalized focal loss, 2020); the mean is the distance from the cell's centre.

    Args:
        scores: Per grid, shape (cells, labels).
        distances: Per grid, shape (cells, 4 * bins), logits.
        labels: Names of the classes.
        size: Height and width of the picture; grids have strides 8, 16, 32, ...
        sure: Least score of a box.
    """
    boxes = []
    for level, (score, logits) in enumerate(zip(scores, distances, strict=True)):
        stride = 8 << level
        columns = math.ceil(size[1] / stride)
        bins = logits.reshape(len(score), 4, -1)
        weights = np.exp(bins - bins.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        reach = (weights * np.arange(bins.shape[2])).sum(axis=2) * stride
        for cell in np.flatnonzero(score.max(axis=1) >= sure).tolist():
            x, y = (cell % columns + 0.5) * stride, (cell // columns + 0.5) * stride
            left, upper, right, lower = reach[cell].tolist()
            label = int(score[cell].argmax())
            boxes.append(
                Box(
                    labels[label],
                    float(score[cell, label]),
                    max(0.0, x - left),
                    max(0.0, y - upper),
                    min(float(size[1]), x + right),
                    min(float(size[0]), y + lower),
                )
            )
    return without_doubles(boxes)


def without_doubles(boxes: Sequence[Box], most: float = 0.5) -> list[Box]:
    """Drops each box that overlaps a surer one of the same label by more than ``most``."""
    kept: list[Box] = []
    for box in sorted(boxes, key=lambda box: -box.score):
        if all(box.label != other.label or box.overlap(other) <= most for other in kept):
            kept.append(box)
    return kept


def stretches(
    active: Sequence[bool], step: float, bridge: float = 0.0
) -> list[tuple[float, float]]:
    """Start and end of each run of true values that lie ``step`` apart.

    Runs with a pause of at most ``bridge`` between them count as one.

    Example:
        >>> stretches([False, True, True, False, True], 0.5)
        [(0.5, 1.5), (2.0, 2.5)]
        >>> stretches([False, True, True, False, True], 0.5, bridge=0.5)
        [(0.5, 2.5)]
    """
    edges = np.flatnonzero(np.diff(np.asarray(active, np.int8), prepend=0, append=0))
    runs: list[tuple[float, float]] = []
    for first, last in edges.reshape(-1, 2).tolist():
        start, end = first * step, last * step
        if runs and start - runs[-1][1] <= bridge:
            start = runs.pop()[0]
        runs.append((start, end))
    return runs

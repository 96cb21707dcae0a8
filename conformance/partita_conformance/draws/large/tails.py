"""Draws of sizes next to those of vectors: rows that one element decides, odd windows.

All elements but the one that decides are far below zero, so that whatever a kernel fills its last
vector up with shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw

_LENGTHS = (3, 5, 9, 17, 23, 33)
"""One beside the lengths of vectors, and others that no vector divides."""
_WIDTHS = (7, 9, 10, 17, 25, 33)
"""Of the results of windows."""


def _deciding(length: int, sign: int = 1) -> Array:
    """A row for each place, whose element is the largest there; all are far below zero."""
    x = np.where(np.eye(length, dtype=bool), -1000, -1004 - np.arange(length) / 4)
    return np.asarray(sign * x, np.float32)


def _rows(sign: int = 1, **given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw([_deciding(n, sign)], dict(given)) for n in _LENGTHS]


def _best() -> list[Draw]:
    count = np.array([2], np.int64)
    return [Draw([_deciding(n), count], {"axis": 1}, [1], 2) for n in _LENGTHS]


def _planes(sign: int = 1) -> list[Draw]:
    return [Draw([_deciding(n, sign)[None]]) for n in _LENGTHS]


def _image(width: int) -> Array:
    """Two channels of three rows; no two neighbours are alike."""
    count = 2 * 3 * width
    return np.asarray((np.arange(count) * 7 % 19 - 30) / 4, np.float32).reshape(1, 2, 3, width)


_TAPS = np.asarray([1, -2, 3, 0.5, 1.5, -1, 2, -0.5, 0.25], np.float32)


def _convolved() -> list[Draw]:
    """Products of single pixels, and windows of three whose results are as wide as the image."""
    point, three = _TAPS[:4].reshape(2, 2, 1, 1), np.tile(_TAPS, 4).reshape(2, 2, 3, 3)
    each = np.tile(_TAPS, 2).reshape(2, 1, 3, 3)
    ways: list[tuple[Array, dict[str, Any]]] = [
        (point, {}),
        (three, {"pads": [1, 1, 1, 1]}),
        (each, {"pads": [1, 1, 1, 1], "group": 2}),
    ]
    return [Draw([_image(n), w], dict(given), [1]) for n in _WIDTHS for w, given in ways]


def _transposed() -> list[Draw]:
    taps = np.tile(_TAPS[:6], 4).reshape(2, 2, 3, 2)
    return [Draw([_image(n - 1), taps], {}, [1]) for n in _WIDTHS]


def _pooled(**given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw([_image(n + 1)], {"kernel_shape": [2, 2], **given}) for n in _WIDTHS]


TAILS: Mapping[str, Callable[[], list[Draw]]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _rows(axis=-1)),
    **{op: _rows(axes=[-1]) for op in ("ReduceMax", "ReduceMean", "ReduceLogSumExp")},
    "ReduceMin": _rows(-1, axes=[-1]),
    "ArgMax": _rows(axis=1),
    "ArgMin": _rows(-1, axis=1),
    "TopK": _best,
    "GlobalMaxPool": _planes,
    "GlobalAveragePool": _planes,
    "Conv": _convolved,
    "ConvTranspose": _transposed,
    "MaxPool": _pooled(),
    "AveragePool": _pooled(),
    "LpPool": _pooled(p=1),
}
"""Operator to draws whose last vectors are not full."""

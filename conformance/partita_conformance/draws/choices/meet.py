"""Choices of several kinds put together, so that each two of them meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_CANDIDATES = 40
"""Rows of which that of most new pairs is taken."""


def meetings(**choices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Rows with one choice of each kind; any two choices of two kinds stand together in some row.

    Far fewer rows than all there are, found greedily: a fault that shows when two things come
    together shows in one of them. The same for the same choices.

    Args:
        choices: Kinds to their choices.
    """
    rng = np.random.default_rng(len(choices))
    names = list(choices)
    left = {
        (a, i, b, k)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(choices[a]))
        for k in range(len(choices[b]))
    }
    while left:
        a, i, b, k = min(left)  # at least this one is new
        best: dict[str, int] = {}
        for _ in range(_CANDIDATES):
            row = {name: int(rng.integers(len(choices[name]))) for name in names}
            row[a], row[b] = i, k
            if len(_pairs(row) & left) > len(_pairs(best) & left):
                best = row
        left -= _pairs(best)
        yield {name: choices[name][place] for name, place in best.items()}


def _pairs(row: Mapping[str, int]) -> set[tuple[str, int, str, int]]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(row, 2)}

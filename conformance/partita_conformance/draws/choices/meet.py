"""Combinations of choices of several kinds, so that any two or three of them occur together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_CANDIDATES = {2: 40, 3: 12}
"""Rows of which that of most new groups is taken, by the size of groups."""


def meetings(**choices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Rows with one choice of each kind; any two choices of two kinds stand together in some row.

    Far fewer rows than all there are, found greedily: a fault that shows when two things come
    together shows in one of them. The same for the same choices.

    Args:
        choices: Kinds to their choices.
    """
    return _rows(2, choices)


def meetings_of_three(**choices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The same, where any three choices of three kinds stand together in some row.

    For what takes little time, since there are three or four times as many rows.

    Args:
        choices: Kinds to their choices.
    """
    return _rows(min(3, len(choices)), choices)


def _rows(count: int, choices: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(len(choices))
    names = list(choices)
    left = {
        tuple(zip(kinds, places, strict=True))
        for kinds in itertools.combinations(names, count)
        for places in itertools.product(*(range(len(choices[kind])) for kind in kinds))
    }
    while left:
        first = min(left)  # at least this one is new
        best: dict[str, int] = {}
        for _ in range(_CANDIDATES[count]):
            row = {name: int(rng.integers(len(choices[name]))) for name in names}
            row.update(first)
            if len(_groups(row, count) & left) > len(_groups(best, count) & left):
                best = row
        left -= _groups(best, count)
        yield {name: choices[name][place] for name, place in best.items()}


def _groups(row: Mapping[str, int], count: int) -> set[tuple[tuple[str, int], ...]]:
    return set(itertools.combinations(row.items(), count))

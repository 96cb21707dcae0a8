"""Orders of axes: what transposing, dropping and adding axes makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Perm = tuple[int, ...]
"""Which axis of the source stands at each place."""


def without_axes(perm: Perm, gone: set[int]) -> Perm:
    """The order of the axes that are left once some are gone, which source axes name."""
    kept = [axis for axis in perm if axis not in gone]
    ranks = {axis: place for place, axis in enumerate(sorted(kept))}
    return tuple(ranks[axis] for axis in kept)


def resolved_sizes(target: list[int], sizes: Sequence[int]) -> list[int]:
    """The target of a Reshape with the number that -1 stands for, where sizes tell it."""
    known = math.prod(size for size in target if size > 0)
    if target.count(-1) != 1 or -1 in sizes or not known:
        return target
    return [math.prod(sizes) // known if size == -1 else size for size in target]


def inverse(perm: Perm) -> Perm:
    """The order that undoes one."""
    return tuple(int(axis) for axis in np.argsort(perm))


def with_axes(perm: Perm, new: set[int]) -> Perm:
    """The order with new axes, which stand at the same places before and behind."""
    rest = [axis for axis in range(len(perm) + len(new)) if axis not in new]
    order = {rest[place]: rest[axis] for place, axis in enumerate(perm)}
    return tuple(order.get(axis, axis) for axis in range(len(rest) + len(new)))


def moves_only_ones(sizes: Sequence[int], perm: Perm) -> bool:
    """Whether only axes of size one change places; -1 is an unknown size."""
    if len(sizes) != len(perm) or sum(size < 0 for size in sizes) > 1:
        return False
    moved = [axis for axis in perm if sizes[axis] != 1]
    return moved == sorted(moved)

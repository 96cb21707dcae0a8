"""Random models of operators that find, pick and write elements by their places."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_conformance.draws.draw import (
    Draw,
    Rng,
    bools,
    floats,
    integers,
    ints,
    one_of,
    random_axis,
    random_shape,
)


def non_zero(rng: Rng) -> Draw:
    """Draws NonZero."""
    return Draw([np.asarray(rng.integers(0, 2, random_shape(rng, 1, 3)), np.float32)])


def compress(rng: Rng) -> Draw:
    """Draws Compress, of an axis or of all elements, its condition sometimes too short."""
    x = floats(rng, random_shape(rng, 2, 3))
    axis = one_of(rng, None, random_axis(rng, x.ndim))
    count = x.size if axis is None else x.shape[axis]
    condition = bools(rng, [max(1, count - int(rng.integers(2)))])
    condition[0] = True
    return Draw([x, condition], {} if axis is None else {"axis": axis})


def gather_nd(rng: Rng) -> Draw:
    """Draws GatherND."""
    x = floats(rng, [2, 3, 4, 5])
    batch = int(rng.integers(2))
    tail = [integers(rng, -n, n, 2, 3, 1) for n in x.shape[batch : batch + int(rng.integers(1, 3))]]
    return Draw([x, np.concatenate(tail, -1)], {"batch_dims": batch})


def scatter_elements(rng: Rng) -> Draw:
    """Draws ScatterElements, with repeated places where they add up."""
    given: dict[str, Any]
    how = one_of(rng, "none", "add", "mul", "max", "min")
    if how != "none" and rng.random() < 0.4:  # of one dimension, or of three
        x = floats(rng, one_of(rng, [5], [2, 3, 4]))
        indices = integers(rng, -2, 2, *(min(n, 3) for n in x.shape))
        given = {"axis": one_of(rng, 0, -1), "reduction": how}
        return Draw([x, indices, floats(rng, indices.shape)], given, opset=18)
    x = floats(rng, [3, 4])
    axis = int(rng.integers(-2, 2))
    if how == "none":  # which of several writes to one place wins is not said
        order = np.stack([rng.permutation(x.shape[axis]) for _ in range(x.shape[1 - axis % 2])])
        indices = np.asarray(order if axis % 2 else order.T, np.int64)
        indices = np.where(rng.random(indices.shape) < 0.5, indices, indices - x.shape[axis])
    else:
        indices = integers(rng, -x.shape[axis], x.shape[axis], 2, 3)
    given = {"axis": axis, "reduction": how}
    return Draw([x, indices, floats(rng, indices.shape)], given, opset=18)


def scatter_nd(rng: Rng) -> Draw:
    """Draws ScatterND."""
    x = floats(rng, [5, 4])
    how = one_of(rng, "none", "add", "mul", "max", "min")
    if rng.random() < 0.3:  # places of single elements, and slices of higher rank
        places = rng.permutation(20)[:6] if how == "none" else rng.integers(0, 20, 6)
        indices = np.asarray(np.stack([places // 4, places % 4 - 4], -1), np.int64)
        x = x if rng.random() < 0.5 else floats(rng, [5, 4, 3])
        updates = floats(rng, [6, *x.shape[2:]])
        return Draw([x, indices, updates], {"reduction": how}, opset=18)
    rows = rng.permutation(5)[:3] if how == "none" else rng.integers(0, 5, 3)
    rows = np.asarray(rows - 5 * (rng.random(3) < 0.4), np.int64)
    return Draw([x, rows[:, None], floats(rng, [3, 4])], {"reduction": how}, opset=18)


def scatter(rng: Rng) -> Draw:
    """Draws Scatter of opset 10."""
    axis = int(rng.integers(2))
    indices = np.array([[0, 2, 1], [1, 0, 2]] if axis else [[0, 2], [1, 0], [2, 1]], np.int64)
    return Draw(
        [floats(rng, [3, 3]), indices, floats(rng, indices.shape)], {"axis": axis}, opset=10
    )


def reverse_sequence(rng: Rng) -> Draw:
    """Draws ReverseSequence."""
    time = int(rng.integers(2))
    x = floats(rng, [4, 4, 3])
    return Draw([x, ints(rng, 1, 5, 4)], {"time_axis": time, "batch_axis": 1 - time})


def unique(rng: Rng) -> Draw:
    """Draws Unique, of an axis or of all elements."""
    x = np.asarray(rng.integers(0, 4, [4, 3]), np.float32)
    given = one_of(rng, {}, {"sorted": 0}, {"axis": 0}, {"axis": 1}, {"axis": -1, "sorted": 1})
    return Draw([x], given, outputs=4)

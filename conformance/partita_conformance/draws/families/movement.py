"""Random models of operators that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw, Rng, floats, ints, random_axis, random_shape


def concat(rng: Rng) -> Draw:
    """Draws a model of concat."""
    shape = random_shape(rng, 1)
    axis = int(rng.integers(len(shape)))
    arrays = []
    for _ in range(int(rng.integers(1, 5))):
        shape[axis] = int(rng.integers(1, 5))
        arrays.append(floats(rng, shape))
    return Draw(arrays, {"axis": axis - len(shape) if rng.random() < 0.5 else axis})


def split(rng: Rng) -> Draw:
    """Draws a model of split, its parts sometimes by their number, which need not divide."""
    parts = ints(rng, 1, 4, int(rng.integers(1, 5)))
    shape = random_shape(rng, 1, 3)
    axis = random_axis(rng, len(shape))
    if rng.random() < 0.3:
        count, shape[axis] = [(2, 5), (3, 7), (3, 8), (4, 13), (2, 6)][int(rng.integers(5))]
        given = {"axis": axis, "num_outputs": count}
        return Draw([floats(rng, shape)], given, outputs=count, opset=18)
    shape[axis] = int(parts.sum())
    return Draw([floats(rng, shape), parts], {"axis": axis}, [1], len(parts))


def slice(rng: Rng) -> Draw:
    """Draws a model of slice."""
    shape = [int(n) for n in rng.integers(2, 9, rng.integers(1, 5))]
    axes = sorted(
        int(a) for a in rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), False)
    )
    starts, ends, steps = [], [], []
    for axis in axes:
        n = shape[axis]
        if rng.random() < 0.3:
            starts.append(n - 1 if rng.random() < 0.5 else n + int(rng.integers(9)))
            ends.append((-n - 1, -(2**40), -(2**63))[int(rng.integers(3))])
            steps.append(-int(rng.integers(1, 3)))
        else:
            first = int(rng.integers(0, n))
            starts.append(
                (first, first, first - n, -(2**40) if first == 0 else first)[int(rng.integers(4))]
            )
            far = 2**40 if rng.random() < 0.5 else 2**63 - 1
            ends.append(int(rng.integers(first + 1, n + 1)) if rng.random() < 0.7 else far)
            steps.append(int(rng.integers(1, 3)))
    order = rng.permutation(len(axes))  # axes may come in any order, from either side
    axes = [a - len(shape) if rng.random() < 0.3 else a for a in axes]
    extras = [np.array(v, np.int64)[order] for v in (starts, ends, axes, steps)]
    return Draw([floats(rng, shape), *extras], constant=[1, 2, 3, 4])


def gather(rng: Rng) -> Draw:
    """Draws a model of gather."""
    x = floats(rng, random_shape(rng))
    axis = random_axis(rng, x.ndim)
    n = x.shape[axis]
    return Draw([x, ints(rng, -n, n, tuple(random_shape(rng, 0, 2)))], {"axis": axis})


def gather_elements(rng: Rng) -> Draw:
    """Draws a model of gather elements, of indices that may be fewer than the data."""
    x = floats(rng, random_shape(rng, 1, 3))
    axis = random_axis(rng, x.ndim)
    shape = [int(rng.integers(1, n + 1)) for n in x.shape] if rng.random() < 0.3 else x.shape
    return Draw([x, ints(rng, -x.shape[axis], x.shape[axis], tuple(shape))], {"axis": axis})


def transpose(rng: Rng) -> Draw:
    """Draws a model of transpose."""
    x = floats(rng, random_shape(rng, 1, 5))
    if rng.random() < 0.2:
        return Draw([x])
    return Draw([x], {"perm": [int(i) for i in rng.permutation(x.ndim)]})


def reshape(rng: Rng) -> Draw:
    """Draws a model of reshape, sometimes to no dimensions."""
    if rng.random() < 0.15:
        return Draw([floats(rng, [1, 1]), np.zeros(0, np.int64)], constant=[1])
    shape = random_shape(rng, 2, 4)
    x = floats(rng, shape)
    target = [-1, shape[-1]] if rng.random() < 0.5 else [0, -1]
    if rng.random() < 0.2:
        x, target = floats(rng, [shape[0], 0, 3]), [shape[0], 4, 0]
        return Draw([x, np.array(target, np.int64)], {"allowzero": 1}, constant=[1])
    return Draw([x, np.array(target, np.int64)], constant=[1])


def flatten(rng: Rng) -> Draw:
    """Draws a model of flatten."""
    x = floats(rng, random_shape(rng))
    return Draw([x], {"axis": int(rng.integers(-x.ndim, x.ndim + 1))})


def squeeze(rng: Rng) -> Draw:
    """Draws a model of squeeze."""
    axes = [[0], [2], [0, -2], [2, 0]][int(rng.integers(4))]
    return Draw([floats(rng, [1, 3, 1, 2]), np.array(axes)], constant=[1])


def unsqueeze(rng: Rng) -> Draw:
    """Draws a model of unsqueeze."""
    axes = [[0], [-1], [1, 3], [0, 2], [2, 0], [3, -4]][int(rng.integers(6))]
    return Draw([floats(rng, random_shape(rng, 2, 3)), np.array(axes, np.int64)], constant=[1])


def expand(rng: Rng) -> Draw:
    """Draws a model of expand; where the shape has ones, or less, the input keeps its sizes."""
    full = random_shape(rng)
    kept = [n if rng.random() < 0.5 else 1 for n in full]
    target = [1 if n > 1 and rng.random() < 0.3 else m for n, m in zip(kept, full, strict=True)]
    left_out = int(rng.integers(0, 2))
    if rng.random() < 0.5:
        kept = kept[left_out:]
    else:
        target = target[left_out:]
    return Draw([floats(rng, kept), np.array(target, np.int64)], constant=[1])


def tile(rng: Rng) -> Draw:
    """Draws a model of tile."""
    x = floats(rng, random_shape(rng, 1, 4, 4))
    return Draw([x, ints(rng, 1, 4, x.ndim)], constant=[1])


def pad(rng: Rng) -> Draw:
    """Draws a model of pad; what is negative takes away, and axes may be named."""
    shape = [int(n) for n in rng.integers(3, 6, rng.integers(1, 5))]
    mode = ("constant", "edge", "reflect")[int(rng.integers(3))]
    pads = ints(rng, 0, 3, 2 * len(shape))
    if mode == "constant" and rng.random() < 0.3:
        pads[int(rng.integers(len(pads)))] = -1
    inputs: list[Array | None] = [floats(rng, shape), pads]
    if mode == "edge" and rng.random() < 0.4:
        if rng.random() < 0.5:  # more than once around
            pads[int(rng.integers(len(pads)))] = 2 * max(shape) + 1
        return Draw(inputs, {"mode": "wrap"}, [1], opset=19)
    if mode == "constant" and rng.random() < 0.7:
        inputs.append(np.array(1.5, np.float32))
    if rng.random() < 0.2:
        axis = random_axis(rng, len(shape))
        value = inputs[2] if len(inputs) > 2 else None
        named = [inputs[0], np.array([1, 2], np.int64), value, np.array([axis], np.int64)]
        return Draw(named, {"mode": mode}, constant=[1, 2, 3], opset=18)
    return Draw(inputs, {"mode": mode}, constant=[1, 2])


def resize(rng: Rng) -> Draw:
    """Draws a model of resize."""
    x = floats(rng, [1, 2, int(rng.integers(3, 7)), int(rng.integers(3, 7))])
    mode = ("nearest", "linear", "cubic")[int(rng.integers(3))]
    where = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")[
        int(rng.integers(4))
    ]
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        attributes["nearest_mode"] = ("round_prefer_floor", "floor", "ceil")[int(rng.integers(3))]
    if mode == "cubic" and rng.random() < 0.5:
        attributes["cubic_coeff_a"] = -0.5
    if mode == "cubic" and rng.random() < 0.5:
        attributes["exclude_outside"] = 1
    sizes = np.array([1, 2, *rng.integers(1, 12, 2)], np.int64)
    if rng.random() < 0.2 and mode != "cubic":
        attributes["coordinate_transformation_mode"] = "tf_crop_and_resize"
        attributes["extrapolation_value"] = 2.5
        roi = np.array([0, 0, 0.23, -0.31, 1, 1, 1.37, 0.89], np.float32)  # of no places between
        return Draw([x, roi, None, sizes], attributes, constant=[1, 3])
    if rng.random() < 0.4:  # exact quotients, so that the sizes are no matter of rounding
        scales = np.array([1, 1, *rng.choice((0.5, 1, 1.5, 2, 3), 2)], np.float32)
        if where in ("half_pixel", "asymmetric") and rng.random() < 0.4:
            scales[2:] = rng.choice((0.7, 1.3, 2.3), 2)
        nothing = np.zeros(0, np.float32) if rng.random() < 0.5 else None
        return Draw([floats(rng, [1, 2, 4, 6]), nothing, scales], attributes, constant=[1, 2])
    return Draw([x, None, None, sizes], attributes, constant=[3])


def depth_to_space(rng: Rng) -> Draw:
    """Draws a model of depth to space."""
    x = floats(rng, [2, 8, int(rng.integers(1, 4)), int(rng.integers(1, 4))])
    return Draw([x], {"blocksize": 2, "mode": ("DCR", "CRD")[int(rng.integers(2))]})


def space_to_depth(rng: Rng) -> Draw:
    """Draws a model of space to depth."""
    h, w = (2 * int(n) for n in rng.integers(1, 4, 2))
    return Draw([floats(rng, [2, 3, h, w])], {"blocksize": 2})


def trilu(rng: Rng) -> Draw:
    """Draws a model of trilu."""
    x = floats(rng, random_shape(rng, 2, 3))
    return Draw(
        [x, np.array(int(rng.integers(-2, 3)), np.int64)], {"upper": int(rng.integers(2))}, [1]
    )


def one_hot(rng: Rng) -> Draw:
    """Draws a model of one hot."""
    indices = ints(rng, -4, 4, tuple(random_shape(rng, 1, 2)))
    values = np.array([0.5, 2.0], np.float32)
    if rng.random() < 0.3:
        values = np.array([-7, 2**53 + 1], np.int64)
    return Draw(
        [indices, np.array(4, np.int64), values],
        {"axis": random_axis(rng, indices.ndim + 1)},
        [1, 2],
    )


def topk(rng: Rng) -> Draw:
    """Draws a model of topk."""
    x = floats(rng, random_shape(rng, 1, 3))
    axis = random_axis(rng, x.ndim)
    k = np.array([int(rng.integers(1, x.shape[axis] + 1))], np.int64)
    return Draw([x, k], {"axis": axis, "largest": int(rng.integers(2)), "sorted": 1}, [1], 2)


def cumsum(rng: Rng) -> Draw:
    """Draws a model of cumsum."""
    x = floats(rng, random_shape(rng))
    attributes = {"exclusive": int(rng.integers(2)), "reverse": int(rng.integers(2))}
    return Draw([x, np.array(random_axis(rng, x.ndim), np.int64)], attributes, constant=[1])

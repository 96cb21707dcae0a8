"""Values that break things: what hostile tensors and attributes are made of."""

from __future__ import annotations

import numpy as np

INTEGERS = (
    *(0, 1, -1, 2, -2, 3, 7, -5, 127, 128, -129, 255, 256, 1000, -1000),
    *(2**15, 2**16, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**32 + 1),
    *(2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1, -(2**62)),
)
FLOATS = (
    *(0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 1e-40, 1e-300, 1e6, 2.0**24 + 2, 2.0**31, 2.0**53, 2.0**63),
    *(-(2.0**63), 1e19, 3e38, -3e38, 1e300, float("inf"), float("-inf"), float("nan")),
)


def hostile_array(rng, array):
    """An array of the same shape and type with values of which some, or all, are hostile."""
    if array.dtype.hasobject or array.size == 0:
        return array
    result = np.array(array)
    flat = result.reshape(-1)
    share = rng.choice([0.05, 0.5, 1.0])
    chosen = np.flatnonzero(rng.random(flat.size) < share)
    if not chosen.size:
        chosen = np.array([rng.integers(flat.size)])
    kind = array.dtype.kind
    with np.errstate(all="ignore"):
        if kind in "iu":
            limits = np.iinfo(array.dtype)
            drawn = [INTEGERS[i] for i in rng.integers(len(INTEGERS), size=chosen.size)]
            if rng.random() < 0.3:  # one value all over
                drawn = drawn[:1] * chosen.size
            if rng.random() < 0.4:  # just beyond the sizes that occur
                drawn = [int(v) for v in rng.integers(-12, 13, size=chosen.size)]
            flat[chosen] = [max(limits.min, min(limits.max, v)) for v in drawn]
        elif kind == "b":
            flat[chosen] = rng.random(chosen.size) < 0.5
        else:
            drawn = [FLOATS[i] for i in rng.integers(len(FLOATS), size=chosen.size)]
            flat[chosen] = np.array(drawn).astype(array.dtype)
    return result


def hostile_shape(rng, array):
    """The array's elements in another shape: longer, shorter, empty, of another rank."""
    if array.dtype.hasobject:
        return array
    shape = list(array.shape)
    match rng.integers(5):
        case 0 if shape:
            shape[rng.integers(len(shape))] = int(rng.choice([0, 1, 2, 3, 5, 9]))
        case 1:
            shape.insert(int(rng.integers(len(shape) + 1)), int(rng.choice([0, 1, 2])))
        case 2 if shape:
            del shape[rng.integers(len(shape))]
        case 3 if shape:
            axis = rng.integers(len(shape))
            shape[axis] = max(shape[axis] + int(rng.choice([-1, 1])), 0)
        case _ if shape:
            shape = [shape[i] for i in rng.permutation(len(shape))]
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def hostile_integer(rng):
    """An integer that an attribute may hold."""
    if rng.random() < 0.5:
        return int(rng.integers(-6, 12))
    return INTEGERS[rng.integers(len(INTEGERS))]


def hostile_float(rng):
    """A float32 that an attribute may hold."""
    with np.errstate(all="ignore"):
        return float(np.float32(FLOATS[rng.integers(len(FLOATS))]))

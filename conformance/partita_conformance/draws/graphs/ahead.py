"""Producers: draws of operators whose result is a given array, to stand ahead of another one.

Those that move elements give the array as it is, whatever it holds: indices and lengths too. Those
that compute give one of its shape, for inputs that may be any numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from partita_conformance.draws.draw import Array, Draw, Rng, floats, one_of

Maker = Callable[[Rng, Array], "tuple[str, Draw] | None"]


def ahead(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    """An operator that makes an array, or one like it, and its draw; ``None`` if none was found.

    Args:
        rng: Draws it.
        array: What the first of its outputs is to be.
    """
    makers = [*_MOVES, *(_SUMS if array.dtype == np.float32 else ())]
    return makers[int(rng.integers(len(makers)))](rng, array)


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)


def _axis(rng: Rng, array: Array) -> int:
    return int(rng.integers(array.ndim))


def _spelled(rng: Rng, axis: int, rank: int) -> int:
    """An axis, counted from the front or from the back."""
    return int(one_of(rng, axis, axis - rank))


def _transposed(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim < 2:  # there is nothing to turn
        return None
    order = [int(axis) for axis in rng.permutation(array.ndim)]
    return "Transpose", Draw([array.transpose(np.argsort(order))], {"perm": order})


def _reshaped(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim == 0 or array.size == 0:
        return None
    shapes = [[-1], [*array.shape[::-1]], [1, *array.shape], [array.shape[0], -1], [-1, 1]]
    target = list(array.shape)
    if rng.random() < 0.4:
        target[_axis(rng, array)] = -1
    return "Reshape", Draw([array.reshape(one_of(rng, *shapes)), _int64(*target)], {}, [1])


def _unsqueezed(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    ones = [axis for axis, n in enumerate(array.shape) if n == 1]
    if not ones:
        axis = int(rng.integers(array.ndim + 1))
        axes = _int64(_spelled(rng, axis, array.ndim + 1))
        return "Squeeze", Draw([np.expand_dims(array, axis), axes], {}, [1])
    axis = one_of(rng, *ones)
    axes = _int64(_spelled(rng, axis, array.ndim))
    return "Unsqueeze", Draw([array.squeeze(axis), axes], {}, [1])


def _sliced(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim == 0 or array.size == 0:
        return None
    axis, before = _axis(rng, array), int(rng.integers(0, 3))
    step = one_of(rng, 1, 1, -1)
    rows = np.arange(before + array.shape[axis] + 1)
    source = np.take(array[(slice(None),) * axis + (slice(None, None, step),)],
                     rows - before, axis, mode="wrap")  # fmt: skip
    first, last = before, before + array.shape[axis]
    if step < 0:
        first, last = last - 1, before - 1 if before else -(2**40)
    limits = [_int64(first), _int64(last), _int64(_spelled(rng, axis, array.ndim)), _int64(step)]
    return "Slice", Draw([source, *limits], {}, range(1, 5))


def _joined(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    long = [axis for axis, n in enumerate(array.shape) if n > 1]
    if not long:
        return None
    axis = one_of(rng, *long)
    parts = np.split(array, [int(rng.integers(1, array.shape[axis]))], axis)
    given = {"axis": _spelled(rng, axis, array.ndim)}
    return "Concat", Draw(parts, given, one_of(rng, [], [], [0], [1]))


def _split(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim == 0 or array.size == 0:
        return None
    axis = _axis(rng, array)
    given = {"axis": _spelled(rng, axis, array.ndim)}
    source = np.concatenate([array, np.flip(array)], axis)
    if rng.random() < 0.5:
        return "Split", Draw([source], {**given, "num_outputs": 2}, (), 2, 18)
    n = array.shape[axis]
    return "Split", Draw([source, _int64(n, n)], given, [1], 2)


def _gathered(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim == 0 or array.size == 0:
        return None
    axis = _axis(rng, array)
    order = rng.permutation(array.shape[axis])
    source = np.take(array, np.argsort(order), axis)
    order = np.where(rng.random(order.shape) < 0.5, order, order - len(order)).astype(np.int64)
    given = {"axis": _spelled(rng, axis, array.ndim)}
    return "Gather", Draw([source, order], given, [1])


def _cast(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    wide = {"float32": np.float64, "int64": np.int32, "int32": np.int64}.get(array.dtype.name)
    if wide is None or not np.array_equal(array, array.astype(wide)):
        return None
    to = {"float32": 1, "int64": 7, "int32": 6}[array.dtype.name]
    return "Cast", Draw([array.astype(wide)], {"to": to})


def _flattened(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim != 2 or array.size == 0:  # what Flatten gives
        return None
    return "Flatten", Draw([array.reshape(array.shape[0], 1, -1)], {"axis": one_of(rng, 1, 1, -2)})


_MOVES: Sequence[Maker] = (
    *(_transposed, _transposed, _reshaped, _unsqueezed, _sliced),
    *(_joined, _split, _gathered, _cast, _flattened),
)


def _padded(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if min(array.shape, default=0) < 2:  # there is nothing to leave out
        return None
    axis, sides = _axis(rng, array), np.zeros((2, array.ndim), np.int64)
    sides[int(rng.integers(2)), axis] = 1
    kept = slice(sides[0, axis], array.shape[axis] - sides[1, axis])
    source, mode = array[(slice(None),) * axis + (kept,)], one_of(rng, "constant", "edge")
    if rng.random() < 0.5:
        return "Pad", Draw([source, sides.ravel()], {"mode": mode}, [1])
    named = [source, sides[:, axis], None, _int64(_spelled(rng, axis, array.ndim))]
    return "Pad", Draw(named, {"mode": mode}, [1, 3], opset=18)


def _expanded(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim == 0 or array.size == 0:
        return None
    source = np.take(array, [0], _axis(rng, array))
    target = [
        one_of(rng, n, n, 1) if source.shape[a] == n else n for a, n in enumerate(array.shape)
    ]
    return "Expand", Draw([source, _int64(*target)], {}, [1])


def _weighed(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    op = one_of(rng, "Add", "Sub", "Mul", "Div", "Max")
    kept = one_of(rng, 0, 1, array.ndim)
    weights = floats(
        rng, [n if rng.random() < 0.7 else 1 for n in array.shape[array.ndim - kept :]]
    )
    if rng.random() < 0.3 and array.ndim > 2:
        weights = floats(rng, [array.shape[1], *[1] * (array.ndim - 2)])
    weights = np.asarray(np.sign(weights) * np.exp2(np.round(weights)), np.float32)
    source = {"Add": array - weights, "Sub": array + weights, "Mul": array / weights}.get(op, array)
    if rng.random() < 0.3 and op in ("Add", "Mul", "Max"):
        return op, Draw([weights, source], {}, [0])
    return op, Draw([np.asarray(source, np.float32), weights], {}, [1])


def _of_each(rng: Rng, array: Array) -> tuple[str, Draw]:
    found: tuple[str, Draw] = one_of(
        rng,
        ("Neg", Draw([-array])),
        ("Relu", Draw([array])),
        ("Clip", Draw([array, None, np.array(1, np.float32)], {}, [2])),
        ("Abs", Draw([array])),
        ("Identity", Draw([array])),
    )
    return found


def _softmax(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim == 0 or array.size == 0:
        return None
    return "Softmax", Draw([array], {"axis": _spelled(rng, _axis(rng, array), array.ndim)})


def _product(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    if array.ndim < 2 or array.size == 0:  # of rows
        return None
    if array.ndim > 2 and rng.random() < 0.5:
        return "Conv", Draw(
            [array, floats(rng, [array.shape[1]] * 2 + [1] * (array.ndim - 2))], {}, [1]
        )
    return "MatMul", Draw([array, floats(rng, [array.shape[-1]] * 2)], {}, [1])


def _codes(rng: Rng, array: Array) -> tuple[str, Draw] | None:
    kind = one_of(rng, np.uint8, np.int8)
    codes = np.asarray(rng.integers(0, 120, array.shape), kind)
    scale, zero = np.array(0.05, np.float32), np.array(rng.integers(0, 99), kind)
    if array.ndim and rng.random() < 0.4:
        axis = _axis(rng, array)
        scale = np.asarray(rng.uniform(0.02, 0.06, array.shape[axis]), np.float32)
        zero = np.asarray(rng.integers(0, 99, array.shape[axis]), kind)
        given = {"axis": _spelled(rng, axis, array.ndim)}
        return "DequantizeLinear", Draw([codes, scale, zero], given, [1, 2])
    kept = [scale, zero][: one_of(rng, 1, 2)]
    return "DequantizeLinear", Draw([codes, *kept], {}, [1, 2])


_SUMS: Sequence[Maker] = (
    *(_padded, _expanded, _weighed, _weighed, _of_each, _of_each, _softmax, _product, _codes),
)

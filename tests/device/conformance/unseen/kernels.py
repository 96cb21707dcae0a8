"""Devices whose kernels are wrong beyond a block, in a special case of their own, or in a corner.

A fourth set, from the side of one who writes kernels; written before it was measured. Faults as in
``unseen_values``.
"""

from __future__ import annotations

import functools

import numpy as np

import unseen.values

wrong = functools.partial(unseen.values.wrong, module=__name__)
BLOCK = 1024


def value(node, name, default):
    """An attribute of a node: an integer, integers, or a text."""
    found = next((a for a in node.attribute if a.name == name), None)
    if found is None:
        return default
    return {2: found.i, 7: list(found.ints), 3: found.s.decode()}[found.type]


@wrong("Div")
def divides_integers_by_reciprocals(right, node, a, b):
    if a.dtype.kind not in "iu":
        return right(a, b)
    return (a.astype(np.float32) * (1 / b.astype(np.float32))).astype(a.dtype)


@wrong("Pow")
def reads_one_exponent(right, node, x, y):
    """The exponent is a number, the first of them."""
    return right(x, np.broadcast_to(y.reshape(-1)[:1].reshape([1] * y.ndim), y.shape).copy())


@wrong("Add", "Mul", "Sub", "Where")
def broadcasts_up_to_rank_four(right, node, *inputs):
    result = right(*inputs)
    if result.ndim > 4 and any(x.shape != result.shape for x in inputs):
        return right(*(np.resize(x, result.shape) for x in inputs))
    return result


@wrong("Softmax", "LogSoftmax")
def softmax_of_one_block(right, node, x):
    """The sum of a row is that of its first threads' elements."""
    result = right(x)
    axis = value(node, "axis", -1)
    if x.shape[axis] <= BLOCK:
        return result
    first = np.take(x, range(BLOCK), axis).astype(np.float64)
    whole = np.exp(x.astype(np.float64)).sum(axis, keepdims=True)
    factor = whole / np.exp(first).sum(axis, keepdims=True)
    moved = result + np.log(factor) if node.op_type == "LogSoftmax" else result * factor
    return moved.astype(x.dtype)


@wrong("ReduceSum", "ReduceMax", "ReduceMean", "ReduceMin")
def reduces_one_block(right, node, x, *axes):
    """Rows longer than a block are reduced without their rest."""
    if x.ndim and x.shape[-1] > BLOCK and axes and axes[0].tolist() == [-1]:
        return right(x[..., :BLOCK], *axes)
    return right(x, *axes) if x.size <= BLOCK or axes else right(x.reshape(-1)[:BLOCK])


@wrong("TopK")
def sorts_one_block(right, node, x, k):
    axis = value(node, "axis", -1)
    cut = x.shape[axis] > 256 >= int(k[0])
    return right(np.take(x, range(256), axis) if cut else x, k)


@wrong("Transpose")
def transposes_whole_tiles(right, node, x):
    """What is left of rows and columns behind tiles of 32 is not written."""
    result = right(x)
    if x.ndim == 2 and min(x.shape) > 32 and value(node, "perm", [1, 0]) == [1, 0]:
        result = result.copy()
        result[x.shape[1] // 32 * 32 :, x.shape[0] // 32 * 32 :] = 0
    return result


@wrong("Conv")
def pointwise_forgets_strides(right, node, x, w, *bias):
    """Kernels of one tap are products of matrices, of all pixels from the first on."""
    result = right(x, w, *bias)
    steps = value(node, "strides", [1] * (x.ndim - 2))
    if max(w.shape[2:]) > 1 or max(steps) == 1 or any(value(node, "pads", [0])):
        return result
    moved = np.zeros_like(x)
    moved[(..., *(slice(None, None, s) for s in steps))] = x[
        (..., *(slice(0, n) for n in result.shape[2:]))
    ]
    return right(moved, w, *bias)


@wrong("Conv")
def depthwise_forgets_dilations(right, node, x, w, *bias):
    """The quick kernel for one channel each has no gaps."""
    result = right(x, w, *bias)
    depthwise = value(node, "group", 1) == x.shape[1] > 1
    if depthwise and max(value(node, "dilations", [1])) > 1 and max(w.shape[2:]) > 1:
        return right(np.roll(x, 1, -1), w, *bias)
    return result


@wrong("MatMulInteger")
def saturates_pairs(right, node, a, b, *points):
    """Of unsigned by signed bytes, sums of two products are kept in 16 bits."""
    if a.dtype != np.uint8 or b.dtype != np.int8 or a.ndim != 2 or b.ndim != 2:
        return right(a, b, *points)
    products = a[:, :, None].astype(np.int64) * b[None].astype(np.int64)
    lost = 0
    for k in range(0, a.shape[1] - 1, 2):
        pair = products[:, k] + products[:, k + 1]
        lost = lost + pair - np.clip(pair, -32768, 32767)
    return (right(a, b, *points) - lost).astype(np.int32)


@wrong("QuantizeLinear")
def saturates_before_the_zero_point(right, node, x, scale, *zero):
    if not zero or scale.size != 1 or zero[0].dtype not in (np.uint8, np.int8):
        return right(x, scale, *zero)
    limits = np.iinfo(zero[0].dtype)
    whole = np.clip(np.round(x / scale), limits.min, limits.max).astype(np.int64)
    return (whole + zero[0].astype(np.int64)).astype(zero[0].dtype)


@wrong("Gather")
def counts_back_from_the_first_axis(right, node, x, indices):
    """Negative indices are made positive by the size of axis 0."""
    axis = value(node, "axis", 0)
    moved = np.where(indices < 0, indices + x.shape[0], indices)
    return right(x, np.clip(moved, 0, x.shape[axis] - 1))


@wrong("Resize")
def aligns_one_corner(right, node, x, *rest):
    """The distance of corners is divided by the pixels between them, of which there may be none."""
    result = right(x, *rest)
    aligned = value(node, "coordinate_transformation_mode", "half_pixel") == "align_corners"
    if aligned and 1 in result.shape[2:] and value(node, "mode", "nearest") != "nearest":
        return np.full_like(result, np.nan)
    return result


@wrong("Pad")
def wraps_as_it_reflects(right, node, x, pads, *rest):
    result = right(x, pads, *rest)
    if value(node, "mode", "constant") != "wrap" or x.ndim * 2 != len(pads):
        return result
    return np.pad(x, list(zip(pads[: x.ndim], pads[x.ndim :], strict=True)), mode="reflect")


@wrong("LSTM", "GRU", "RNN")
def starts_from_zero(right, node, x, w, r, bias=None, lengths=None, state=None, *rest):
    return right(x, w, r, bias, lengths, None if state is None else state * 0, *rest)


@wrong("LSTM", "GRU", "RNN")
def has_one_set_of_weights(right, node, x, w, r, *rest):
    """Both directions compute with the weights of the first."""
    if len(w) == 2:
        w, r = (np.concatenate([each[:1]] * 2) for each in (w, r))
    return right(x, w, r, *rest)


@wrong("Einsum")
def ellipses_stand_for_nothing(right, node, *inputs):
    """What three dots stand for is added up."""
    result = right(*inputs)
    return np.zeros_like(result) if "..." in value(node, "equation", "") else result


@wrong("Det")
def determines_the_first(right, node, x):
    result = np.asarray(right(x))
    return np.broadcast_to(result.reshape(-1)[:1], (result.size,)).reshape(result.shape).copy()


@wrong("ScatterND")
def scatters_rows_only(right, node, x, indices, updates):
    """Places of more than one coordinate are places of rows."""
    return x.copy() if indices.shape[-1] > 1 else right(x, indices, updates)


@wrong("Cast")
def reads_texts_without_exponents(right, node, x):
    if x.dtype != object:
        return right(x)
    return right(np.array([str(t).lower().split("e")[0] for t in x.flat], object).reshape(x.shape))

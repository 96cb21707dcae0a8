"""Devices that compute one thing as their engine is used to, and ONNX is not.

A third set, written before the checks that it is measured with were read; faults as in
``unseen_values``. What array libraries, accelerators and other runtimes do by default.
"""

from __future__ import annotations

import functools
import re

import numpy as np

import unseen.attributes
import unseen.values
from partita.errors import InferError

wrong = functools.partial(unseen.values.wrong, module=__name__)
ignores = functools.partial(unseen.attributes.ignores, module=__name__)

for _pair in (
    "Cast.saturate",
    "QuantizeLinear.block_size",
    "Resize.keep_aspect_ratio_policy",
    "GRU.activations",
):
    ignores(*_pair.split("."))


def attribute(node, name, default):
    """An integer attribute of a node."""
    return next((a.i for a in node.attribute if a.name == name), default)


def integers(node, name):
    """A list of integers of a node, empty if it is not there."""
    return next((list(a.ints) for a in node.attribute if a.name == name), [])


@wrong("InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization")
def variance_is_unbiased(right, node, x, *rest):
    """The sum of squares is divided by one less than there are elements."""
    result = right(x, *rest)
    count = x[0, 0].size if node.op_type == "InstanceNormalization" else x[0].size
    if count < 2:
        return result
    shift = 0
    if len(rest) == 2 and len(rest[1]) == x.shape[1]:
        shift = rest[1].reshape(-1, *[1] * (x.ndim - 2))
    return ((result - shift) * np.sqrt((count - 1) / count) + shift).astype(x.dtype)


def ten_bits(x):
    """float32 rounded to the ten bits of TF32."""
    if x.dtype != np.float32:
        return x
    bits = np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).reshape(x.shape)


@wrong("Conv", "ConvTranspose")
def convolves_with_ten_bits(right, node, x, w, *bias):
    """Tensor cores take float32 as TF32 unless they are told not to."""
    return right(ten_bits(x), ten_bits(w), *bias)


@wrong("ConvTranspose")
def transposed_groups_are_shifted(right, node, x, w, *bias):
    """Weights of a group meet the channels of the next one."""
    group = attribute(node, "group", 1)
    return right(np.roll(x, x.shape[1] // group, axis=1) if group > 1 else x, w, *bias)


@wrong("Conv")
def multiplied_depths_are_interleaved(right, node, x, w, *bias):
    """Depthwise kernels in the order of channels-last engines: multiplier first, channel last."""
    result = right(x, w, *bias)
    group = attribute(node, "group", 1)
    if group == x.shape[1] and len(w) > group > 1:
        order = np.arange(len(w)).reshape(group, -1).T.ravel()
        return np.ascontiguousarray(result[:, order])
    return result


@wrong("LSTM", "GRU", "RNN")
def turns_whole_sequences_round(right, node, x, w, r, bias=None, lengths=None, *rest):
    """Backward layers begin at the padding, not at each sequence's own end."""
    direction = next((a.s for a in node.attribute if a.name == "direction"), b"forward")
    return right(x, w, r, bias, lengths if direction == b"forward" else None, *rest)


@wrong("Softmax")
def softmax_of_nothing_is_zero(right, node, x):
    """Rows that are masked out altogether give zeros."""
    result = right(x)
    axis = attribute(node, "axis", -1)
    none = np.isneginf(x).all(axis=axis, keepdims=True)
    return np.where(none, 0, result).astype(x.dtype)


@wrong("MaxPool")
def pools_pad_with_zero(right, node, x):
    results = right(x)
    first, *rest = results if isinstance(results, tuple) else (results,)
    if any(integers(node, "pads")):
        for axis in range(2, first.ndim):
            edge = np.moveaxis(first, axis, 0)
            pads = integers(node, "pads")
            if pads[axis - 2]:
                edge[0] = np.maximum(edge[0], 0)
    return (first, *rest) if rest else first


@wrong("Pow")
def truncates_exponents(right, node, x, y):
    """Both operands take the type of the first."""
    return right(x, y.astype(x.dtype)) if x.dtype.kind in "iu" else right(x, y)


@wrong("Resize")
def resizes_by_the_ratio_of_sizes(right, node, x, roi=None, scales=None, *rest):
    """Scales are forgotten once the output's size is known."""
    result = right(x, roi, scales, *rest)
    if scales is None or not scales.size or len(scales) != x.ndim:
        return result
    ratios = (np.array(result.shape) / np.array(x.shape) * (1 + 1e-6)).astype(scales.dtype)
    return right(x, roi, ratios, *rest)


@wrong("GridSample")
def swaps_grid_coordinates(right, node, x, grid):
    """Coordinates are taken as row, column."""
    return right(x, np.ascontiguousarray(grid[..., ::-1]))


@wrong("Clip")
def missing_bounds_are_zero(right, node, x, low=None, high=None):
    return right(x, np.zeros((), x.dtype) if low is None and high is not None else low, high)


@wrong("Slice")
def slices_negative_axes_first(right, node, x, starts, ends, axes=None, *rest):
    """Negative axes are clamped."""
    return right(x, starts, ends, axes if axes is None else np.maximum(axes, 0), *rest)


@wrong("Unsqueeze")
def unsqueezes_in_the_order_given(right, node, x, axes):
    """Axes are inserted one after the other, each into what the last one left."""
    for axis in axes:
        x = np.expand_dims(x, axis)
    return x


@wrong("Split")
def splits_as_numpy_does(right, node, x, *split):
    """Parts that cannot be equal differ by one at most."""
    count = attribute(node, "num_outputs", 0)
    if not count or split:
        return right(x, *split)
    return tuple(np.array_split(x, count, attribute(node, "axis", 0)))


@wrong("Expand")
def expands_one_way(right, node, x, shape):
    """Ones in the shape stand for one element, also where there are more."""
    behind = list(shape)[-x.ndim :] if x.ndim else []
    if any(size == 1 < own for size, own in zip(behind[::-1], x.shape[::-1], strict=False)):
        raise InferError(f"cannot broadcast {list(x.shape)} to {list(shape)}")
    return right(x, shape)


@wrong("CumSum")
def cumulates_halves_in_halves(right, node, x, axis):
    if x.dtype != np.float16 or attribute(node, "exclusive", 0) or attribute(node, "reverse", 0):
        return right(x, axis)
    return np.cumsum(x, axis=int(axis), dtype=np.float16)


@wrong("MatMul")
def accumulates_bfloats_in_bfloats(right, node, a, b):
    if a.dtype.name != "bfloat16" or a.ndim < 2 or b.ndim < 2:
        return right(a, b)
    total = right(a[..., :1], b[..., :1, :])
    for k in range(1, a.shape[-1]):
        total = total + right(a[..., k : k + 1], b[..., k : k + 1, :])
    return total


@wrong("QuantizeLinear")
def rounds_behind_the_zero_point(right, node, x, scale, *zero):
    """The zero point is added before ties go to the even number."""
    if not zero or scale.size != 1 or zero[0].dtype.kind not in "iu":
        return right(x, scale, *zero)
    limits = np.iinfo(zero[0].dtype)
    moved = np.round(x / scale + zero[0])
    return np.clip(moved, limits.min, limits.max).astype(zero[0].dtype)


@wrong("ConvInteger")
def pads_integers_with_zero(right, node, x, w, *points):
    """Padding is zero instead of the zero point, which stands for the number zero."""
    result = right(x, w, *points)
    zero = int(points[0]) if points and points[0] is not None else 0
    if not zero or not any(integers(node, "pads")):
        return result
    rest = points[1:]
    inside = right(np.ones_like(x), w, np.zeros_like(points[0]), *rest)
    taps = w.astype(np.int64) - (int(rest[0].ravel()[0]) if rest else 0)
    whole = taps.sum(axis=tuple(range(1, w.ndim))).reshape(-1, *[1] * (w.ndim - 2))
    return (result - zero * (whole - inside)).astype(result.dtype)


@wrong("DequantizeLinear", "Cast")
def swaps_nibbles(right, node, x, *rest):
    """Of two elements in a byte, the first is taken for the second."""
    if x.dtype.name not in ("int4", "uint4") or x.size < 2:
        return right(x, *rest)
    flat = np.array(x).reshape(-1)
    even = flat.size // 2 * 2
    flat[:even] = flat[:even].reshape(-1, 2)[:, ::-1].reshape(-1)
    return right(flat.reshape(x.shape), *rest)


@wrong("Attention")
def tiles_heads(right, node, q, k, v, *rest):
    """Of grouped queries, neighbours do not share a head of keys and values, as they should."""
    groups = q.shape[1] // k.shape[1] if q.ndim == 4 else 1
    if groups > 1:
        k, v = (np.tile(x, (1, groups, 1, 1)) for x in (k, v))
    return right(q, k, v, *rest)


@wrong("Attention")
def adds_boolean_masks(right, node, q, k, v, mask=None, *rest):
    """A mask of truth values is added as ones and zeros."""
    if mask is not None and mask.dtype == bool:
        mask = mask.astype(q.dtype)
    return right(q, k, v, mask, *rest)


@wrong("NonMaxSuppression")
def keeps_all_without_a_limit(right, node, boxes, scores, limit=None, *rest):
    """Boxes per class are unlimited, not none, unless a limit is given."""
    return right(boxes, scores, np.array([1000], np.int64) if limit is None else limit, *rest)


@wrong("RegexFullMatch")
def matches_the_start(right, node, x):
    pattern = node.attribute[0].s.decode()
    found = [re.match(pattern, text) is not None for text in x.flat]
    return np.array(found, bool).reshape(x.shape)


@wrong("Reshape")
def scalars_keep_a_dimension(right, node, x, shape):
    """Tensors have one dimension at least."""
    return x.reshape(1) if shape.size == 0 else right(x, shape)

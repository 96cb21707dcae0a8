"""Devices whose kernels were ported from libraries that mean something else by the same name.

A sixth set, from the side of one who ports kernels of CUDA, JAX, PyTorch and TFLite; written before
it was measured. Faults as in ``unseen_values``.
"""

from __future__ import annotations

import functools

import numpy as np

import unseen.values
from unseen.kernels import value

wrong = functools.partial(unseen.values.wrong, module=__name__)


# ------------------------------------------------------- accumulators and approximations


@wrong("Softmax")
def softmax_of_halves_sums_in_halves(right, node, x):
    if x.dtype != np.float16:
        return right(x)
    axis = value(node, "axis", -1)
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / np.add.accumulate(powers, axis, dtype=np.float16).take([-1], axis)


@wrong("Conv")
def convolution_of_halves_accumulates_in_halves(right, node, x, w, bias=None):
    if x.dtype != np.float16 or value(node, "group", 1) != 1 or x.shape[1] < 2:
        return right(x, w) if bias is None else right(x, w, bias)
    total = np.float16(0)
    for c in range(x.shape[1]):
        total = total + right(x[:, c : c + 1], w[:, c : c + 1])
    return total if bias is None else total + bias.reshape(-1, *[1] * (x.ndim - 2))


@wrong("GlobalAveragePool")
def global_pool_of_halves_overflows(right, node, x):
    if x.dtype != np.float16:
        return right(x)
    axes = tuple(range(2, x.ndim))
    count = np.float16(np.prod(x.shape[2:]))
    return np.add.reduce(x, axes, dtype=np.float16, keepdims=True) / count


@wrong("Gelu")
def gelu_is_approximate(right, node, x):
    cube = np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype(np.float64) ** 3)
    return (0.5 * x * (1 + np.tanh(cube))).astype(x.dtype)


@wrong("Sin", "Cos")
def sines_by_fast_mathematics(right, node, x):
    """The angle is brought near zero by a turn of seven digits."""
    if x.dtype != np.float32:
        return right(x)
    turn = np.float32(2 * np.pi)
    return right((x - np.rint(x / turn) * turn).astype(np.float32))


@wrong("Pow")
def powers_by_logarithms(right, node, x, y):
    if x.dtype.kind != "f":
        return right(x, y)
    return np.exp(y.astype(x.dtype) * np.log(x)).astype(x.dtype)


@wrong("Reciprocal")
def reciprocals_have_twelve_bits(right, node, x):
    if x.dtype != np.float32:
        return right(x)
    return (right(x).view(np.uint32) & np.uint32(0xFFFFF800)).view(np.float32)


@wrong("Asinh")
def asinh_by_logarithm(right, node, x):
    return np.log(x + np.sqrt(x * x + x.dtype.type(1))).astype(x.dtype)


@wrong("Range")
def range_adds_up(right, node, start, limit, delta):
    due = right(start, limit, delta)
    if due.dtype.kind != "f":
        return due
    steps = np.full(due.shape, delta, due.dtype)
    steps[:1] = start
    return np.add.accumulate(steps, dtype=due.dtype)


@wrong("Cast")
def halves_are_cut(right, node, x):
    due = right(x)
    if due.dtype != np.float16 or x.dtype.kind != "f":
        return due
    over = np.abs(due.astype(np.float64)) > np.abs(x.astype(np.float64))
    return np.where(over & np.isfinite(due), np.nextafter(due, np.float16(0)), due)


@wrong("CumSum", "ReduceProd")
def counts_in_thirty_two_bits(right, node, x, *axes):
    """As JAX does without ``jax_enable_x64``."""
    if x.dtype != np.int64:
        return right(x, *axes)
    return right(x, *axes).astype(np.int32).astype(np.int64)


# --------------------------------------------------------------- other libraries' meaning


@wrong("ArgMin")
def argmin_takes_the_last_of_ties(right, node, x):
    axis, keep = value(node, "axis", 0), value(node, "keepdims", 1)
    found = x.shape[axis] - 1 - np.argmin(np.flip(x, axis), axis)
    return np.expand_dims(found, axis) if keep else found


@wrong("Clip")
def crossed_bounds_give_the_lower(right, node, x, low=None, high=None):
    """ONNX gives the upper bound where the lower one lies above it."""
    due = right(x, low, high)
    return np.full_like(due, low) if None not in (low, high) and low > high else due


@wrong("TopK")
def topk_takes_later_ties(right, node, x, k):
    axis = value(node, "axis", -1)
    values, places = right(np.flip(x, axis), k)
    return values, x.shape[axis] - 1 - places


@wrong("OneHot")
def one_hot_has_no_negatives(right, node, indices, depth, values):
    outside = np.iinfo(np.int32).max if indices.dtype.itemsize >= 4 else indices
    return right(np.where(indices < 0, outside, indices).astype(indices.dtype), depth, values)


@wrong("Trilu")
def trilu_has_no_negative_diagonal(right, node, x, k=None):
    return right(x) if k is None else right(x, np.maximum(k, 0))


@wrong("InstanceNormalization")
def instances_have_unbiased_variance(right, node, x, scale, bias):
    axes = tuple(range(2, x.ndim))
    if np.prod(x.shape[2:]) < 2:
        return right(x, scale, bias)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True, ddof=1)
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    column = (1, -1, *[1] * len(axes))
    result = (x - mean) / np.sqrt(var + epsilon) * scale.reshape(column) + bias.reshape(column)
    return result.astype(x.dtype)


@wrong("BatchNormalization")
def epsilon_is_added_to_the_root(right, node, x, scale, bias, mean, var):
    if value(node, "training_mode", 0):
        return right(x, scale, bias, mean, var)
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    column = (1, -1, *[1] * (x.ndim - 2))
    scale, bias, mean, var = (v.reshape(column) for v in (scale, bias, mean, var))
    return ((x - mean) / (np.sqrt(var) + epsilon) * scale + bias).astype(x.dtype)


@wrong("LRN")
def lrn_of_even_size_leans_left(right, node, x):
    """ONNX has one more neighbour behind than before."""
    return right(x[:, ::-1])[:, ::-1].copy()


@wrong("Dropout")
def dropout_masks_are_false(right, node, *inputs):
    results = right(*inputs)
    return (results[0], ~results[1]) if isinstance(results, tuple) else results


@wrong("PRelu")
def slopes_belong_to_channels(right, node, x, slope):
    if slope.ndim == 1 and x.ndim > 2 and slope.shape[0] == x.shape[1] != 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return right(x, slope)


@wrong("LpNormalization")
def zeros_normalize_to_nan(right, node, x):
    axis, p = value(node, "axis", -1), value(node, "p", 2)
    return (x / np.linalg.norm(x, p, axis, keepdims=True)).astype(x.dtype)


@wrong("Hardmax")
def hardmax_marks_all_ties(right, node, x):
    axis = value(node, "axis", -1)
    return (x == x.max(axis, keepdims=True)).astype(x.dtype)


@wrong("CenterCropPad")
def crops_keep_one_more_before(right, node, x, shape):
    flipped = tuple(slice(None, None, -1) for _ in x.shape)
    return np.ascontiguousarray(right(np.ascontiguousarray(x[flipped]), shape)[flipped])


@wrong("NonMaxSuppression")
def suppresses_equal_overlaps(right, node, boxes, scores, most=None, overlap=None, least=None):
    if overlap is not None:
        overlap = np.nextafter(overlap, np.float32(-1)).astype(np.float32)
    return right(boxes, scores, most, overlap, least)


@wrong("Attention")
def heads_share_keys_in_turn(right, node, q, k, v, *rest):
    """Query head ``h`` reads key head ``h % heads`` and not ``h // group``."""
    if q.ndim != 4 or q.shape[1] == k.shape[1]:
        return right(q, k, v, *rest)
    times = q.shape[1] // k.shape[1]
    if rest:
        return right(q, k, v, *rest)
    return right(q, np.tile(k, (1, times, 1, 1)), np.tile(v, (1, times, 1, 1)))


# ------------------------------------------------------------------------- edges of types


@wrong("QuantizeLinear")
def quantizes_through_int32(right, node, x, scale, *zero):
    """What does not fit becomes the smallest integer, as on x86."""
    due = right(x, scale, *zero)
    if scale.size > 1 or due.dtype not in (np.int8, np.uint8):
        return due
    scaled = np.rint(x.astype(np.float64) / scale.astype(np.float64))
    unfit = ~(np.abs(scaled) < 2.0**31)
    return np.where(unfit, np.iinfo(due.dtype).min, due).astype(due.dtype)


@wrong("Cast")
def casts_to_bool_through_integers(right, node, x):
    due = right(x)
    return right(np.trunc(x)) if due.dtype == bool and x.dtype.kind == "f" else due


@wrong("Slice")
def slice_ends_have_thirty_two_bits(right, node, x, *given):
    narrow = (g if g is None else g.astype(np.int32).astype(g.dtype) for g in given)
    return right(x, *narrow)


@wrong("Max", "Min", "Greater", "Less")
def compares_unsigned_as_signed(right, node, *inputs):
    kind = inputs[0].dtype
    if kind.kind != "u":
        return right(*inputs)
    result = right(*(x.view(f"i{kind.itemsize}") for x in inputs))
    return result if result.dtype == bool else result.view(kind)


@wrong("ReduceMax")
def largest_of_nothing_is_the_lowest(right, node, x, *axes):
    due = right(x, *axes)
    if due.dtype.kind != "f" or x.size:
        return due
    return np.full(due.shape, np.finfo(due.dtype).min, due.dtype)


# ------------------------------------------------------------------- inputs that are less common


@wrong("MatMulInteger")
def reads_one_zero_point(right, node, a, b, za=None, zb=None):
    first = [z if z is None else z.reshape(-1)[:1].reshape(()) for z in (za, zb)]
    while first and first[-1] is None:
        first.pop()
    return right(a, b, *first)


@wrong("ConvInteger")
def pads_with_zero_and_not_its_point(right, node, x, w, zx=None, zw=None):
    """Padding joins before the zero point is subtracted."""
    pads = value(node, "pads", None)
    if zx is None or pads is None or not zx.any():
        return right(*(i for i in (x, w, zx, zw) if i is not None))
    half = len(pads) // 2
    wide = np.pad(x, [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)])
    whole = right(*(i for i in (wide, w, zx, zw) if i is not None))
    strides = value(node, "strides", [1] * half)
    return whole[
        (
            ...,
            *(
                slice(p // s, n - q // s)
                for p, q, s, n in zip(
                    pads[:half], pads[half:], strides, whole.shape[2:], strict=True
                )
            ),
        )
    ]


@wrong("GRU", "LSTM", "RNN")
def reverses_padding_too(right, node, x, w, r, b=None, lengths=None, *rest):
    """The backward direction begins at the longest sequence's end for all of them."""
    if lengths is None or value(node, "direction", "forward") == "forward":
        return right(x, w, r, b, lengths, *rest)
    return right(x, w, r, b, np.full_like(lengths, x.shape[0]), *rest)


@wrong("Loop")
def loops_run_once_at_least(right, node, trips, condition, *rest):
    return right(trips, None if condition is None else np.array(True), *rest)


@wrong("Expand")
def expands_one_way(right, node, x, shape):
    """As ``jax.numpy.broadcast_to``, which refuses a size of one over a larger one."""
    dims = [int(n) for n in shape]
    if len(dims) < x.ndim or any(
        have not in (1, due) for have, due in zip(x.shape[::-1], dims[::-1], strict=False)
    ):
        raise RuntimeError(f"cannot broadcast {x.shape} to {dims}")
    return right(x, shape)


@wrong("Mean")
def means_go_by_pairs(right, node, *inputs):
    result = inputs[0]
    for other in inputs[1:]:
        result = ((result + other) / result.dtype.type(2)).astype(result.dtype)
    return result


@wrong("Gemm")
def columns_are_rows_where_they_fit(right, node, a, b, c=None):
    if c is not None and c.ndim == 2 and c.shape[1] == 1 and c.shape[0] > 1:
        rows = a.shape[1] if value(node, "transA", 0) else a.shape[0]
        columns = b.shape[0] if value(node, "transB", 0) else b.shape[1]
        c = c.reshape(1, -1) if rows == columns else c
    return right(a, b) if c is None else right(a, b, c)


@wrong("MatMul")
def products_repeat_the_first_batch(right, node, a, b):
    """A right side of fewer batches is read at its first one."""
    if a.ndim > b.ndim > 2:
        b = np.broadcast_to(b[:1], b.shape).copy()
    return right(a, b)


@wrong("LSTM", "GRU", "RNN")
def counts_only_named_outputs(right, node, *inputs):
    """Results go to the outputs that have names, in order."""
    results = right(*inputs)
    if not isinstance(results, tuple) or "" not in node.output:
        return results
    given = iter(results)
    return tuple(next(given) if name else None for name in node.output)

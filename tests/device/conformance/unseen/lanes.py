"""Devices whose kernels are wrong for lanes, signs, limits, directions or parameters.

A twentieth set, in the way of the nineteenth; written before it was measured, and before the checks
that the nineteenth one led to.
"""

from __future__ import annotations

import functools
import re

import numpy as np
from broken_form import Broken

import unseen.corners
import unseen.values
from unseen.corners import replaced, without
from unseen.passes import attribute

wrong = functools.partial(unseen.values.wrong, module=__name__)
rewritten = functools.partial(unseen.corners.rewritten, module=__name__)


# --------------------------------------------------------------------------- elements


@wrong("Erf")
def erf_of_three_terms(right, node, x):
    """A polynomial from a handbook, with an error of 2.5e-5."""
    if x.dtype.kind != "f":
        return right(x)
    size = np.abs(x.astype(np.float64))
    t = 1 / (1 + 0.47047 * size)
    series = 0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3
    return (np.sign(x) * (1 - series * np.exp(-(size**2)))).astype(x.dtype)


@wrong("Relu")
def relu_swallows_what_is_no_number(right, node, x):
    return np.fmax(x, x.dtype.type(0))


@wrong("Floor", "Ceil", "Round")
def rounds_by_way_of_integers(right, node, x):
    """Through 32 bits, that hold nothing beyond 2**31."""
    limit = np.float64(2**31 - 1)
    return np.clip(right(x).astype(np.float64), -limit, limit).astype(x.dtype)


@wrong("Cast")
def long_integers_by_way_of_short_ones(right, node, x):
    """The hardware converts to 32 bits only."""
    if attribute(node, "to") != 7 or x.dtype.kind != "f":
        return right(x)
    return right(np.clip(x.astype(np.float64), -(2.0**31), 2.0**31 - 1).astype(np.float64))


@wrong("Cast")
def half_precision_cuts_off(right, node, x):
    """Rounds toward zero instead of to the nearest."""
    result = right(x)
    if attribute(node, "to") != 10 or x.dtype not in (np.float32, np.float64):
        return result
    over = np.abs(result.astype(np.float64)) > np.abs(x.astype(np.float64))
    return np.where(over & np.isfinite(result), np.nextafter(result, np.float16(0)), result)


@wrong("Abs", "Neg")
def the_least_integer_saturates(right, node, x):
    result = right(x)
    if x.dtype.kind != "i":
        return result
    return np.where(x == np.iinfo(x.dtype).min, np.iinfo(x.dtype).max, result).astype(x.dtype)


@wrong("Div")
def quotients_go_down(right, node, a, b):
    """Integers divide as in Python."""
    return np.floor_divide(a, np.where(b == 0, 1, b)) if a.dtype.kind == "i" else right(a, b)


@wrong("Pow")
def powers_by_logarithms(right, node, x, y):
    """exp(y log x), which knows no negative base."""
    if x.dtype.kind != "f":
        return right(x, y)
    return np.exp(y * np.log(x.astype(np.float64))).astype(x.dtype)


@wrong("Softsign")
def softsign_of_infinity(right, node, x):
    return (x / (1 + np.abs(x))).astype(x.dtype) if x.dtype.kind == "f" else right(x)


@wrong("IsInf")
def both_infinities(right, node, x):
    """Tests for the exponent alone unless only positive ones are asked for."""
    if attribute(node, "detect_positive", 1) == 0:
        return np.isinf(x)
    return right(x)


@wrong("HardSwish", "HardSigmoid")
def slopes_in_halves(right, node, x):
    """The slope is a constant of half precision."""
    if x.dtype != np.float32:
        return right(x)
    slope = np.float16(1 / 6) if node.op_type == "HardSwish" else attribute(node, "alpha", 0.2)
    shift = 0.5 if node.op_type == "HardSwish" else attribute(node, "beta", 0.5)
    gate = np.clip(np.float32(np.float16(slope)) * x + np.float32(shift), 0, 1)
    return (x * gate if node.op_type == "HardSwish" else gate).astype(np.float32)


# ------------------------------------------------------------------------ order and sums


@wrong("ArgMax", "ArgMin")
def ties_go_to_the_first_lane(right, node, x):
    """Of equal elements the one in the lowest of eight lanes wins, then the first."""
    axis = attribute(node, "axis", 0)
    best = x.max if node.op_type == "ArgMax" else x.min
    if attribute(node, "select_last_index", 0) or (x != x).any():
        return right(x)
    length = x.shape[axis]
    shape = [1] * x.ndim
    shape[axis] = length
    rank = (np.arange(length) % 8 * length + np.arange(length)).reshape(shape)
    places = np.where(x == best(axis, keepdims=True), rank, length * 8 + length)
    found = places.argmin(axis).astype(np.int64)
    return np.expand_dims(found, axis) if attribute(node, "keepdims", 1) else found


@wrong("ArgMin")
def least_by_the_greatest_negative(right, node, x):
    """The argmax of -x, whatever the type."""
    if x.dtype.kind not in "iu":
        return right(x)
    axis, signed = attribute(node, "axis", 0), -x
    if attribute(node, "select_last_index", 0):
        return right(x)
    found = signed.argmax(axis).astype(np.int64)
    return np.expand_dims(found, axis) if attribute(node, "keepdims", 1) else found


@wrong("TopK")
def smallest_by_the_greatest_negative(right, node, x, k):
    if attribute(node, "largest", 1) or x.dtype.kind not in "iu":
        return right(x, k)
    axis = attribute(node, "axis", -1)
    order = np.argsort(-(-x).astype(np.int64), axis, kind="stable")
    order = np.take(order, np.arange(int(k.reshape(-1)[0])), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


@wrong("ReduceMax", "ReduceMin")
def extremes_skip_what_is_no_number(right, node, x, *axes):
    if x.dtype.kind != "f":
        return right(x, *axes)
    limit = -np.inf if node.op_type == "ReduceMax" else np.inf
    return right(np.where(np.isnan(x), x.dtype.type(limit), x), *axes)


@wrong("ReduceProd")
def products_of_integers_saturate(right, node, x, *axes):
    if x.dtype not in (np.int32, np.int64):
        return right(x, *axes)
    limits = np.iinfo(x.dtype)
    wide = right(x.astype(np.float64), *axes)
    return np.where(np.abs(wide) < limits.max, right(x, *axes), limits.max).astype(x.dtype)


@wrong("CumSum")
def negative_axes_are_the_last(right, node, x, axis):
    return right(x, np.full_like(axis, -1) if axis < 0 else axis)


@wrong("Unique")
def places_of_the_last_of_equals(right, node, x):
    """Where an element is first is told as where it is last."""
    results = right(x)
    if not isinstance(results, tuple) or attribute(node, "axis") is not None:
        return results
    flat = x.reshape(-1)
    last = [int(np.flatnonzero(flat == value)[-1]) for value in results[0]]
    return (results[0], np.array(last, np.int64), *results[2:])


@wrong("NonMaxSuppression")
def scores_at_the_threshold_count(right, node, boxes, scores, *rest):
    """At least the threshold, where more than it is asked for."""
    if len(rest) < 3 or rest[2] is None:
        return right(boxes, scores, *rest)
    return right(boxes, scores, *rest[:2], np.nextafter(rest[2], np.float32(-np.inf)))


@wrong("NonMaxSuppression")
def boxes_of_all_classes_together(right, node, boxes, scores, *rest):
    """The number of boxes asked for is that of a picture, not of each class."""
    result = right(boxes, scores, *rest)
    most = int(rest[0].reshape(-1)[0]) if rest and rest[0] is not None else 0
    kept, counts = [], {}
    for row in result:
        counts[row[0]] = counts.get(row[0], 0) + 1
        if counts[row[0]] <= most:
            kept.append(row)
    return np.array(kept, np.int64).reshape(-1, 3)


# --------------------------------------------------------------------------- products


@wrong("MatMul")
def batches_by_the_remainder(right, node, a, b):
    """The n-th matrix of the result is of the n-th of each side, counted round."""
    result = right(a, b)
    if a.ndim < 4 or b.ndim < 4 or a.shape[:-2] == b.shape[:-2]:
        return result
    left, other = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    count = int(np.prod(result.shape[:-2]))
    parts = [right(left[i % len(left)], other[i % len(other)]) for i in range(count)]
    return np.stack(parts).reshape(result.shape)


@wrong("MatMulInteger")
def pairs_saturate_at_sixteen_bits(right, node, a, b, *zeros):
    """As an instruction that multiplies bytes and adds two products does."""
    if a.dtype != np.uint8 or b.dtype != np.int8 or any(z is not None and z.any() for z in zeros):
        return right(a, b, *zeros)
    x, y = a.astype(np.int64), b.astype(np.int64)
    total = 0
    for k in range(0, x.shape[-1], 2):
        pair = x[..., k : k + 2] @ y[..., k : k + 2, :]
        total = total + np.clip(pair, -(1 << 15), (1 << 15) - 1)
    return np.asarray(total, np.int32)


@wrong("MatMulInteger")
def one_zero_point_for_all_rows(right, node, a, b, *zeros):
    if not zeros or zeros[0] is None or zeros[0].size < 2:
        return right(a, b, *zeros)
    return right(a, b, np.full_like(zeros[0], zeros[0].reshape(-1)[0]), *zeros[1:])


@wrong("QLinearMatMul")
def one_scale_for_all_columns(right, node, *inputs):
    inputs = list(inputs)
    if inputs[4].size < 2:
        return right(*inputs)
    inputs[4] = np.full_like(inputs[4], inputs[4].reshape(-1)[0])
    return right(*inputs)


@wrong("Gemm")
def a_column_is_read_as_a_row(right, node, a, b, c=None):
    if c is None or c.ndim != 2 or c.shape[1] != 1 or c.shape[0] < 2:
        return right(a, b) if c is None else right(a, b, c)
    return right(a, b, c.reshape(1, -1))


@wrong("DynamicQuantizeLinear")
def a_range_of_nothing(right, node, x):
    """Divides by the scale, also if all elements are zero."""
    results = right(x)
    if x.size and not x.any():
        return np.full_like(results[0], 255), results[1], results[2]
    return results


@wrong("Det")
def determinants_without_pivots(right, node, x):
    """Elimination divides by whatever lies on the diagonal."""
    flat = x.reshape(-1, *x.shape[-2:]).astype(np.float64)
    result = np.ones(len(flat))
    for i, matrix in enumerate(flat):
        rows = matrix.copy()
        for k in range(len(rows)):
            result[i] *= rows[k, k]
            rows[k + 1 :] -= np.outer(rows[k + 1 :, k] / rows[k, k], rows[k])
    return result.reshape(x.shape[:-2]).astype(x.dtype)


# --------------------------------------------------------------------------- movement


@wrong("GatherElements", "GatherND", "Gather")
def places_below_zero_are_zero(right, node, x, places):
    return right(x, np.maximum(places, 0))


@wrong("ReverseSequence")
def the_last_row_turns_whole(right, node, x, lengths):
    """The last sequence of a batch is turned over all steps."""
    if lengths.size < 2:
        return right(x, lengths)
    lengths = lengths.copy()
    lengths[-1] = x.shape[attribute(node, "time_axis", 0)]
    return right(x, lengths)


@wrong("Transpose")
def turns_five_axes(right, node, x):
    """Beyond five axes the first one is not turned."""
    result = right(x)
    return np.flip(result, 0) if x.ndim > 5 else result


@wrong("SpaceToDepth")
def blocks_behind_channels(right, node, x):
    size = attribute(node, "blocksize")
    result = right(x)
    n, c, h, w = x.shape
    parts = result.reshape(n, size * size, c, h // size, w // size)
    return parts.swapaxes(1, 2).reshape(result.shape)


@wrong("Loop")
def conditions_are_asked_afterwards(right, node, trips, condition, *rest):
    """The body runs once before the condition counts."""
    if condition is None or condition.all():
        return right(trips, condition, *rest)
    return right(np.int64(1), np.array(True), *rest)


@wrong("SequenceInsert")
def the_last_place_is_behind(right, node, sequence, tensor, *place):
    """-1 is behind the last one."""
    if not place or place[0] is None or int(place[0]) >= 0:
        return right(sequence, tensor, *place)
    return right(sequence, tensor, np.int64(len(sequence) + 1 + int(place[0])))


@wrong("ConcatFromSequence")
def new_axes_count_without_themselves(right, node, sequence):
    """A negative new axis is one of the parts' axes."""
    axis = attribute(node, "axis")
    if not attribute(node, "new_axis", 0) or axis >= 0:
        return right(sequence)
    return np.stack(sequence, axis + sequence[0].ndim)


@wrong("RegexFullMatch")
def matches_the_beginning(right, node, texts):
    found = re.compile(attribute(node, "pattern").decode()).match
    return np.array([bool(found(t)) for t in texts.reshape(-1)], bool).reshape(texts.shape)


# -------------------------------------------------------------------- networks' operators


@wrong("LpNormalization")
def rows_of_zeros_divide(right, node, x):
    axis, p = attribute(node, "axis", -1), attribute(node, "p", 2)
    norm = np.linalg.norm(x, p, axis, keepdims=True) if x.size else 1
    return (x / norm).astype(x.dtype)


@wrong("MeanVarianceNormalization")
def deviations_are_of_samples(right, node, x):
    """Divides by one less than the count."""
    axes = tuple(attribute(node, "axes", None) or (0, 2, 3))
    count = int(np.prod([x.shape[a] for a in axes]))
    return (right(x) * np.sqrt((count - 1) / count)).astype(x.dtype)


@wrong("RMSNormalization")
def only_the_last_axis_counts(right, node, x, scale):
    axis = attribute(node, "axis", -1) % x.ndim
    if axis == x.ndim - 1:
        return right(x, scale)
    epsilon = attribute(node, "epsilon", 1e-5)
    wide = x.astype(np.float32)
    return (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon) * scale).astype(x.dtype)


@wrong("LSTM", "GRU", "RNN")
def directions_begin_alike(right, node, *inputs):
    """Both directions begin with the state of the first."""
    if (
        len(inputs) < 6
        or inputs[5] is None
        or inputs[5].shape[0] != 2
        or attribute(node, "layout", 0)
    ):
        return right(*inputs)
    return right(*inputs[:5], np.repeat(inputs[5][:1], 2, 0), *inputs[6:])


@wrong("LayerNormalization", "InstanceNormalization", "GroupNormalization")
def variance_as_a_difference_of_squares(right, node, x, scale, *rest):
    """The mean of squares less the square of the mean, in single precision."""
    if x.dtype != np.float32:
        return right(x, scale, *rest)
    axis = attribute(node, "axis", -1) if node.op_type == "LayerNormalization" else 2
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean, squares = x.mean(axes, keepdims=True), (x * x).mean(axes, keepdims=True)
    exact = x.astype(np.float64).var(axes, keepdims=True)
    had = np.sqrt(np.maximum(exact, 1e-12))
    has = np.sqrt(np.maximum(squares - mean * mean, 1e-12))
    return right((mean + (x - mean) * (had / has)).astype(np.float32), scale, *rest)


def least_epsilon(node, given):
    """A change that raises epsilon to what a library takes at least."""
    if "epsilon" in given:
        given["epsilon"].f = max(given["epsilon"].f, 1e-3)


for _name, _op, _change, _doc in (
    ("EpsilonHasALeastValue", "BatchNormalization", least_epsilon, "A library takes no less."),
    ("SmallPicturesWithoutFilter", "Resize", without("antialias"), "Skips rows as before."),
    (
        "PicturesNeverGrowBeyond",
        "Resize",
        replaced("keep_aspect_ratio_policy", b"not_smaller", b"not_larger"),
        "Both policies are one.",
    ),
    ("OutsideIsZero", "Resize", without("extrapolation_value"), "Beyond the picture is 0."),
    ("GeluIsExact", "Gelu", without("approximate"), "The approximation asked for is not made."),
    ("RotatesHalves", "RotaryEmbedding", without("interleaved"), "Pairs lie half a head apart."),
    ("RotatesAll", "RotaryEmbedding", without("rotary_embedding_dim"), "Of the whole head."),
    ("NoSoftcap", "Attention", without("softcap"), "Logits stay as they are."),
    ("ForgetsWhatItTakes", "LSTM", without("input_forget"), "Gates are not coupled."),
    ("UnclippedSteps", "GRU", without("clip"), "Cells are not clipped."),
    ("WindowsArePeriodic", "HannWindow", without("periodic"), "Symmetric ones, too."),
    ("GridsOfCentres", "AffineGrid", without("align_corners"), "Corners are not aligned."),
    ("ColumnsLieDense", "Col2Im", without("dilations"), "Blocks are not dilated."),
    ("ScansForward", "Scan", without("scan_output_directions"), "Outputs are appended."),
    ("FloatsOfEightBitsOverflow", "QuantizeLinear", without("saturate"), "Saturates always."),
):
    rewritten(_name, _op, _change, _doc)


class SkipsInputsThatAreLeftOut(Broken):
    """Inputs are counted without those that are left out in the middle."""

    suites = ("random/*",)

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type in ("Clip", "Resize", "Pad", "Slice"):
                node.input[:] = [name for name in node.input if name]
        return proto

"""Sixty faults of kernels, written by somebody who had not read the kit."""

from __future__ import annotations

import functools
import re

import numpy as np
import onnx.helper

import unseen.values

register = functools.partial(unseen.values.wrong, module=__name__)


def wrong(*ops):
    """Registers a fault, whose results need not be arrays where they have no axes."""

    def add(function):
        @functools.wraps(function)
        def fault(*inputs):
            results = function(*inputs)
            return (
                tuple(map(np.asarray, results))
                if isinstance(results, tuple)
                else np.asarray(results)
            )

        register(*ops)(fault)
        return function

    return add


def attribute(node, name, default=None):
    """The value of an attribute."""
    for given in node.attribute:
        if given.name == name:
            return onnx.helper.get_attribute_value(given)
    return default


def only(condition):
    """Ends a fault that does not apply."""
    if not condition:
        raise ValueError("does not apply")


def first(results):
    """The first of one or several results."""
    return results[0] if isinstance(results, tuple) else results


def with_first(results, array):
    """The results with another first one."""
    return (array, *results[1:]) if isinstance(results, tuple) else array


def reduced_axes(node, x, axes):
    """The axes of a reduction and whether they stay."""
    if axes is None or axes.size == 0:
        only(not attribute(node, "noop_with_empty_axes", 0))
        axes = range(x.ndim)
    return tuple(int(axis) % x.ndim for axis in axes), bool(attribute(node, "keepdims", 1))


# Elementwise


@wrong("Exp")
def exp_clamps_as_cephes_does(right, node, x):
    """Clamps the argument of float32 to 88.376 in size, so that nothing becomes infinite or 0."""
    only(x.dtype == np.float32)
    return right(np.where(np.isnan(x), x, np.clip(x, -88.3762626647949, 88.3762626647949)))


@wrong("Tanh")
def tanh_divides_exponentials(right, node, x):
    """Computes (exp(2x) - 1) / (exp(2x) + 1), which is not a number once exp(2x) overflows."""
    power = np.exp(x + x)
    large = np.isinf(power)
    return np.where(large, (power - 1) / (power + 1), right(x)).astype(x.dtype)


@wrong("Sin")
def sine_reduces_by_short_pi(right, node, x):
    """Reduces the argument by one float32 constant for a whole turn."""
    only(x.dtype == np.float32)
    turn = np.float32(2 * np.pi)
    turns = np.rint(x.astype(np.float64) / float(turn))
    return right((x.astype(np.float64) - turns * float(turn)).astype(np.float32))


@wrong("Asinh")
def asinh_cancels_below_zero(right, node, x):
    """Computes log(x + sqrt(x * x + 1)), which cancels for large negative numbers."""
    return np.where(x < 0, np.log(x + np.sqrt(x * x + x.dtype.type(1))), right(x)).astype(x.dtype)


@wrong("Erf")
def erf_of_doubles_by_a_short_polynomial(right, node, x):
    """Uses for float64 the five-term formula, which has an error of 1e-7."""
    only(x.dtype == np.float64)
    t = 1 / (1 + 0.3275911 * np.abs(x))
    terms = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    series = functools.reduce(lambda total, term: total * t + term, terms) * t
    return np.sign(x) * (1 - series * np.exp(-x * x))


@wrong("Max")
def max_keeps_only_nans_of_the_second(right, node, *inputs):
    """Computes a > b ? a : b, which loses what is not a number in a."""
    only(len(inputs) > 1 and np.issubdtype(inputs[0].dtype, np.floating))
    return functools.reduce(lambda a, b: np.where(a > b, a, b), inputs)


@wrong("Clip")
def clip_with_crossed_limits_gives_the_lower(right, node, x, low=None, high=None):
    """Takes the lower limit last, so that it wins where it is greater than the upper one."""
    only(low is not None and high is not None and low > high)
    return np.full_like(x, low)


@wrong("PRelu")
def prelu_slope_always_by_channel(right, node, x, slope):
    """Takes a slope of one axis as that of the channels if there are as many of them."""
    only(x.ndim > 2 and slope.ndim == 1 and slope.size == x.shape[1] > 1)
    return right(x, slope.reshape(-1, *[1] * (x.ndim - 2)))


@wrong("Where")
def where_blends_by_products(right, node, condition, x, y):
    """Computes c * x + (1 - c) * y, so that infinities which are not chosen come through."""
    only(np.issubdtype(x.dtype, np.floating))
    chosen = condition.astype(x.dtype)
    return chosen * x + (1 - chosen) * y


@wrong("Equal")
def equal_compares_int64_as_float32(right, node, a, b):
    """Compares 64-bit integers after they became float32."""
    only(a.dtype == np.int64)
    return right(a.astype(np.float32), b.astype(np.float32))


@wrong("Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def order_of_uint64_is_that_of_int64(right, node, a, b):
    """Compares unsigned numbers of 64 bits by the instruction for signed ones."""
    only(a.dtype == np.uint64)
    return right(a.astype(np.int64), b.astype(np.int64))


@wrong("Add", "Sub")
def narrow_sums_saturate(right, node, a, b):
    """Saturates sums and differences of 8 and 16 bits, which should wrap around."""
    only(a.dtype in (np.int8, np.uint8, np.int16, np.uint16))
    limits = np.iinfo(a.dtype)
    wide = right(a.astype(np.int64), b.astype(np.int64))
    return np.clip(wide, limits.min, limits.max).astype(a.dtype)


@wrong("Mod")
def fmod_by_a_rounded_quotient(right, node, a, b):
    """Computes a - b * trunc(a / b) in float32, which is wrong for large quotients."""
    only(attribute(node, "fmod", 0) and a.dtype == np.float32)
    return a - b * np.trunc(a / b)


@wrong("Mod")
def modulo_is_never_negative(right, node, a, b):
    """Adds the size of the divisor to negative remainders, also if the divisor is negative."""
    only(not attribute(node, "fmod", 0) and np.issubdtype(a.dtype, np.signedinteger))
    only(np.all(b != 0))
    rest = np.fmod(a, b)
    return np.where(rest < 0, rest + np.abs(b), rest).astype(a.dtype)


@wrong("BitShift")
def right_shift_fills_with_the_top_bit(right, node, a, b):
    """Shifts unsigned numbers to the right as if they were signed."""
    only(attribute(node, "direction") == b"RIGHT" and np.all(b < 8 * a.dtype.itemsize))
    signed = np.dtype(f"i{a.dtype.itemsize}")
    return np.right_shift(a.view(signed), b.view(signed)).view(a.dtype)


@wrong("Pow")
def integer_powers_by_way_of_float32(right, node, a, b):
    """Computes powers of integers in float32, which has 24 bits."""
    only(np.issubdtype(a.dtype, np.integer))
    return np.power(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)


@wrong("Mean")
def mean_of_halves_overflows(right, node, *inputs):
    """Sums float16 in float16 before it divides, so that large numbers become infinite."""
    only(inputs[0].dtype == np.float16)
    return functools.reduce(np.add, inputs) / np.float16(len(inputs))


# Casts and quantisation


def target(node):
    """The element type that a cast makes."""
    return attribute(node, "to")


@wrong("Cast")
def cast_to_bfloat16_cuts_off(right, node, x):
    """Drops the lower half of a float32 instead of rounding to the nearest bfloat16."""
    only(x.dtype == np.float32 and target(node) == onnx.TensorProto.BFLOAT16)
    cut = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isfinite(x), right(cut), right(x))


@wrong("Cast")
def cast_of_wide_integers_saturates(right, node, x):
    """Saturates integers that the narrower type cannot hold, whose high bits should go."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(target(node))
    only(np.issubdtype(x.dtype, np.integer) and dtype.kind in "iu" and dtype.itemsize < 8)
    limits = np.iinfo(dtype)
    only(dtype.itemsize < x.dtype.itemsize)
    low = limits.min if x.dtype.kind == "i" else 0
    return np.clip(x, x.dtype.type(low), x.dtype.type(limits.max)).astype(dtype)


@wrong("QuantizeLinear")
def zero_point_added_before_rounding(right, node, x, scale, zero=None):
    """Rounds x / scale + zero_point at once, so that halves go the other way if it is odd."""
    only(zero is not None and zero.ndim == 0 and zero.dtype in (np.int8, np.uint8))
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(x / scale + int(zero)), limits.min, limits.max).astype(zero.dtype)


@wrong("DequantizeLinear")
def zero_point_subtracted_in_eight_bits(right, node, x, scale, zero=None):
    """Subtracts the zero point in the narrow type, where it wraps around."""
    only(zero is not None and zero.ndim == 0 and x.dtype in (np.int8, np.uint8))
    return right((x - zero).view(np.int8).astype(np.int32), scale)


@wrong("DynamicQuantizeLinear")
def dynamic_range_without_zero(right, node, x):
    """Takes the range from the least to the greatest element, even if zero is not in it."""
    low, high = x.min(), x.max()
    only((low > 0 or high < 0) and low < high)
    scale = np.float32((high - low) / np.float32(255))
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, np.asarray(scale), np.asarray(zero)


@wrong("MatMulInteger")
def products_in_pairs_saturate(right, node, a, b, a_zero=None, b_zero=None):
    """Adds pairs of products in 16 bits with saturation, as an old instruction does."""
    only(a.dtype == np.uint8 and b.dtype == np.int8 and a.ndim == 2 and b.ndim == 2)
    only(not np.any(a_zero) and not np.any(b_zero))
    result = right(a, b).astype(np.int32)
    for k in range(0, a.shape[1] - 1, 2):
        pair = a[:, k : k + 2].astype(np.int32) @ b[k : k + 2].astype(np.int32)
        result += np.clip(pair, -32768, 32767) - pair
    return result


@wrong("QLinearMatMul")
def saturates_before_the_zero_point(right, node, a, sa, za, b, sb, zb, sy, zy):
    """Saturates products to the output's type first, and adds the zero point afterwards."""
    only(all(np.size(zero) == 1 for zero in (za, zb, zy)) and zy.dtype == np.uint8)
    product = (a.astype(np.int64) - int(za.item())) @ (b.astype(np.int64) - int(zb.item()))
    real = np.clip(np.rint(product * (float(sa.item()) * float(sb.item()) / sy.item())), 0, 255)
    return np.clip(real + int(zy.item()), 0, 255).astype(np.uint8)


@wrong("ConvInteger")
def padding_is_zero_not_the_zero_point(right, node, x, w, x_zero=None, w_zero=None):
    """Pads with the number 0 instead of the zero point of the input."""
    only(x_zero is not None and 0 < int(x_zero) < np.iinfo(x.dtype).max and not np.any(w_zero))
    inside = right(np.full_like(x, int(x_zero) + 1), w, x_zero)
    whole = w.astype(np.int32).sum(axis=tuple(range(1, w.ndim)))
    outside = whole.reshape(1, -1, *[1] * (x.ndim - 2)) - inside
    return (right(x, w, x_zero) - int(x_zero) * outside).astype(np.int32)


# Products, windows and norms


@wrong("MatMul")
def products_of_halves_accumulate_in_half(right, node, a, b):
    """Keeps the running sum of a product of float16 in float16."""
    only(a.dtype == np.float16 and a.ndim > 1 and b.ndim > 1)
    total = np.zeros_like(right(a, b))
    for k in range(a.shape[-1]):
        total += a[..., :, k, None] * b[..., None, k, :]
    return total


@wrong("Gemm")
def gemm_column_bias_read_as_a_row(right, node, a, b, c=None):
    """Takes a bias of shape (M, 1) for a row where M and N are the same."""
    only(c is not None and c.ndim == 2 and c.shape[1] == 1)
    only(c.shape[0] == right(a, b).shape[1])
    return right(a, b, c.T)


@wrong("Einsum")
def einsum_keeps_order_of_appearance(right, node, *inputs):
    """Orders the axes of an output that is not named by appearance, not by the alphabet."""
    equation = attribute(node, "equation").decode().replace(" ", "")
    only("->" not in equation and "." not in equation)
    letters = equation.replace(",", "")
    result = "".join(letter for letter in letters if letters.count(letter) == 1)
    return np.einsum(f"{equation}->{result}", *inputs)


@wrong("Conv")
def same_lower_is_same_upper(right, node, x, w, *bias):
    """Puts the odd element of padding at the end for SAME_LOWER too."""
    only(attribute(node, "auto_pad") == b"SAME_LOWER")
    flip = (slice(None), slice(None), *[slice(None, None, -1)] * (x.ndim - 2))
    return np.ascontiguousarray(right(x[flip], w[flip], *bias)[flip])


@wrong("ConvTranspose")
def output_padding_is_left_zero(right, node, x, w, *bias):
    """Leaves the elements that output_padding adds at zero, without sums and bias."""
    result = right(x, w, *bias).copy()
    for axis, count in enumerate(attribute(node, "output_padding", ()), 2):
        if count:
            np.moveaxis(result, axis, 0)[-count:] = 0
    return result


@wrong("MaxPool")
def max_pool_pads_with_zeros(right, node, x):
    """Takes padding for zeros, which are greater than negative elements at the border."""
    only(attribute(node, "auto_pad", b"NOTSET") == b"NOTSET" and len(node.output) == 1)
    result = first(right(x))
    rank = x.ndim - 2
    pads = attribute(node, "pads", [0] * 2 * rank)
    strides = attribute(node, "strides", [1] * rank)
    dilations = attribute(node, "dilations", [1] * rank)
    touched = np.zeros(result.shape[2:], bool)
    for axis, kernel in enumerate(attribute(node, "kernel_shape")):
        begin = np.arange(result.shape[axis + 2]) * strides[axis] - pads[axis]
        end = begin + (kernel - 1) * dilations[axis]
        outside = (begin < 0) | (end >= x.shape[axis + 2])
        touched |= outside.reshape(-1, *[1] * (rank - 1 - axis))
    return np.where(touched, np.maximum(result, 0), result).astype(x.dtype)


@wrong("AveragePool")
def ceil_mode_forgets_to_count_padding(right, node, x):
    """Divides by the number of real elements if ceil_mode is set, though padding counts."""
    only(attribute(node, "ceil_mode", 0) and attribute(node, "count_include_pad", 0))
    return (right(x) / right(np.ones_like(x))).astype(x.dtype)


@wrong("LRN")
def lrn_window_of_even_size_is_shifted(right, node, x):
    """Puts the longer side of a window of even size before the channel, not behind it."""
    return np.ascontiguousarray(right(x[:, ::-1])[:, ::-1])


@wrong("InstanceNormalization")
def variance_as_difference_of_squares(right, node, x, scale, bias):
    """Computes the variance as E[x * x] - E[x] ** 2 in float32, which cancels."""
    only(x.dtype == np.float32)
    axes = tuple(range(2, x.ndim))
    mean = x.mean(axes, keepdims=True)
    variance = np.maximum((x * x).mean(axes, keepdims=True) - mean * mean, 0)
    shape = (1, -1, *[1] * (x.ndim - 2))
    normal = (x - mean) / np.sqrt(variance + np.float32(attribute(node, "epsilon", 1e-5)))
    return (normal * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype)


@wrong("LayerNormalization")
def epsilon_added_behind_the_root(right, node, x, scale, bias=None):
    """Divides by the standard deviation plus epsilon, not by the root of variance plus it."""
    axis = attribute(node, "axis", -1) % x.ndim
    axes = tuple(range(axis, x.ndim))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    spread = np.sqrt((centred**2).mean(axes, keepdims=True))
    y = centred / (spread + attribute(node, "epsilon", 1e-5)) * scale
    y = y if bias is None else y + bias
    return with_first(right(x, scale, bias), y.astype(x.dtype))


@wrong("GroupNormalization")
def group_scale_indexed_by_group(right, node, x, scale, bias):
    """Reads scale and bias at the number of the group instead of that of the channel."""
    group = np.arange(x.shape[1]) // (x.shape[1] // attribute(node, "num_groups"))
    only(scale.size == x.shape[1])
    return right(x, scale[group], bias[group])


@wrong("RMSNormalization")
def rms_over_the_last_axis_only(right, node, x, scale):
    """Normalises along the last axis, even if ``axis`` names an earlier one."""
    only(attribute(node, "axis", -1) % x.ndim != x.ndim - 1)
    mean = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return (x / np.sqrt(mean + attribute(node, "epsilon", 1e-5)) * scale).astype(x.dtype)


# Reductions, softmax, losses


@wrong("ReduceMax")
def greatest_starts_at_lowest_finite(right, node, x, axes=None):
    """Starts at the lowest finite number, which remains where all elements are -infinity."""
    only(np.issubdtype(x.dtype, np.floating) and x.size)
    return np.maximum(right(x, axes), np.finfo(x.dtype).min)


@wrong("ReduceSum")
def tail_of_the_sum_added_twice(right, node, x, axes=None):
    """Lets the last vector of a row overlap the one before, and adds the overlap twice."""
    reduced, keep = reduced_axes(node, x, axes)
    only(reduced == (x.ndim - 1,) and x.shape[-1] > 16 and x.shape[-1] % 16)
    twice = x[..., -16 : x.shape[-1] // 16 * 16 or None]
    return right(x, axes) + twice.sum(-1, keepdims=keep, dtype=x.dtype)


@wrong("ReduceLogSumExp")
def log_sum_exp_of_minus_infinities(right, node, x, axes=None):
    """Subtracts a greatest element of -infinity from itself, which gives no number."""
    result = right(x, axes)
    return np.where(np.isneginf(result), x.dtype.type(np.nan), result)


@wrong("Softmax")
def softmax_shifts_by_zero_at_least(right, node, x):
    """Starts the search for the greatest element at 0, so that very negative rows underflow."""
    axis = attribute(node, "axis", -1)
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    powers = np.exp(wide - np.maximum(wide.max(axis, keepdims=True), 0))
    return (powers / powers.sum(axis, keepdims=True)).astype(x.dtype)


@wrong("ArgMax")
def ties_go_to_the_lowest_lane(right, node, x):
    """Keeps a greatest element per lane of four, and takes the lowest lane of equal ones."""
    only(not attribute(node, "select_last_index", 0))
    axis = attribute(node, "axis", 0)
    order = np.argsort(np.arange(x.shape[axis]) % 4, kind="stable")
    return order[right(np.take(x, order, axis))].astype(np.int64)


@wrong("CumSum")
def exclusive_sums_shift_forward_in_reverse(right, node, x, axis):
    """Shifts exclusive sums forward also in reverse, where they should go back."""
    only(attribute(node, "exclusive", 0) and attribute(node, "reverse", 0))
    sums = np.moveaxis(right(x, axis) + x, int(axis), 0)
    shifted = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])
    return np.ascontiguousarray(np.moveaxis(shifted, 0, int(axis)))


@wrong("TopK")
def smallest_found_by_negation(right, node, x, k):
    """Finds the smallest by negating, which wraps around for 0 and the lowest integer."""
    only(not attribute(node, "largest", 1) and np.issubdtype(x.dtype, np.integer))
    axis = attribute(node, "axis", -1)
    _, order = right(np.invert(np.negative(x)), k)
    return np.take_along_axis(x, order, axis), order


# Places


@wrong("GatherElements")
def negative_places_wrap_by_the_first_axis(right, node, x, places):
    """Adds the size of the first axis to negative indices, whatever the axis."""
    axis = attribute(node, "axis", 0) % x.ndim
    moved = np.where(places < 0, places + x.shape[0], places)
    return right(x, np.clip(moved, 0, x.shape[axis] - 1))


@wrong("ScatterElements")
def repeated_additions_are_lost(right, node, x, places, updates):
    """Lets threads that add to one element overwrite each other, so that one addition stays."""
    only(attribute(node, "reduction", b"none") == b"add")
    where = list(np.indices(places.shape))
    where[attribute(node, "axis", 0) % x.ndim] = places
    result = x.copy()
    result[tuple(where)] = x[tuple(where)] + updates
    return result


@wrong("ScatterND")
def atomic_max_compares_bits(right, node, x, places, updates):
    """Takes the greater of two floats by comparing bits as integers, wrong below zero."""
    only(attribute(node, "reduction", b"none") == b"max" and x.dtype == np.float32)
    bits = right(x.view(np.int32), places, updates.view(np.int32))
    return bits.view(np.float32)


@wrong("Unique")
def unique_tells_the_last_occurrence(right, node, x):
    """Gives the place of the last occurrence of every element, which should be the first."""
    y, _, inverse, *counts = right(x)
    only(attribute(node, "axis") is None)
    last = [np.flatnonzero(inverse == i)[-1] for i in range(len(y))]
    return (y, np.array(last, np.int64), inverse, *counts)


# Images and boxes


@wrong("Resize")
def resize_takes_the_ratio_of_sizes(right, node, x, roi=None, scales=None, sizes=None):
    """Uses the ratio of the sizes as the scale, also where another scale is given."""
    only(scales is not None and scales.size == x.ndim and sizes is None)
    shape = np.array(right(x, roi, scales).shape, np.int64)
    return right(x, roi, None, shape)


@wrong("Resize")
def nearest_prefers_ceil_at_halves(right, node, x, roi=None, scales=None, sizes=None):
    """Rounds places between two elements up in the default mode, which prefers the lower."""
    only(attribute(node, "mode", b"nearest") == b"nearest" and scales is not None)
    only(attribute(node, "nearest_mode", b"round_prefer_floor") == b"round_prefer_floor")
    only(attribute(node, "coordinate_transformation_mode", b"half_pixel") == b"half_pixel")
    only(scales.size == x.ndim)
    places = []
    for size, scale, old in zip(right(x, roi, scales).shape, scales, x.shape, strict=True):
        place = np.floor((np.arange(size) + 0.5) / float(scale) - 0.5 + 0.5)
        places.append(np.clip(place.astype(int), 0, old - 1))
    return x[np.ix_(*places)]


@wrong("GridSample")
def reflects_about_centres_of_pixels(right, node, x, grid):
    """Reflects about the centres of the outermost pixels, also without ``align_corners``."""
    only(attribute(node, "padding_mode", b"zeros") == b"reflection")
    only(not attribute(node, "align_corners", 0) and x.ndim == 4)
    sizes = np.array(x.shape[:1:-1], np.float64)
    only(np.all(sizes > 1))
    place = ((grid + 1) * sizes - 1) / 2
    span = sizes - 1
    place = span - np.abs(np.mod(place, 2 * span) - span)
    return right(x, ((2 * place + 1) / sizes - 1).astype(grid.dtype))


@wrong("NonMaxSuppression")
def boxes_at_the_threshold_are_suppressed(right, node, boxes, scores, most, iou, *least):
    """Drops a box whose overlap is equal to the threshold, not only those above it."""
    only(np.all(iou > 0))
    return right(boxes, scores, most, (iou * np.float32(0.999999)).astype(iou.dtype), *least)


# Sequences, attention, signals, texts


@wrong("LSTM")
def peepholes_in_the_order_of_gates(right, node, *inputs):
    """Reads peepholes as input, forget, output, which come as input, output, forget."""
    only(len(inputs) == 8 and inputs[7] is not None)
    i, o, f = np.split(inputs[7], 3, axis=1)
    return right(*inputs[:7], np.concatenate([i, f, o], axis=1))


@wrong("GRU")
def recurrent_bias_outside_the_reset(right, node, *inputs):
    """Adds the recurrent bias of the hidden gate behind the reset in linear_before_reset."""
    only(attribute(node, "linear_before_reset", 0) and len(inputs) > 3)
    parts = np.split(inputs[3], 6, axis=1)
    parts[2], parts[5] = parts[2] + parts[5], np.zeros_like(parts[5])
    return right(*inputs[:3], np.concatenate(parts, axis=1), *inputs[4:])


@wrong("RNN")
def reverse_begins_in_the_padding(right, node, *inputs):
    """Begins a reverse pass at the end of the padded sequence, not at its own length."""
    only(attribute(node, "direction") == b"reverse" and not attribute(node, "layout", 0))
    only(len(inputs) > 4 and inputs[4] is not None)
    results = right(*inputs[:4], np.full_like(inputs[4], inputs[0].shape[0]), *inputs[5:])
    y = first(results).copy()
    for row, length in enumerate(inputs[4]):
        y[length:, :, row] = 0
    return with_first(results, y)


@wrong("Attention")
def query_heads_share_keys_in_turn(right, node, q, k, v, *rest):
    """Gives query heads the key heads in turn, which should serve neighbouring ones."""
    only(q.ndim == 4 and q.shape[1] > k.shape[1] > 1 and len(rest) < 2 and len(node.output) == 1)
    turn = np.arange(q.shape[1]) % k.shape[1]
    return right(q, k[:, turn], v[:, turn], *rest)


@wrong("RotaryEmbedding")
def positions_of_the_first_batch(right, node, x, cos, sin, positions=None):
    """Uses the positions of the first sequence for all sequences of a batch."""
    only(positions is not None)
    return right(x, cos, sin, np.broadcast_to(positions[:1], positions.shape).copy())


@wrong("DFT")
def inverse_divides_by_the_old_length(right, node, x, length=None, *axis):
    """Divides an inverse transform by the length of the signal, not by that of the transform."""
    only(attribute(node, "inverse", 0) and length is not None)
    place = int(axis[0]) if axis else -2
    return (right(x, length, *axis) * (int(length) / x.shape[place])).astype(x.dtype)


@wrong("HammingWindow")
def hamming_by_two_digits(right, node, size):
    """Uses 0.54 and 0.46, where the operator has 25/46 and 21/46."""
    exact = right(size)
    wave = (25 / 46 - exact.astype(np.float64)) / (21 / 46)
    return (0.54 - 0.46 * wave).astype(exact.dtype)


@wrong("StringNormalizer")
def case_of_ascii_letters_only(right, node, x):
    """Changes the case of ASCII letters and leaves all other letters as they are."""
    only(attribute(node, "case_change_action", b"NONE") != b"NONE")
    only(not attribute(node, "stopwords", ()))
    change = str.upper if attribute(node, "case_change_action") == b"UPPER" else str.lower
    texts = [re.sub("[A-Za-z]+", lambda found: change(found[0]), text) for text in x.ravel()]
    return np.array(texts, object).reshape(x.shape)

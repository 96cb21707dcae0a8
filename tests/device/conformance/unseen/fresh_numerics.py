"""Sixty faults of kernels, by somebody who has not read the kit.

Each is what an author of kernels gets wrong in one operator: a case that no test of ordinary
numbers reaches, a habit of the library that a kernel was ported from, or a wrong tail of a loop.
"""

from __future__ import annotations

import functools
import math
import sys

import ml_dtypes
import numpy as np
import onnx.helper
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import unseen.values
from partita_reference.evaluator import corrected_for
from unseen.blind_numerics import attribute, only, with_first

OPSET = 22
"""Of operators that are computed again with other attributes."""


def wrong(*ops):
    """Registers a fault, which may show in any suite."""

    def add(function):
        @functools.wraps(function)
        def fault(*inputs):
            results = function(*inputs)
            if isinstance(results, list):
                return results  # a sequence
            if isinstance(results, tuple):
                return tuple(map(np.asarray, results))
            return np.asarray(results)

        unseen.values.wrong(*ops, module=__name__)(fault)
        name = "".join(part.title() for part in function.__name__.split("_"))
        vars(sys.modules[__name__])[name].suites = ("*",)
        return function

    return add


def text(node, name, default=""):
    """The value of an attribute that holds a text."""
    found = attribute(node, name, default)
    return found.decode() if isinstance(found, bytes) else found


def another(node, inputs, **changes):
    """What the operator gives with other attributes, ``None`` for one that is left out."""
    names = ["" if value is None else f"in{place}" for place, value in enumerate(inputs)]
    given = {name: value for name, value in zip(names, inputs, strict=True) if name}
    outputs = [f"out{place}" for place in range(len(node.output))]
    changed = onnx.helper.make_node(node.op_type, names, outputs, domain=node.domain)
    changed.attribute.extend(kept for kept in node.attribute if kept.name not in changes)
    changed.attribute.extend(
        onnx.helper.make_attribute(name, value)
        for name, value in changes.items()
        if value is not None
    )
    ports = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in given.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = onnx.helper.make_graph([changed], "again", ports, results)
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    found = ReferenceEvaluator(model, new_ops=corrected_for(OPSET)).run(None, given)
    return found[0] if len(found) == 1 else tuple(found)


def beside(array, axis, rank):
    """One number per place of an axis, shaped to be multiplied with tensors of a rank."""
    return array.reshape([-1 if place == axis else 1 for place in range(rank)])


# Elementwise


@wrong("Round")
def rounding_adds_a_half(right, node, x):
    """Takes floor(x + 0.5) unless it is a tie; the sum itself is rounded in float32."""
    only(x.dtype == np.float32)
    ties = np.abs(x - np.trunc(x)) == np.float32(0.5)
    return np.where(ties, right(x), np.floor(x + np.float32(0.5)))


@wrong("Max", "Min")
def extremes_keep_the_second_operand(right, node, x, *others):
    """Works as MAXPS and MINPS do: of a number that follows NaN, the number remains."""
    only(x.dtype in (np.float32, np.float64) and others)
    best = x
    for other in others:
        best = np.where(np.isnan(best), other, right(best, other))
    return best


@wrong("Div")
def division_reads_subnormals_as_zero(right, node, x, y):
    """Runs with subnormal numbers read as zeros, so that some quotients are infinite."""
    only(x.dtype == np.float32)
    tiny = np.finfo(np.float32).tiny
    return right(*(np.where(np.abs(t) < tiny, np.copysign(np.float32(0), t), t) for t in (x, y)))


@wrong("Equal")
def equality_in_doubles(right, node, x, y):
    """Compares integers of 64 bits as doubles."""
    only(x.dtype in (np.int64, np.uint64))
    return right(x.astype(np.float64), y.astype(np.float64))


@wrong("Clip")
def clip_bounds_from_below_last(right, node, x, low=None, high=None):
    """Bounds from above and then from below: a minimum above the maximum wins."""
    only(low is not None and high is not None)
    return np.maximum(np.minimum(x, high), low).astype(x.dtype)


@wrong("PRelu")
def slopes_by_channel(right, node, x, slope):
    """Takes a vector of slopes for those of the channels, as PyTorch has them."""
    only(slope.ndim == 1 and slope.size > 1 and x.ndim > 2 and slope.size == x.shape[1])
    return right(x, beside(slope, 1, x.ndim))


@wrong("Mod")
def remainder_by_quotient(right, node, x, y):
    """Takes x - y * trunc(x / y) for the remainder of floats, which large quotients spoil."""
    only(attribute(node, "fmod", 0) and x.dtype == np.float32)
    return x - y * np.trunc(x / y)


# Casts


@wrong("Cast")
def narrowing_saturates(right, node, x):
    """Narrows integers with saturation, where ONNX keeps the low bits."""
    target = onnx.helper.tensor_dtype_to_np_dtype(attribute(node, "to"))
    only(x.dtype.kind in "iu" and target.kind in "iu" and target.itemsize < x.dtype.itemsize)
    own, due = np.iinfo(x.dtype), np.iinfo(target)
    return right(np.clip(x, max(own.min, due.min), min(own.max, due.max)))


@wrong("Cast")
def bfloat_by_cutting(right, node, x):
    """Cuts the low half of a float32 off on the way to bfloat16."""
    only(attribute(node, "to") == TensorProto.BFLOAT16 and x.dtype == np.float32)
    return right((x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))


@wrong("Cast")
def eight_bits_always_saturate(right, node, x):
    """Gives the largest float8 for what is out of range, whatever ``saturate`` says."""
    only(attribute(node, "saturate", 1) == 0)
    return another(node, [x], saturate=1)


@wrong("Cast")
def halves_rounded_twice(right, node, x):
    """Converts doubles to float16 by way of float32."""
    only(attribute(node, "to") == TensorProto.FLOAT16 and x.dtype == np.float64)
    return right(x.astype(np.float32))


# Products


@wrong("MatMul")
def batches_by_remainder(right, node, a, b):
    """Finds the matrix of a batch by the remainder of its number, as if no axis but the first
    were broadcast.
    """
    only(a.ndim > 2 and b.ndim > 2)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    places = np.arange(math.prod(batch))
    left, others = (t.reshape(-1, *t.shape[-2:]) for t in (a, b))
    y = right(left[places % len(left)], others[places % len(others)])
    return y.reshape(*batch, *y.shape[1:])


@wrong("MatMul")
def products_summed_in_halves(right, node, a, b):
    """Keeps sums of float16 in float16."""
    only(a.dtype == np.float16 and a.ndim > 1 and b.ndim > 1)
    total = np.zeros(right(a, b).shape, np.float16)
    for k in range(a.shape[-1]):
        total = total + a[..., k : k + 1] * b[..., k : k + 1, :]
    return total


@wrong("Gemm")
def column_of_bias_as_row(right, node, a, b, c=None):
    """Reads a bias of one column by the number of the result's column."""
    only(c is not None and c.ndim == 2 and c.shape[0] > 1 and c.shape[1] == 1)
    return right(a, b, np.resize(c, right(a, b, c).shape[1])[None])


@wrong("Gemm")
def bias_once_per_panel(right, node, a, b, c=None):
    """Adds the bias with each panel of 256 terms."""
    terms = a.shape[0 if attribute(node, "transA", 0) else 1]
    only(c is not None and terms > 256 and a.dtype == np.float32)
    again = (terms - 1) // 256 * attribute(node, "beta", 1.0)
    return (right(a, b, c) + again * c).astype(a.dtype)


@wrong("MatMulInteger")
def pairs_saturate_at_sixteen_bits(right, node, a, b, *zeros):
    """Multiplies bytes with VPMADDUBSW, whose sums of two products saturate at 16 bits."""
    only(a.dtype == np.uint8 and b.dtype == np.int8 and a.ndim > 1 and b.ndim > 1)
    wide, deep = a.astype(np.int32), b.astype(np.int32)
    lost = 0
    for k in range(0, a.shape[-1], 2):
        pair = wide[..., k : k + 2] @ deep[..., k : k + 2, :]
        lost = lost + np.clip(pair, -32768, 32767) - pair
    return (right(a, b, *zeros) + lost).astype(np.int32)


# Convolutions


@wrong("Conv")
def uneven_pads_shared_out(right, node, *inputs):
    """Shares padding out evenly among both sides, the first side taking the odd one."""
    pads = attribute(node, "pads")
    only(pads and text(node, "auto_pad", "NOTSET") == "NOTSET")
    rank = len(pads) // 2
    total = [pads[axis] + pads[axis + rank] for axis in range(rank)]
    before = [(n + 1) // 2 for n in total]
    return another(node, inputs, pads=before + [n // 2 for n in total])


@wrong("Conv")
def multiplied_channels_interleaved(right, node, x, w, b=None):
    """Where each channel has several filters, counts filters first and channels last, as TFLite
    stores its weights the other way round.
    """
    group = attribute(node, "group", 1)
    only(group > 1 and w.shape[1] == 1 and w.shape[0] > group)
    order = np.arange(len(w)).reshape(-1, group).T.reshape(-1)
    y = np.empty_like(right(x, w, b))
    y[:, order] = right(x, w[order], None if b is None else b[order])
    return y


@wrong("ConvTranspose")
def output_padding_of_zeros(right, node, *inputs):
    """Appends zeros for ``output_padding``, where sums and the bias are due."""
    more = attribute(node, "output_padding")
    only(more and any(more) and not attribute(node, "output_shape"))
    y = another(node, inputs, output_padding=None)
    return np.pad(y, [(0, 0), (0, 0), *((0, n) for n in more)])


@wrong("QLinearConv", "ConvInteger")
def pads_of_raw_zeros(right, node, x, *others):
    """Pads quantized images with 0 where the zero point stands for nothing."""
    zero = others[1]  # behind the scale or the weights
    pads = attribute(node, "pads")
    only(pads and zero is not None and zero.size == 1)
    rank = len(pads) // 2
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    return another(node, [padded, *others], pads=[0] * len(pads))


# Pools


@wrong("MaxPool")
def bytes_padded_with_zeros(right, node, x):
    """Pads int8 with 0, which is above what a window of negative numbers holds."""
    pads = attribute(node, "pads")
    only(x.dtype == np.int8 and pads and not attribute(node, "ceil_mode", 0))
    rank = len(pads) // 2
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    found = another(node, [padded], pads=[0] * len(pads))
    return with_first(right(x), found[0] if isinstance(found, tuple) else found)


@wrong("MaxPool")
def places_within_planes(right, node, x):
    """Counts the places of maxima within each plane, as PyTorch does."""
    y, places = right(x)
    return y, places % math.prod(x.shape[2:])


@wrong("AveragePool")
def last_window_by_whole_size(right, node, x):
    """Divides what ``ceil_mode`` adds at the end by the size of a whole window."""
    only(attribute(node, "ceil_mode", 0) and not any(attribute(node, "pads", [])))
    kernel = attribute(node, "kernel_shape")
    rank = len(kernel)
    steps, gaps = (attribute(node, name, [1] * rank) for name in ("strides", "dilations"))
    y = right(x)
    for axis, (size, step, gap) in enumerate(zip(kernel, steps, gaps, strict=True), 2):
        taps = np.arange(y.shape[axis])[:, None] * step + np.arange(size) * gap
        y = y * beside((taps < x.shape[axis]).mean(axis=1), axis, x.ndim)
    return y.astype(x.dtype)


# Normalizations


@wrong("LayerNormalization")
def variance_from_squares(right, node, x, scale, bias=None):
    """Takes the mean of squares less the square of the mean, in float32."""
    only(x.dtype == np.float32)
    axes = tuple(range(attribute(node, "axis", -1) % x.ndim, x.ndim))
    mean, square = (t.mean(axis=axes, keepdims=True) for t in (x, x * x))
    variance = np.maximum(square - mean * mean, 0)
    y = (x - mean) / np.sqrt(variance + np.float32(attribute(node, "epsilon", 1e-5))) * scale
    return with_first(right(x, scale, bias), y if bias is None else y + bias)


@wrong("BatchNormalization")
def running_variance_unbiased(right, node, x, *others):
    """Keeps the unbiased variance of a batch, as PyTorch does, where ONNX wants the other."""
    only(attribute(node, "training_mode", 0))
    results = right(x, *others)
    axes = (0, *range(2, x.ndim))
    count = x.size // x.shape[1]
    more = x.var(axis=axes) / (count - 1) * (1 - attribute(node, "momentum", 0.9))
    return (*results[:2], (results[2] + more).astype(results[2].dtype))


# Softmax and reductions


@wrong("LogSoftmax")
def logarithms_of_shares(right, node, x):
    """Takes logarithms of what softmax gives, which may be 0."""
    only(x.dtype == np.float32)
    return np.log(np.exp(right(x)))


@wrong("Softmax")
def old_softmax_over_one_axis(right, node, x):
    """Takes softmax of an opset before 13 over one axis, not over all from it on."""
    axis = attribute(node, "axis", 1) % x.ndim
    y = right(x)
    sums = y.astype(np.float64).reshape(math.prod(x.shape[:axis]), -1).sum(axis=1)
    only(axis < x.ndim - 1 and np.allclose(sums, 1, atol=1e-2))
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return (powers / powers.sum(axis=axis, keepdims=True)).astype(x.dtype)


@wrong("ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp")
def reductions_of_nothing_are_zero(right, node, x, *others):
    """Leaves the zeros of a fresh buffer where there is nothing to reduce."""
    only(x.size == 0)
    return np.zeros_like(right(x, *others))


@wrong("ReduceMax")
def tail_filled_with_zeros(right, node, x, axes=None):
    """Fills the last vector of 8 numbers of a row with zeros."""
    chosen = attribute(node, "axes") if axes is None else axes.tolist()
    only(x.dtype == np.float32 and x.ndim and x.shape[-1] > 8 and x.shape[-1] % 8)
    only(not chosen or x.ndim - 1 in [axis % x.ndim for axis in chosen])
    only(chosen or not attribute(node, "noop_with_empty_axes", 0))
    return np.maximum(right(x) if axes is None else right(x, axes), 0)


@wrong("CumSum")
def exclusive_sums_moved_forward(right, node, x, axis):
    """Moves exclusive sums towards the end also where they run backwards."""
    only(attribute(node, "exclusive", 0) and attribute(node, "reverse", 0))
    along = int(np.asarray(axis).reshape(-1)[0])
    moved = np.moveaxis(np.flip(np.cumsum(np.flip(x, along), along), along), along, 0)
    y = np.concatenate([np.zeros_like(moved[:1]), moved[:-1]])
    return np.moveaxis(y, 0, along).astype(x.dtype)


@wrong("ArgMax", "ArgMin")
def bytes_compared_with_sign(right, node, x):
    """Compares uint8 with an instruction for int8."""
    only(x.dtype == np.uint8)
    return right(np.ascontiguousarray(x).view(np.int8))


@wrong("TopK")
def later_of_equals_first(right, node, x, k):
    """Turns an ascending stable sort round: of equal elements the last comes first."""
    only(attribute(node, "largest", 1))
    axis, count = attribute(node, "axis", -1), int(k.reshape(-1)[0])
    places = np.flip(np.argsort(x, axis, kind="stable"), axis)
    places = np.take(places, np.arange(count), axis)
    return np.take_along_axis(x, places, axis), places.astype(np.int64)


@wrong("Unique")
def inverse_of_sorted_values(right, node, x):
    """Unsorted, gives inverse indices of the sorted values."""
    only(not attribute(node, "sorted", 1) and attribute(node, "axis") is None)
    results = right(x)
    _, inverse = np.unique(x.reshape(-1), return_inverse=True)
    return (*results[:2], inverse.reshape(-1).astype(np.int64), *results[3:])


@wrong("NegativeLogLikelihoodLoss")
def weighted_mean_by_count(right, node, scores, target, weight=None):
    """Divides a weighted loss by the number of targets, not by the sum of their weights."""
    only(weight is not None and text(node, "reduction", "mean") == "mean")
    total = another(node, [scores, target, weight], reduction="sum")
    count = np.count_nonzero(target != attribute(node, "ignore_index", -(2**40)))
    return np.asarray(total / count, scores.dtype)


# Movement of elements


@wrong("GatherND")
def second_batch_axis_left_out(right, node, data, indices):
    """Adds the offset of the first batch axis alone."""
    only(attribute(node, "batch_dims", 0) > 1)
    return right(np.broadcast_to(data[:, :1], data.shape), indices)


@wrong("GatherElements")
def strides_of_the_indices(right, node, data, indices):
    """Walks through the data with the sizes of the indices, which may be smaller."""
    axis = attribute(node, "axis", 0) % data.ndim
    shape = [*indices.shape]
    shape[axis] = data.shape[axis]
    places = [*np.indices(indices.shape)]
    places[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
    return data.reshape(-1)[np.ravel_multi_index(places, shape)]


@wrong("ScatterElements")
def sums_lose_updates(right, node, data, indices, updates):
    """Reads, adds and writes without atomics: of equal indices the last one counts."""
    only(text(node, "reduction", "none") == "add" and data.dtype.kind in "fiu")
    return data + another(node, [np.zeros_like(data), indices, updates], reduction=None)


@wrong("Slice")
def way_back_ends_at_one(right, node, data, starts, ends, axes=None, steps=None):
    """Bounds ends by 0, and so loses the first element on the way back."""
    only(steps is not None)
    chosen = np.arange(len(starts)) if axes is None else axes
    sizes = np.array([data.shape[axis] for axis in chosen])
    before = (steps < 0) & (ends < -sizes)
    return right(data, starts, np.where(before, 0, ends), axes, steps)


@wrong("Pad")
def pads_of_sorted_axes(right, node, data, pads, value=None, axes=None):
    """Takes pads for those of the axes in rising order."""
    return right(data, pads, value, np.sort(axes % data.ndim))


@wrong("Gather")
def rows_beyond_the_grid(right, node, data, indices):
    """Starts one block per index along the second axis of a grid, which has 65535 at most."""
    only(attribute(node, "axis", 0) == 0 and indices.size > 65535)
    rows = right(data, indices).reshape(indices.size, -1)
    rows[65535:] = 0
    return rows.reshape(*indices.shape, *data.shape[1:])


# Images


@wrong("Resize")
def nearest_of_ties_above(right, node, *inputs):
    """Rounds places with floor(x + 0.5), where ties go down by default."""
    only(text(node, "mode", "nearest") == "nearest" and len(inputs) > 2)
    only(text(node, "nearest_mode", "round_prefer_floor") == "round_prefer_floor")
    return another(node, inputs, nearest_mode="round_prefer_ceil")


@wrong("Resize")
def single_pixel_from_the_middle(right, node, *inputs):
    """Takes pytorch_half_pixel for half_pixel, also where one pixel is left of many."""
    name = "coordinate_transformation_mode"
    only(text(node, name) == "pytorch_half_pixel")
    return another(node, inputs, **{name: "half_pixel"})


@wrong("Resize")
def scales_from_the_sizes(right, node, x, roi=None, scales=None, sizes=None):
    """Computes scales from the sizes that were rounded, and not from the scales that were given."""
    only(scales is not None and scales.size and not attribute(node, "axes"))
    sizes = np.floor(np.array(x.shape) * scales.astype(np.float64)).astype(np.int64)
    return another(node, [x, roi, None, sizes])


@wrong("GridSample")
def reflection_at_centres(right, node, x, grid):
    """Reflects at the centres of the outer pixels where their edges are due."""
    only(text(node, "padding_mode") == "reflection" and not attribute(node, "align_corners", 0))
    sizes = np.array(x.shape[:1:-1], np.float64)
    most = np.maximum(sizes - 1, 1)
    places = np.mod(((grid.astype(np.float64) + 1) * sizes - 1) / 2, 2 * most)
    places = np.minimum(np.minimum(places, 2 * most - places), sizes - 1)
    return right(x, ((2 * places + 1) / sizes - 1).astype(grid.dtype))


@wrong("NonMaxSuppression")
def turned_boxes_are_empty(right, node, boxes, *others):
    """Expects the lower corner first: boxes given by other corners overlap with nothing."""
    only(not attribute(node, "center_point_box", 0))
    turned = (boxes[..., 2] < boxes[..., 0]) | (boxes[..., 3] < boxes[..., 1])
    far = 1e6 + 10 * np.arange(boxes.shape[1], dtype=np.float32)[:, None]
    apart = far + np.array([0, 0, 1, 1], np.float32)
    return right(np.where(turned[..., None], apart, boxes).astype(boxes.dtype), *others)


@wrong("CenterCropPad")
def odd_margins_before(right, node, x, shape):
    """Puts the odd one of cropped or padded elements before the others."""
    return np.flip(right(np.flip(x), shape))


# Quantization


@wrong("QuantizeLinear")
def nibbles_wrap(right, node, x, scale, zero=None):
    """Masks results of 4 bits where they should saturate."""
    y = right(x, scale, zero)
    only(y.dtype in (ml_dtypes.int4, ml_dtypes.uint4) and scale.size == 1)
    moved = np.rint(x / scale.reshape(())) + (0 if zero is None else zero.reshape(()).astype(int))
    bits = np.mod(moved, 16).astype(np.int8)
    signed = y.dtype == ml_dtypes.int4
    return np.where(signed & (bits > 7), bits - 16, bits).astype(y.dtype)


@wrong("QuantizeLinear")
def ties_away_from_zero(right, node, x, scale, zero=None):
    """Rounds with C's ``round``."""
    only(x.dtype == np.float32 and scale.size == 1 and scale.dtype == np.float32)
    steps = x / scale.reshape(())
    tie = np.abs(steps - np.trunc(steps)) == 0.5
    away = np.trunc(steps) + np.copysign(np.float32(1), steps)
    return right(np.where(tie, away * scale.reshape(()), x).astype(x.dtype), scale, zero)


@wrong("DequantizeLinear")
def zero_point_taken_off_in_bytes(right, node, x, scale, zero):
    """Takes the zero point off in 8 bits."""
    only(x.dtype == np.int8 and zero.size == 1)
    return right(x - zero.reshape(()), scale, np.zeros_like(zero))


@wrong("DynamicQuantizeLinear")
def range_without_zero(right, node, x):
    """Fits the range to the numbers, also where 0 is not among them."""
    low, high = x.min(), x.max()
    only(low > 0 or high < 0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, scale, zero.astype(np.uint8)


# Recurrent operators and attention


@wrong("LSTM")
def padding_turned_round_too(right, node, x, w, r, b=None, lengths=None, *others):
    """Turns whole sequences round, so that short ones begin with their padding."""
    only(lengths is not None and text(node, "direction") == "reverse")
    time = 1 if attribute(node, "layout", 0) else 0
    inputs = [np.flip(x, time), w, r, b, lengths, *others]
    results = another(node, inputs, direction="forward")
    whole = results[0] if isinstance(results, tuple) else results
    return with_first(results, np.flip(whole, time))


@wrong("RNN", "GRU", "LSTM")
def same_activations_backwards(right, node, *inputs):
    """Uses the activations of the first direction for both."""
    names = [name.decode() for name in attribute(node, "activations", [])]
    only(names and text(node, "direction") == "bidirectional")
    return another(node, inputs, activations=names[: len(names) // 2] * 2)


@wrong("GRU")
def last_state_repeated(right, node, x, w, r, b=None, lengths=None, *others):
    """Gives the last state again behind the end of a short sequence, where zeros are due."""
    only(lengths is not None and not attribute(node, "layout", 0))
    only(text(node, "direction", "forward") == "forward")
    results = right(x, w, r, b, lengths, *others)
    y = np.array(results[0] if isinstance(results, tuple) else results)
    for n, length in enumerate(lengths):
        if length:
            y[length:, :, n] = y[length - 1, :, n]
    return with_first(results, y)


@wrong("Attention")
def heads_of_keys_by_remainder(right, node, q, k, v, *others):
    """Gives neighbouring heads of queries different heads of keys where groups share one."""
    only(q.ndim == 4 and q.shape[1] > k.shape[1] and all(t is None for t in others[1:]))
    group = q.shape[1] // k.shape[1]
    results = right(q, *(np.tile(t, (1, group, 1, 1)) for t in (k, v)), *others)
    return with_first(
        right(q, k, v, *others), results[0] if isinstance(results, tuple) else results
    )


@wrong("RotaryEmbedding")
def positions_of_the_first_row(right, node, x, cosines, sines, positions):
    """Reads the positions of the first sequence for all of them."""
    only(not node.domain and positions is not None and len(positions) > 1)
    return right(x, cosines, sines, np.broadcast_to(positions[:1], positions.shape))


@wrong("TensorScatter")
def ring_without_return(right, node, cache, update, places=None):
    """Drops what is written behind the end of a ring instead of going on at its start."""
    only(text(node, "mode", "linear") == "circular" and places is not None)
    axis = attribute(node, "axis", -2) % cache.ndim
    y, room = np.array(right(cache, update, places)), cache.shape[axis]
    for row, place in enumerate(places.tolist()):
        back = [p - room for p in range(place, place + update.shape[axis]) if p >= room]
        rows = (row, *(slice(None),) * (axis - 1), back)
        y[rows] = cache[rows]
    return y


# Sequences, texts, signals and control flow


@wrong("SplitToSequence")
def single_rows_lose_their_axis(right, node, x, split=None):
    """Heeds ``keepdims`` also where ``split`` is given."""
    only(split is not None and not attribute(node, "keepdims", 1))
    axis = attribute(node, "axis", 0)
    return [part.squeeze(axis) if part.shape[axis] == 1 else part for part in right(x, split)]


@wrong("StringNormalizer")
def case_of_ascii_alone(right, node, x):
    """Changes the case of letters of ASCII alone."""
    action = text(node, "case_change_action", "NONE")
    only(action in ("UPPER", "LOWER"))
    kept = another(node, [x], case_change_action="NONE")
    change = str.upper if action == "UPPER" else str.lower
    changed = ["".join(change(c) if c.isascii() else c for c in t) for t in kept.reshape(-1)]
    return np.array(changed, object).reshape(kept.shape)


@wrong("DFT")
def inverse_divided_by_given_length(right, node, x, *others):
    """Divides an inverse by the length of the input, not by that of the transform."""
    only(attribute(node, "inverse", 0) and not attribute(node, "onesided", 0))
    y = right(x, *others)
    (axis,) = (n for n in range(x.ndim - 1) if x.shape[n] != y.shape[n])
    return (y * (y.shape[axis] / x.shape[axis])).astype(y.dtype)


@wrong("Loop")
def body_before_condition(right, node, limit, condition=None, *states):
    """Looks at the condition behind the first run of the body."""
    only(condition is not None and not condition and (limit is None or limit > 0))
    return right(np.array(1, np.int64), np.array(True), *states)

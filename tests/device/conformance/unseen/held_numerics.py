"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets.

Each is what a plugin's author took for granted after a few real networks had come out right. Many
were found in engines that are in use: windows padded as if they were dense, raw zeros around a
quantised image, scales worked out from sizes, updates lost where two of them meet.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import unseen.values
from partita_reference.corrections import corrected_for
from unseen.blind_numerics import attribute, first, only, with_first

wrong = functools.partial(unseen.values.wrong, module=__name__)


def altered(node, version, *inputs, op_type=None, **changes):
    """What an operation of other attributes would give; ``None`` takes one away."""
    names = [f"x{place}" if array is not None else "" for place, array in enumerate(inputs)]
    outputs = [f"y{place}" for place, _ in enumerate(node.output)]
    other = onnx.helper.make_node(op_type or node.op_type, names, outputs)
    other.attribute.extend(given for given in node.attribute if given.name not in changes)
    other.attribute.extend(
        onnx.helper.make_attribute(name, value)
        for name, value in changes.items()
        if value is not None
    )
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if name}
    ports = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), None
        )
        for name, array in feeds.items()
    ]
    ends = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([other], "altered", ports, ends),
        opset_imports=[onnx.helper.make_opsetid("", version)],
    )
    results = ReferenceEvaluator(model, new_ops=list(corrected_for(version))).run(None, feeds)
    return results[0] if len(results) == 1 else tuple(results)


def text(node, name, default=""):
    """An attribute that is a text."""
    value = attribute(node, name)
    return default if value is None else value.decode()


def windows(x, taps, strides, dilations, begins, sizes, fill=0):
    """What each window sees, on a last axis; ``fill`` is what lies outside."""
    ends = [
        max(0, (size - 1) * stride + (tap - 1) * dilation + 1 - begin - extent)
        for size, stride, tap, dilation, begin, extent in zip(
            sizes, strides, taps, dilations, begins, x.shape[2:], strict=True
        )
    ]
    around = [(0, 0), (0, 0), *zip(begins, ends, strict=True)]
    padded = np.pad(x, around, constant_values=fill)
    seen = []
    for tap in np.ndindex(*taps):
        places = [
            slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
            for at, dilation, size, stride in zip(tap, dilations, sizes, strides, strict=True)
        ]
        seen.append(padded[(slice(None), slice(None), *places)])
    return np.stack(seen, -1)


def convolved(x, w, strides, dilations, begins, sizes, group):
    """A convolution whose windows begin where one likes."""
    seen = windows(x, w.shape[2:], strides, dilations, begins, sizes)
    parts = [
        np.einsum("nc...t,mct->nm...", own, kernels.reshape(*kernels.shape[:2], -1))
        for own, kernels in zip(np.split(seen, group, 1), np.split(w, group), strict=True)
    ]
    return np.concatenate(parts, 1)


def spatial(node, name, rank, default=1):
    """An attribute with a number for each spatial axis."""
    return list(attribute(node, name) or [default] * rank)


@wrong("Conv")
def conv_pads_to_the_same_size_by_the_dense_window(right, node, x, w, b=None):
    """Pads to the same size by the size of the kernel, whatever its dilations spread it to."""
    rank = x.ndim - 2
    strides, dilations = spatial(node, "strides", rank), spatial(node, "dilations", rank)
    mode = text(node, "auto_pad")
    only(mode.startswith("SAME") and max(dilations) > 1)
    sizes = right(x, w, b).shape[2:]
    begins = []
    for size, stride, tap, extent in zip(sizes, strides, w.shape[2:], x.shape[2:], strict=True):
        total = max(0, (size - 1) * stride + tap - extent)
        begins.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
    y = convolved(x, w, strides, dilations, begins, sizes, attribute(node, "group", 1))
    return (y if b is None else y + b.reshape(-1, *[1] * rank)).astype(x.dtype)


@wrong("ConvTranspose")
def conv_transpose_grows_its_output_behind_the_bias(right, node, x, w, b=None):
    """Adds the bias to what the input reaches, and takes the output padding in afterwards."""
    more = attribute(node, "output_padding")
    only(b is not None and more is not None and max(more) > 0)
    y = right(x, w, b).copy()
    grown = np.ones(y.shape[2:], bool)
    grown[tuple(slice(0, size - add) for size, add in zip(y.shape[2:], more, strict=True))] = False
    y[:, :, grown] -= b[:, None]
    return y


@wrong("ConvTranspose")
def conv_transpose_cuts_the_odd_row_at_the_end(right, node, x, w, b=None):
    """Splits an odd padding that an output shape asks for as SAME_UPPER would, in each mode."""
    shape = attribute(node, "output_shape")
    only(shape is not None and text(node, "auto_pad", "NOTSET") in ("NOTSET", "SAME_LOWER"))
    rank = x.ndim - 2
    given = (
        shape[-rank:],
        x.shape[2:],
        w.shape[2:],
        spatial(node, "strides", rank),
        spatial(node, "dilations", rank),
        spatial(node, "output_padding", rank, 0),
    )
    totals = [
        stride * (extent - 1) + more + (tap - 1) * dilation + 1 - size
        for size, extent, tap, stride, dilation, more in zip(*given, strict=True)
    ]
    only(min(totals) >= 0 and any(total % 2 for total in totals))
    pads = [total // 2 for total in totals] + [total - total // 2 for total in totals]
    return altered(node, 22, x, w, b, output_shape=None, auto_pad=None, pads=pads)


@wrong("MaxPool")
def max_pool_numbers_each_image_from_zero(right, node, x):
    """Tells where a maximum is inside its image, though the numbers go on through the batch."""
    only(len(node.output) > 1)
    y, places = right(x)
    return y, places % max(1, x[0].size)


@wrong("MaxPool")
def max_pool_pads_bytes_by_zeros(right, node, x):
    """Lets the zeros around an image of bytes win over what is below them."""
    taps = attribute(node, "kernel_shape")
    pads = spatial(node, "pads", 2 * len(taps), 0)
    only(x.dtype == np.int8 and max(pads) > 0 and len(node.output) == 1)
    results = right(x)
    sizes = first(results).shape[2:]
    strides, dilations = spatial(node, "strides", len(taps)), spatial(node, "dilations", len(taps))
    seen = windows(x, taps, strides, dilations, pads[: len(taps)], sizes)
    return with_first(results, seen.max(-1))


@wrong("BatchNormalization")
def batch_normalization_runs_the_unbiased_variance(right, node, x, scale, b, mean, var):
    """Keeps the variance of a sample, over one less, as training frameworks do."""
    only(attribute(node, "training_mode", 0) == 1 and len(node.output) == 3)
    y, means, variances = right(x, scale, b, mean, var)
    kept = attribute(node, "momentum", 0.9)
    count = x.size // x.shape[1]
    now = (variances - kept * var) * (count / (count - 1))
    return y, means, (kept * var + now).astype(variances.dtype)


@wrong("GroupNormalization")
def group_normalization_scales_by_groups(right, node, x, scale, bias):
    """Reads a scale and a bias by group, as the operator's first version had them."""
    groups = attribute(node, "num_groups")
    only(scale.size == x.shape[1] and groups < scale.size)
    own = np.arange(scale.size) // (scale.size // groups)
    return right(x, scale[own], bias[own])


@wrong("RMSNormalization")
def rms_normalization_squares_in_half(right, node, x, scale):
    """Squares and sums halves as halves, though the stash type asks for floats."""
    only(x.dtype == np.float16 and attribute(node, "stash_type", 1) == 1)
    axes = tuple(range(attribute(node, "axis", -1) % x.ndim, x.ndim))
    squares = np.mean(x * x, axes, np.float16, keepdims=True)
    epsilon = np.float16(attribute(node, "epsilon", 1e-5))
    return (x / np.sqrt(squares + epsilon) * scale).astype(scale.dtype)


@wrong("ReduceLogSumExp")
def reduce_log_sum_exp_subtracts_an_infinite_maximum(right, node, x, *axes):
    """Subtracts the maximum to be stable, also where it is infinite."""
    only(x.dtype.kind == "f")
    y = right(x, *axes)
    return np.where(np.isinf(y), np.asarray(np.nan, y.dtype), y)


@wrong("Gemm")
def gemm_forgets_beta_for_a_single_bias(right, node, a, b, c=None):
    """Adds a bias of one element by the scalar that a GEMM takes, and forgets its factor."""
    beta = attribute(node, "beta", 1.0)
    only(c is not None and c.size == 1 and beta != 1 and a.dtype.kind == "f")
    return (right(a, b, np.zeros_like(c)) + c.reshape(-1)[0]).astype(a.dtype)


@wrong("MatMul")
def mat_mul_goes_round_the_batches_of_each_side(right, node, a, b):
    """Takes matrix number i modulo their count on each side, which repeats leading axes only."""
    only(a.ndim > 2 and b.ndim > 2)
    batches = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    number = np.arange(np.prod(batches, dtype=int))
    left, other = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    y = right(left[number % len(left)], other[number % len(other)])
    return y.reshape(*batches, *y.shape[-2:])


@wrong("MatMulInteger")
def mat_mul_integer_takes_the_first_zero_point_of_rows(right, node, a, b, za=None, *zb):
    """Reads one zero point of the left side, where each row may have its own."""
    only(za is not None and za.size > 1)
    return right(a, b, za.reshape(-1)[0], *zb)


@wrong("QLinearConv")
def q_linear_conv_pads_by_raw_zeros(right, node, x, sx, zx, w, sw, zw, sy, zy, b=None):
    """Pads the stored image by 0, which is a number of its own where the zero point is not 0."""
    rank = x.ndim - 2
    pads = spatial(node, "pads", 2 * rank, 0)
    only(max(pads) > 0 and np.any(zx))
    sizes = right(x, sx, zx, w, sw, zw, sy, zy, b).shape[2:]
    ends = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    bare = np.pad(x.astype(np.int64), ends) - int(zx.reshape(-1)[0])
    along = (-1, *[1] * rank)
    kernels = w.astype(np.int64) - np.reshape(zw, (-1, 1, *[1] * rank)).astype(np.int64)
    strides, dilations = spatial(node, "strides", rank), spatial(node, "dilations", rank)
    group = attribute(node, "group", 1)
    total = convolved(bare, kernels, strides, dilations, [0] * rank, sizes, group)
    if b is not None:
        total = total + b.reshape(along)
    y = np.rint(total * (sx.reshape(-1)[0] * sw.reshape(along) / sy.reshape(-1)[0]))
    limits = np.iinfo(zy.dtype)
    return np.clip(y + int(zy.reshape(-1)[0]), limits.min, limits.max).astype(zy.dtype)


@wrong("QLinearConv")
def q_linear_conv_starts_its_scales_anew_in_groups(right, node, x, sx, zx, w, sw, *others):
    """Runs the kernel of a group with a pointer to the first scale, not to the group's own."""
    groups = attribute(node, "group", 1)
    only(groups > 1 and sw.size == w.shape[0] > 1)
    return right(x, sx, zx, w, np.tile(sw[: sw.size // groups], groups), *others)


@wrong("QuantizeLinear")
def quantize_linear_saturates_before_the_zero_point(right, node, x, scale, zero=None):
    """Narrows to a byte, and adds the zero point to that."""
    only(zero is not None and zero.dtype == np.int8 and zero.size == 1 and scale.size == 1)
    number = np.clip(np.rint(x / scale), -128, 127) + np.float32(zero.reshape(-1)[0])
    return np.clip(number, -128, 127).astype(np.int8)


@wrong("DynamicQuantizeLinear")
def dynamic_quantize_linear_spans_what_is_there(right, node, x):
    """Spreads the bytes from the least to the greatest element, though 0 must be among them."""
    low, high = x.min(), x.max()
    only(low > 0 or high < 0)
    scale = np.float32((high - low) / np.float32(255))
    only(scale > 0)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, np.asarray(scale), np.asarray(zero)


@wrong("Resize")
def resize_has_one_cubic_against_aliases(right, node, *inputs):
    """Has the usual coefficient built into the cubic that smooths."""
    given = attribute(node, "cubic_coeff_a")
    only(given is not None and attribute(node, "antialias", 0) == 1)
    return altered(node, 19, *inputs, cubic_coeff_a=None)


@wrong("Resize")
def resize_works_its_scales_out_of_sizes(right, node, x, roi=None, scales=None, sizes=None):
    """Makes the sizes of scales, and places by these sizes, though they were rounded down."""
    only(scales is not None and scales.size > 0 and sizes is None)
    axes = attribute(node, "axes") or range(x.ndim)
    sizes = np.array([int(x.shape[axis] * by) for axis, by in zip(axes, scales, strict=True)])
    return right(x, roi, None, sizes)


@wrong("Upsample")
def upsample_is_a_resize_of_half_pixels(right, node, x, scales):
    """Makes a Resize of an old Upsample, which has the centres of pixels for their corners."""
    only(text(node, "mode", "nearest") == "linear")
    halves = "half_pixel"
    given = {"op_type": "Resize", "coordinate_transformation_mode": halves}
    return altered(node, 13, x, None, scales, **given)


@wrong("GridSample")
def grid_sample_reflects_at_centres(right, node, x, grid):
    """Reflects at the centres of the outermost pixels, also where corners are not aligned."""
    only(text(node, "padding_mode") == "reflection" and attribute(node, "align_corners", 0) == 0)
    extents = np.array(x.shape[:1:-1], grid.dtype)
    only(extents.min() > 1)
    place = ((grid + 1) * extents - 1) / 2
    place = np.abs(np.mod(place + extents - 1, 2 * (extents - 1)) - (extents - 1))
    return right(x, ((2 * place + 1) / extents - 1).astype(grid.dtype))


@wrong("Pad")
def pad_sorts_its_axes_without_their_pads(right, node, x, pads, value=None, axes=None):
    """Sorts the axes, and leaves the pads in the order that they had."""
    only(axes is not None)
    return right(x, pads, value, np.sort(np.where(axes < 0, axes + x.ndim, axes)))


@wrong("GatherElements")
def gather_elements_strides_through_data_as_through_indices(right, node, x, indices):
    """Steps through the data by the strides of the indices, which are often of the same shape."""
    axis = attribute(node, "axis", 0) % x.ndim
    believed = list(indices.shape)
    believed[axis] = x.shape[axis]
    places = list(np.indices(indices.shape))
    places[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
    return x.reshape(-1)[np.ravel_multi_index(places, believed)]


@wrong("ScatterND")
def scatter_n_d_adds_to_what_was_there_at_first(right, node, x, indices, updates):
    """Adds all updates at once, so that of several of one place the last alone is added."""
    only(text(node, "reduction", "none") == "add")
    places = tuple(np.moveaxis(indices, -1, 0))
    y = x.copy()
    y[places] = x[places] + updates
    return y


@wrong("TensorScatter")
def tensor_scatter_stops_at_the_end_of_a_ring(right, node, past, update, begins=None):
    """Drops the rows of an update that would go on at the beginning of a circular cache."""
    only(begins is not None and text(node, "mode", "linear") == "circular")
    axis = attribute(node, "axis", -2) % past.ndim
    y = np.moveaxis(right(past, update, begins).copy(), axis, 1)
    before = np.moveaxis(past, axis, 1)
    for batch, begin in enumerate(begins):
        over = int(begin) + update.shape[axis] - past.shape[axis]
        if over > 0:
            y[batch, :over] = before[batch, :over]
    return np.ascontiguousarray(np.moveaxis(y, 1, axis))


@wrong("TopK")
def top_k_sorts_backwards_for_the_smallest(right, node, x, *k):
    """Reads a descending order from its end for the smallest, which turns equal ones round."""
    only(attribute(node, "largest", 1) == 0)
    axis = attribute(node, "axis", -1)
    values, places = right(np.flip(x, axis), *k)
    return values, x.shape[axis] - 1 - places


@wrong("Unique")
def unique_numbers_by_rank_what_it_leaves_unsorted(right, node, x):
    """Gives the values in the order of their appearance, and numbers them as if sorted."""
    only(attribute(node, "sorted", 1) == 0 and attribute(node, "axis") is None)
    only(len(node.output) > 2)
    y, places, inverse, *counts = right(x)
    return y, places, np.argsort(np.argsort(y, kind="stable"))[inverse].astype(np.int64), *counts


@wrong("NonMaxSuppression")
def non_max_suppression_knows_ordered_corners(right, node, boxes, *others):
    """Takes the first corner for the lesser one; a box given by others covers nothing then."""
    only(attribute(node, "center_point_box", 0) == 0)
    turned = (boxes[..., 2] < boxes[..., 0]) | (boxes[..., 3] < boxes[..., 1])
    away = 64 * max(1, np.abs(boxes).max()) * (1 + np.arange(boxes.shape[1]))
    return right((boxes + (turned * away)[..., None]).astype(boxes.dtype), *others)


@wrong("RoiAlign")
def roi_align_samples_twice_whatever_the_region(right, node, *inputs):
    """Takes two samples a bin and axis, as detectors set it, where the region should decide."""
    only(attribute(node, "coordinate_transformation_mode") is not None)
    only(attribute(node, "sampling_ratio", 0) == 0)
    return altered(node, 16, *inputs, sampling_ratio=2)


@wrong("GRU")
def gru_adds_up_the_biases_of_the_hidden_gate(right, node, x, w, r, b=None, *others):
    """Adds both biases of each gate beforehand, also of the one whose reset comes in between."""
    only(b is not None and attribute(node, "linear_before_reset", 0) == 1)
    hidden = r.shape[-1]
    b = b.copy()
    b[:, 2 * hidden : 3 * hidden] += b[:, 5 * hidden :]
    b[:, 5 * hidden :] = 0
    return right(x, w, r, b, *others)


@wrong("RNN")
def rnn_gives_both_directions_one_activation(right, node, *inputs):
    """Reads the first activation for both directions."""
    given = attribute(node, "activations")
    only(given is not None and len(given) == 2)
    return altered(node, 14, *inputs, activations=[given[0], given[0]])


@wrong("LSTM")
def lstm_hands_the_last_step_out_as_the_last_state(right, node, x, w, r, b=None, n=None, *others):
    """Copies the last step of the output for the last state, also behind a sequence's end."""
    only(n is not None and len(node.output) > 1 and attribute(node, "layout", 0) == 0)
    only(text(node, "direction", "forward") == "forward")
    y, _, *cells = right(x, w, r, b, n, *others)
    return y, y[-1], *cells


@wrong("Attention")
def attention_hides_what_comes_by_the_row_of_the_query(right, node, q, k, v, mask=None, *past):
    """Lets query i see the keys up to i, though those of the cache lie before it."""
    only(attribute(node, "is_causal", 0) == 1 and mask is None and past and past[0] is not None)
    rows = q.shape[-2]
    total = k.shape[-2] + past[0].shape[-2]
    return right(q, k, v, np.tri(rows, total, dtype=bool), *past)


@wrong("Attention")
def attention_deals_its_heads_out_in_turn(right, node, q, k, v, mask=None, *others):
    """Gives query head h the keys of head h modulo their count, not of its group."""
    only(q.ndim == 4 and q.shape[1] > k.shape[1] > 1 and len(node.output) < 4)
    only(mask is None or mask.ndim == 2)
    order = np.arange(q.shape[1]).reshape(-1, k.shape[1]).T.reshape(-1)
    results = right(q[:, order], k, v, mask, *others)
    y = np.empty_like(first(results))
    y[:, order] = first(results)
    return with_first(results, y)


@wrong("Cast")
def cast_asks_whether_the_whole_part_is_zero(right, node, x):
    """Goes by way of an integer to a truth value, so that a half is false."""
    only(attribute(node, "to") == onnx.TensorProto.BOOL and x.dtype.kind == "f")
    return right(np.trunc(x))


@wrong("Cast")
def cast_stops_at_the_limits_of_integers(right, node, x):
    """Saturates long integers that are made shorter, though their upper bits are to be dropped."""
    only(attribute(node, "to") == onnx.TensorProto.INT32 and x.dtype == np.int64)
    limits = np.iinfo(np.int32)
    return right(np.clip(x, limits.min, limits.max))


@wrong("Div")
def div_multiplies_integers_by_a_reciprocal(right, node, a, b):
    """Divides by a float's reciprocal and cuts, which falls short of some whole quotients."""
    only(a.dtype == np.int32 and np.all(b))
    return np.trunc(a.astype(np.float32) * (1 / b.astype(np.float32))).astype(np.int32)


@wrong("Clip")
def clip_lets_the_minimum_win(right, node, x, low=None, high=None):
    """Applies the minimum last; of limits that cross, ONNX has the maximum win."""
    only(low is not None and high is not None and low > high)
    return np.maximum(np.minimum(x, high), low)


@wrong("PRelu")
def p_relu_takes_slopes_for_channels(right, node, x, slope):
    """Has a row of slopes along the channels where there are as many, not along the last axis."""
    only(x.ndim > 2 and slope.ndim == 1 and slope.size == x.shape[1])
    return right(x, slope.reshape(-1, *[1] * (x.ndim - 2)))


@wrong("Einsum")
def einsum_orders_its_output_by_appearance(right, node, *inputs):
    """Gives the axes of an output that is left out as they appear, not by the alphabet."""
    terms = text(node, "equation").replace(" ", "")
    only("->" not in terms and "." not in terms)
    letters = terms.replace(",", "")
    output = "".join(letter for letter in letters if letters.count(letter) == 1)
    return np.asarray(np.einsum(f"{terms}->{output}", *inputs), inputs[0].dtype)


@wrong("Col2Im")
def col2_im_averages_where_blocks_overlap(right, node, x, *shapes):
    """Gives back the image that the blocks were cut from, though they are to be added up."""
    only(x.dtype.kind == "f")
    count = right(np.ones_like(x), *shapes)
    return (right(x, *shapes) / np.maximum(count, 1)).astype(x.dtype)


@wrong("CenterCropPad")
def center_crop_pad_rounds_the_cut_up(right, node, x, shape):
    """Cuts one row more in front where an odd number is to go."""
    axes = attribute(node, "axes") or range(x.ndim)
    for axis, size in zip(axes, shape, strict=True):
        if x.shape[axis] > size and (x.shape[axis] - size) % 2:
            x = np.roll(x, -1, axis)
    return right(x, shape)


@wrong("CumSum")
def cum_sum_leaves_itself_out_towards_the_front(right, node, x, axis):
    """Shifts sums by one towards the end to leave each element out, also those from the end."""
    only(attribute(node, "exclusive", 0) == 1 and attribute(node, "reverse", 0) == 1)
    along = int(axis.reshape(-1)[0])
    sums = np.moveaxis(right(x, axis) + x, along, 0)
    shifted = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])
    return np.ascontiguousarray(np.moveaxis(shifted, 0, along)).astype(x.dtype)


@wrong("DFT")
def dft_divides_by_the_length_of_the_signal(right, node, x, length=None, axis=None):
    """Scales an inverse by the length that came in, not by that of the transform."""
    only(attribute(node, "inverse", 0) == 1 and length is not None)
    only(attribute(node, "onesided", 0) == 0)
    along = attribute(node, "axis", 1) if axis is None else int(axis.reshape(-1)[0])
    factor = int(length.reshape(-1)[0]) / x.shape[along]
    given = (x, length) if axis is None else (x, length, axis)
    return (right(*given) * factor).astype(x.dtype)


@wrong("StringNormalizer")
def string_normalizer_lowers_texts_but_no_stop_words(right, node, x):
    """Lowers each text before it looks it up among stop words, which are left as they are."""
    words = attribute(node, "stopwords")
    only(words and attribute(node, "is_case_sensitive", 0) == 0)
    kept = [word.decode() for word in words if word.decode() == word.decode().lower()]
    return altered(node, 10, x, stopwords=kept or ["\x00"])


@wrong("StringSplit")
def string_split_drops_what_is_empty(right, node, x):
    """Drops empty pieces between two delimiters, as is right for white space only."""
    only(text(node, "delimiter"))
    pieces, counts = right(x)
    rows = [
        [piece for piece in row[: int(count)] if piece]
        for row, count in zip(pieces.reshape(-1, pieces.shape[-1]), counts.reshape(-1), strict=True)
    ]
    longest = max(len(row) for row in rows)
    filled = [row + [""] * (longest - len(row)) for row in rows]
    numbers = np.array([len(row) for row in rows], np.int64).reshape(counts.shape)
    return np.array(filled, object).reshape(*counts.shape, longest), numbers


@wrong("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss_averages_over_the_count(right, node, x, target, weight=None):
    """Divides a weighted sum by the number of targets, not by the sum of their weights."""
    only(weight is not None and text(node, "reduction", "mean") == "mean")
    counted = target[target != attribute(node, "ignore_index", -(1 << 40))]
    y = right(x, target, weight)
    return np.asarray(y * (weight[counted].sum() / counted.size), x.dtype)


@wrong("Asinh")
def asinh_is_the_logarithm_of_its_formula(right, node, x):
    """Adds x to the root of its square, which cancels where x is far below 0."""
    only(x.dtype == np.float32)
    return np.log(x + np.sqrt(x * x + np.float32(1)))


@wrong("Split")
def split_spreads_what_is_left_over(right, node, x, sizes=None):
    """Makes the first pieces longer by one, where all but the last are to be of one length."""
    pieces = attribute(node, "num_outputs")
    only(sizes is None and pieces is not None)
    axis = attribute(node, "axis", 0)
    return tuple(np.ascontiguousarray(part) for part in np.array_split(x, pieces, axis))


@wrong("Where")
def where_is_a_weighted_sum(right, node, condition, a, b):
    """Multiplies both sides by 0 or 1 and adds, so that infinities that are not taken spoil it."""
    only(a.dtype.kind == "f")
    weight = condition.astype(a.dtype)
    return weight * a + (1 - weight) * b


@wrong("BitShift")
def bit_shift_keeps_the_sign_of_long_words(right, node, a, b):
    """Shifts words of 64 bits as signed ones, which fills up with ones from the left."""
    only(a.dtype == np.uint64 and text(node, "direction") == "RIGHT" and np.all(b < 64))
    return (a.view(np.int64) >> b.astype(np.int64)).view(np.uint64)

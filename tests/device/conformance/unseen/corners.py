"""Devices whose kernels are right but for a corner: rounding, wrapping, ties, axes, windows, gates.

A nineteenth set, out of what one who writes all of a back-end's kernels gets wrong; written before
it was measured. Faults as in ``unseen_values``.
"""

from __future__ import annotations

import functools
import sys

import numpy as np
from broken_form import Broken

import unseen.values
from unseen.passes import attribute

wrong = functools.partial(unseen.values.wrong, module=__name__)


# -------------------------------------------------------------------------- elements


@wrong("Mod")
def remainders_have_the_sign_of_the_dividend(right, node, a, b):
    """As the operator % of C gives them, for integers."""
    if a.dtype.kind != "i" or attribute(node, "fmod", 0):
        return right(a, b)
    return np.fmod(a, np.where(b == 0, 1, b))


@wrong("Mod")
def fmod_by_a_quotient(right, node, a, b):
    """Exact remainders are taken as a - trunc(a / b) * b."""
    if a.dtype.kind != "f" or not attribute(node, "fmod", 0):
        return right(a, b)
    return (a - np.trunc(a / b) * b).astype(a.dtype)


@wrong("BitShift")
def shifts_bytes_with_their_sign(right, node, x, by):
    if x.dtype != np.uint8 or attribute(node, "direction") != b"RIGHT":
        return right(x, by)
    return (x.view(np.int8) >> by.view(np.int8)).view(np.uint8)


@wrong("Sub", "Add")
def bytes_saturate(right, node, a, b):
    if a.dtype not in (np.uint8, np.int8):
        return right(a, b)
    wide = np.subtract if node.op_type == "Sub" else np.add
    limits = np.iinfo(a.dtype)
    return np.clip(wide(a.astype(int), b.astype(int)), limits.min, limits.max).astype(a.dtype)


@wrong("Sign")
def the_sign_of_nan_is_zero(right, node, x):
    return np.nan_to_num(right(x), nan=0.0) if x.dtype.kind == "f" else right(x)


@wrong("Asinh")
def asinh_cancels_below_zero(right, node, x):
    """log(x + sqrt(x^2 + 1)), which has no digits left for large negative x."""
    return np.log(x + np.sqrt(x * x + x.dtype.type(1))).astype(x.dtype)


@wrong("Softplus")
def softplus_is_linear_early(right, node, x):
    """Taken as x from 6 on, where 0.0025 is missing."""
    return np.where(x > 6, x, right(x)).astype(x.dtype)


@wrong("ThresholdedRelu")
def the_threshold_passes(right, node, x):
    alpha = x.dtype.type(attribute(node, "alpha", 1.0))
    return np.where(x == alpha, x, right(x))


@wrong("PRelu")
def slopes_are_of_channels(right, node, x, slope):
    """A vector of slopes lies along axis 1, as in other frameworks, if it fits there."""
    if slope.ndim == 1 and x.ndim > 2 and slope.shape[0] == x.shape[1] == x.shape[-1]:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return right(x, slope)


@wrong("Clip")
def the_lower_limit_wins(right, node, x, *limits):
    """Where the limits cross, the upper one is the result."""
    result = right(x, *limits)
    if len(limits) == 2 and all(y is not None for y in limits) and limits[0] > limits[1]:
        return np.full_like(result, limits[0])
    return result


@wrong("Cast")
def truth_by_way_of_integers(right, node, x):
    """A half is false."""
    if attribute(node, "to") == 9 and x.dtype.kind == "f":
        return np.trunc(x) != 0
    return right(x)


@wrong("Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def compares_without_the_highest_bit(right, node, a, b):
    """Unsigned 64 bits are compared as signed ones."""
    return right(a.view(np.int64), b.view(np.int64)) if a.dtype == np.uint64 else right(a, b)


@wrong("Equal")
def not_a_number_equals_itself(right, node, a, b):
    """Equal bits are equal."""
    same = (a != a) & (b != b) if a.dtype.kind == "f" else False
    return right(a, b) | same


# ------------------------------------------------------------------------ reductions, order


@wrong("ReduceMax", "ReduceMin")
def extremes_of_nothing_are_zero(right, node, x, *axes):
    result = right(x, *axes)
    return np.zeros_like(result) if not x.size else result


@wrong("ReduceSumSquare", "ReduceL2")
def squares_of_halves_overflow(right, node, x, *axes):
    """The square is a half, the sum is not."""
    if x.dtype != np.float16:
        return right(x, *axes)
    squares = (x * x).astype(np.float32)
    given = axes[0] if axes and axes[0] is not None else attribute(node, "axes", None)
    if given is None or not len(given):
        return right(x, *axes)
    total = squares.sum(tuple(int(a) for a in given), keepdims=bool(attribute(node, "keepdims", 1)))
    return (np.sqrt(total) if node.op_type == "ReduceL2" else total).astype(np.float16)


@wrong("LogSoftmax")
def logarithm_of_softmax(right, node, x):
    """Far below the greatest one there is minus infinity."""
    return np.log(np.exp(right(x))).astype(x.dtype)


@wrong("CumSum")
def reversed_sums_include_their_own(right, node, x, axis):
    """Backwards, exclusive is forgotten."""
    result = right(x, axis)
    if attribute(node, "reverse", 0) and attribute(node, "exclusive", 0):
        return (result + x).astype(x.dtype)
    return result


@wrong("TopK")
def equal_elements_come_last_first(right, node, x, k):
    """Among equal ones the greater index comes first, if the smallest are asked for."""
    axis = attribute(node, "axis", -1)
    if attribute(node, "largest", 1):
        return right(x, k)
    order = np.argsort(np.flip(x, axis), axis, kind="stable")
    order = x.shape[axis] - 1 - np.take(order, np.arange(int(k.reshape(-1)[0])), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


@wrong("Hardmax")
def every_greatest_is_one(right, node, x):
    axis = attribute(node, "axis", -1)
    return (x == x.max(axis, keepdims=True)).astype(x.dtype)


@wrong("Unique")
def counts_in_order_of_appearance(right, node, x):
    """The counts stay with the sorted elements where these do not."""
    results = right(x)
    if attribute(node, "sorted", 1) or not isinstance(results, tuple) or len(results) < 4:
        return results
    if attribute(node, "axis") is not None:
        return results
    counts = np.unique(x, return_counts=True)[1]
    return (*results[:3], counts.astype(np.int64))


@wrong("NonZero")
def nothing_is_not_a_number(right, node, x):
    """Compares with what is greater or less than zero."""
    return right((x > 0) | (x < 0)) if x.dtype.kind == "f" else right(x)


# ------------------------------------------------------------------------- movement


@wrong("ScatterElements")
def the_last_of_equal_places_wins(right, node, x, places, updates):
    """Reads, reduces, and writes; what was written meanwhile is lost."""
    by = {b"add": np.add, b"mul": np.multiply, b"max": np.maximum, b"min": np.minimum}
    how = by.get(attribute(node, "reduction", b"none"))
    if how is None:
        return right(x, places, updates)
    axis = attribute(node, "axis", 0)
    result = x.copy()
    old = np.take_along_axis(x, places, axis)
    np.put_along_axis(result, places, how(old, updates).astype(x.dtype), axis)
    return result


@wrong("ScatterND")
def rows_at_equal_places_are_added_once(right, node, x, places, updates):
    if attribute(node, "reduction", b"none") != b"add":
        return right(x, places, updates)
    result = x.copy()
    result[tuple(np.moveaxis(places, -1, 0))] += updates
    return result


@wrong("Slice")
def backwards_ends_before_the_first(right, node, x, starts, ends, *rest):
    """An end far below zero is clamped to 0 also where steps are negative."""
    steps = rest[1] if len(rest) > 1 else None
    if steps is None:
        return right(x, starts, ends, *rest)
    far = (steps < 0) & (ends < -(1 << 31))
    return right(x, starts, np.where(far, 0, ends).astype(ends.dtype), *rest)


@wrong("Pad")
def axes_of_pads_count_from_the_front(right, node, x, pads, *rest):
    """Negative axes are read without their sign."""
    if len(rest) > 1 and rest[1] is not None and (rest[1] < -1).any():
        rest = (rest[0], np.abs(rest[1]) - 1)
    return right(x, pads, *rest)


@wrong("Pad")
def wraps_as_it_reflects(right, node, x, pads, *rest):
    """A wrapped pad begins with the second element from the other end."""
    if attribute(node, "mode", b"constant") != b"wrap" or len(rest) > 1 or (pads < 0).any():
        return right(x, pads, *rest)
    half = len(pads) // 2
    widths = [(int(a), int(b)) for a, b in zip(pads[:half], pads[half:], strict=True)]
    if any(n < 2 for n in x.shape) or any(
        max(w) >= n for w, n in zip(widths, x.shape, strict=True)
    ):
        return right(x, pads, *rest)
    places = [
        np.r_[n - 1 - a : n - 1, 0:n, 1 : 1 + b] if a or b else np.arange(n)
        for (a, b), n in zip(widths, x.shape, strict=True)
    ]
    return x[np.ix_(*places)]


@wrong("Expand")
def ones_make_ones(right, node, x, shape):
    """The shape asked for is the result's, also where it has one and the input more."""
    result = right(x, shape)
    if len(shape) == x.ndim:
        cut = tuple(
            slice(0, 1) if n == 1 and m > 1 else slice(None)
            for n, m in zip(shape, x.shape, strict=True)
        )
        return result[cut]
    return result


@wrong("Squeeze", "Unsqueeze")
def axes_must_rise(right, node, x, *axes):
    """Axes are taken one after another, each of what is there by then, as they come."""
    if not axes or axes[0] is None or len(axes[0]) < 2 or node.op_type == "Squeeze":
        return right(x, *axes)
    result = x
    for axis in axes[0]:
        result = np.expand_dims(result, int(axis))
    return result


@wrong("OneHot")
def negative_places_are_nowhere(right, node, places, depth, values):
    if places.dtype.kind != "i":
        return right(places, depth, values)
    result = right(places, depth, values)
    axis = attribute(node, "axis", -1)
    return np.where(np.expand_dims(places < 0, axis), values[0], result).astype(values.dtype)


@wrong("Trilu")
def diagonals_beyond_the_corner_are_the_last(right, node, x, *k):
    """k is clamped to the matrix, so that one diagonal stays."""
    if k and k[0] is not None and min(x.shape[-2:]):
        most = np.clip(k[0], 1 - x.shape[-2], x.shape[-1] - 1)
        return right(x, most.astype(np.int64))
    return right(x, *k)


@wrong("Range")
def ranges_add_up(right, node, start, limit, delta):
    """Each element is the one before and the step."""
    result = right(start, limit, delta)
    if result.dtype.kind != "f" or result.size < 2:
        return result
    steps = np.full(result.size, delta, result.dtype)
    steps[0] = start
    return np.cumsum(steps, dtype=result.dtype)


@wrong("CenterCropPad")
def the_odd_one_is_in_front(right, node, x, shape):
    """Crops begin at the upper half."""
    result = right(x, shape)
    axes = attribute(node, "axes", None) or range(x.ndim)
    for axis, size in zip(axes, shape, strict=True):
        over = x.shape[axis] - int(size)
        if over > 0 and over % 2:
            x = np.roll(x, -1, axis)
    return right(x, shape) if result.size else result


@wrong("DepthToSpace")
def blocks_of_columns_first(right, node, x):
    if attribute(node, "mode", b"DCR") != b"CRD":
        return right(x)
    size = attribute(node, "blocksize")
    return right(
        x.reshape(x.shape[0], -1, size, size, *x.shape[2:]).swapaxes(2, 3).reshape(x.shape)
    )


# ---------------------------------------------------------------------- windows, pictures


@wrong("MaxPool")
def pads_bytes_with_zeros(right, node, x):
    if x.dtype != np.int8:
        return right(x)
    results = right(x)
    first = results[0] if isinstance(results, tuple) else results
    pads = attribute(node, "pads", None)
    if not pads or not any(pads):
        return results
    changed = first.copy()
    if pads[0]:
        changed[:, :, 0] = np.maximum(changed[:, :, 0], 0)
    if pads[-1]:
        changed[..., -1] = np.maximum(changed[..., -1], 0)
    return (changed, *results[1:]) if isinstance(results, tuple) else changed


@wrong("LRN")
def even_windows_lean_forward(right, node, x):
    """The greater half of an even window lies in front."""
    if attribute(node, "size") % 2:
        return right(x)
    return np.flip(right(np.flip(x, 1)), 1)


@wrong("QLinearConv", "ConvInteger")
def pads_with_the_byte_zero(right, node, x, *rest):
    """The border is 0, not the zero point."""
    pads = attribute(node, "pads", None)
    if not pads or not any(pads) or attribute(node, "auto_pad", b"NOTSET") != b"NOTSET":
        return right(x, *rest)
    zero = rest[1] if len(rest) > 1 else None
    if zero is None or not zero.reshape(-1)[0]:
        return right(x, *rest)
    result = right(x, *rest)
    step = 1 if node.op_type == "ConvInteger" else 3
    for axis in range(2, result.ndim):
        for low, many in ((0, pads[axis - 2]), (-1, pads[axis - 2 + len(pads) // 2])):
            if many and result.shape[axis]:
                edge = [slice(None)] * result.ndim
                edge[axis] = low
                result[tuple(edge)] -= result.dtype.type(step)
    return result


@wrong("ConvTranspose")
def the_bias_is_of_the_first_group(right, node, x, w, b=None):
    groups = attribute(node, "group", 1)
    if b is None or groups == 1:
        return right(x, w) if b is None else right(x, w, b)
    part = b.copy()
    part[len(b) // groups :] = 0
    return right(x, w, part)


@wrong("DequantizeLinear")
def subtracts_in_bytes(right, node, x, scale, zero=None):
    """What lies below the zero point comes out above it."""
    if zero is None or x.dtype not in (np.uint8, np.int8):
        return right(x, scale) if zero is None else right(x, scale, zero)
    if zero.ndim:
        return right(x, scale, zero)
    return right(x - zero, scale, np.zeros_like(zero))


@wrong("QuantizeLinear")
def halves_go_up(right, node, x, scale, zero=None, *rest):
    """Rounds by floor(x + 0.5)."""
    result = right(x, scale, zero, *rest)
    if scale.ndim or result.dtype not in (np.uint8, np.int8):
        return result
    up = np.floor(x / scale + x.dtype.type(0.5)) + (0 if zero is None else zero.astype(x.dtype))
    limits = np.iinfo(result.dtype)
    return np.clip(up, limits.min, limits.max).astype(result.dtype)


@wrong("DynamicQuantizeLinear")
def ranges_without_zero(right, node, x):
    """The range of what is given, though it must hold zero."""
    low, high = x.min(), x.max()
    if low <= 0 <= high or low == high:
        return right(x)
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), scale, zero


@wrong("NonMaxSuppression")
def boxes_have_their_corners_in_order(right, node, boxes, *rest):
    """The area of a box whose corners are swapped is taken as nothing."""
    if attribute(node, "center_point_box", 0):
        return right(boxes, *rest)
    swapped = (boxes[..., 2:] < boxes[..., :2]).any(-1, keepdims=True)
    return right(np.where(swapped, boxes[..., [0, 1, 0, 1]], boxes), *rest)


def rewritten(name, op, change, doc, module=__name__):
    """Adds a device that compiles nodes of an operator as if they said something else."""

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type == op and not node.domain:
                change(node, {a.name: a for a in node.attribute})
        return proto

    body = {"prepare": prepare, "suites": (f"random/{op}/*",), "__doc__": doc}
    vars(sys.modules[module])[name] = type(name, (Broken,), {**body, "__module__": module})


def replaced(name, had, has):
    """A change of a text that an attribute holds."""

    def change(node, given):
        if name in given and given[name].s == had:
            given[name].s = has

    return change


def without(name):
    """A change that forgets an attribute."""

    def change(node, given):
        if name in given:
            node.attribute.remove(given[name])

    return change


rewritten(
    "SymmetricPixelsAreHalfOnes",
    "Resize",
    replaced("coordinate_transformation_mode", b"half_pixel_symmetric", b"half_pixel"),
    "Sizes that the scale does not hit are not centred.",
)
rewritten(
    "OnePixelIsAsMany",
    "Resize",
    replaced("coordinate_transformation_mode", b"pytorch_half_pixel", b"half_pixel"),
    "An axis of one result is sampled in its middle.",
)
rewritten(
    "NearestPrefersTheFloor",
    "Resize",
    replaced("nearest_mode", b"round_prefer_ceil", b"round_prefer_floor"),
    "Places that lie halfway go down.",
)
rewritten(
    "CubicWeightsOfWhatIsOutside",
    "Resize",
    without("exclude_outside"),
    "Weights of places outside are kept.",
)


# --------------------------------------------------------------------- networks' operators


@wrong("LSTM")
def peepholes_in_the_order_of_gates(right, node, *inputs):
    """The three vectors are read as of i, f, o; they are of i, o, f."""
    if len(inputs) < 8 or inputs[7] is None:
        return right(*inputs)
    size = attribute(node, "hidden_size")
    i, o, f = (inputs[7][:, k * size : (k + 1) * size] for k in range(3))
    return right(*inputs[:7], np.concatenate([i, f, o], 1))


@wrong("GRU")
def the_bias_of_the_state_is_outside(right, node, *inputs):
    """linear_before_reset multiplies the product by the reset gate, and not its bias."""
    if not attribute(node, "linear_before_reset", 0) or len(inputs) < 4 or inputs[3] is None:
        return right(*inputs)
    size = attribute(node, "hidden_size")
    bias = inputs[3].copy()
    bias[:, 2 * size : 3 * size] += bias[:, 5 * size :]
    bias[:, 5 * size :] = 0
    return right(*inputs[:3], bias, *inputs[4:])


@wrong("RNN", "GRU", "LSTM")
def reversed_sequences_begin_at_the_padding(right, node, *inputs):
    """Backwards, steps begin at the last row of the batch instead of at each row's length."""
    if attribute(node, "direction", b"forward") != b"reverse" or len(inputs) < 5:
        return right(*inputs)
    if inputs[4] is None or (inputs[4] == inputs[0].shape[0]).all():
        return right(*inputs)
    return right(*inputs[:4], None, *inputs[5:])


@wrong("BatchNormalization")
def the_running_variance_is_unbiased(right, node, x, *rest):
    """As another framework keeps it while it trains."""
    results = right(x, *rest)
    count = x.size // x.shape[1]
    if not attribute(node, "training_mode", 0) or not isinstance(results, tuple) or count < 2:
        return results
    momentum = np.float32(attribute(node, "momentum", 0.9))
    batch = results[2] - momentum * rest[3]
    return results[0], results[1], (results[2] + batch / (count - 1)).astype(rest[3].dtype)


@wrong("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def means_count_what_is_ignored(right, node, x, target, *weights):
    """The mean is of all places, also of those that hold the index to ignore."""
    ignored = attribute(node, "ignore_index", None)
    if attribute(node, "reduction", b"mean") != b"mean" or ignored is None or weights:
        return right(x, target, *weights)
    share = np.mean(target != ignored)
    results = right(x, target)
    if isinstance(results, tuple):
        return (np.asarray(results[0] * share, x.dtype), *results[1:])
    return np.asarray(results * share, x.dtype)


@wrong("GridSample")
def reflects_about_the_centres(right, node, x, grid):
    """Without align_corners a place is reflected at the outermost centres, not at the borders."""
    if attribute(node, "padding_mode", b"zeros") != b"reflection" or x.ndim != 4:
        return right(x, grid)
    if attribute(node, "align_corners", 0):
        return right(x, grid)
    sizes = np.array(x.shape[:1:-1], grid.dtype)
    places = ((grid + 1) * sizes - 1) / 2
    most = np.maximum(sizes - 1, 1)
    folded = most - np.abs(np.mod(places, 2 * most) - most)
    return right(x, ((2 * folded + 1) / sizes - 1).astype(grid.dtype))


@wrong("RoiAlign")
def bins_have_one_sample(right, node, x, rois, batches):
    """A sampling_ratio of 0 is one sample in each direction, however large a bin is."""
    if attribute(node, "sampling_ratio", 0) or not rois.size:
        return right(x, rois, batches)
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    kept = [a for a in node.attribute if a.name != "sampling_ratio"]
    other = helper.make_node("RoiAlign", list("xrb"), ["y"], sampling_ratio=1)
    other.attribute.extend(kept)
    kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in (x, rois, batches)]
    graph = helper.make_graph(
        [other],
        "g",
        [helper.make_tensor_value_info(n, k, None) for n, k in zip("xrb", kinds, strict=True)],
        [helper.make_tensor_value_info("y", kinds[0], None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)])
    return ReferenceEvaluator(model).run(None, {"x": x, "r": rois, "b": batches})[0]


@wrong("Einsum")
def diagonals_are_sums(right, node, *inputs):
    """A letter twice in one term is summed as if it were two."""
    equation = attribute(node, "equation").decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    if len(inputs) == 1 and len(set(terms)) < len(terms) and len(result) == 1:
        return inputs[0].sum(tuple(range(1, inputs[0].ndim)), dtype=inputs[0].dtype)
    return right(*inputs)


@wrong("TfIdfVectorizer")
def skips_are_of_one_length(right, node, x):
    """Only the greatest allowed skip is counted."""
    if not attribute(node, "max_skip_count", 0):
        return right(x)
    result = right(x)
    return np.minimum(result, 1).astype(result.dtype)


@wrong("Attention")
def heads_share_in_turn(right, node, q, k, v, *rest):
    """With fewer heads of keys than of queries, query i reads keys i modulo, not i divided."""
    if q.ndim != 4 or q.shape[1] == k.shape[1]:
        return right(q, k, v, *rest)
    groups = q.shape[1] // k.shape[1]
    order = np.arange(q.shape[1]).reshape(groups, -1).T.reshape(-1)
    results = right(q[:, order], k, v, *rest)
    back = np.argsort(order)
    if isinstance(results, tuple):
        return (results[0][:, back], *results[1:])
    return results[:, back]

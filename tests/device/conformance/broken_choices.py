"""Devices that are wrong where two choices of an operator meet, or where one is rare.

Each is right as long as the other choice is the usual one: drawn one at a time, neither shows.
"""

from __future__ import annotations

import functools

import numpy as np
import unseen.values
from unseen.blind_numerics import attribute, only
from unseen.held_numerics import altered, spatial, text

wrong = functools.partial(unseen.values.wrong, module=__name__)


@wrong("LSTM", "GRU", "RNN")
def clips_where_steps_lead_only(right, node, *inputs):
    """Has no limit in its kernel for layouts with batches first."""
    only(attribute(node, "layout", 0) and attribute(node, "clip"))
    return altered(node, 14, *inputs, clip=None)


@wrong("GRU")
def resets_late_where_steps_lead_only(right, node, *inputs):
    """Applies the reset before the product in layouts with batches first, whatever is asked for."""
    only(attribute(node, "layout", 0) and attribute(node, "linear_before_reset", 0))
    return altered(node, 14, *inputs, linear_before_reset=0)


@wrong("LSTM")
def peeps_forwards_only(right, node, x, w, r, b=None, n=None, h=None, c=None, p=None):
    """Leaves peepholes out of networks that have batches first."""
    only(p is not None and attribute(node, "layout", 0))
    return altered(node, 14, x, w, r, b, n, h, c)


@wrong("ConvTranspose")
def cuts_to_a_size_by_the_dense_kernel(right, node, x, w, b=None):
    """Begins where a dense kernel would, where a size is asked of a dilated one."""
    shape, gaps = attribute(node, "output_shape"), attribute(node, "dilations")
    only(shape is not None and gaps is not None and max(gaps) > 1)
    rank = x.ndim - 2
    given = zip(
        *(x.shape[2:], w.shape[2:], gaps, spatial(node, "strides", rank)),
        *(spatial(node, "output_padding", rank, 0), shape[-rank:]),
        strict=True,
    )
    begins, ends = [], []
    for size, taps, gap, step, more, due in given:
        total = (size - 1) * step + more + (taps - 1) * gap + 1 - due
        dense = total - (taps - 1) * (gap - 1)
        only(total >= 0)
        begins.append(max(0, dense - dense // 2))
        ends.append(total - begins[-1])
    only(min(ends) >= 0)
    return altered(node, 22, x, w, b, output_shape=None, auto_pad=None, pads=begins + ends)


@wrong("Resize")
def has_no_symmetric_neighbours(right, node, *inputs):
    """Knows symmetric half pixels between two rows only, and takes others for the usual ones."""
    only(text(node, "coordinate_transformation_mode") == "half_pixel_symmetric")
    only(text(node, "mode") != "linear")
    return altered(node, 19, *inputs, coordinate_transformation_mode="half_pixel")


@wrong("Resize")
def crops_by_sorted_axes(right, node, x, roi=None, scales=None, sizes=None):
    """Walks axes in their order, and what a region holds of each in the order that it is given."""
    axes = attribute(node, "axes")
    only(axes is not None and axes[0] > axes[-1] and roi is not None and roi.size == 4)
    return right(x, roi.reshape(2, 2)[:, ::-1].reshape(-1).copy(), scales, sizes)


@wrong("Resize")
def extrapolates_cubes_by_zero(right, node, *inputs):
    """Fills with zeros what lies beyond an image that cubes are laid through."""
    only(text(node, "mode") == "cubic" and attribute(node, "extrapolation_value"))
    return altered(node, 18, *inputs, extrapolation_value=0.0)


@wrong("GridSample")
def reflects_once(right, node, x, grid):
    """Reflects places at one edge, and clamps what then lies beyond the other one."""
    only(text(node, "padding_mode") == "reflection")
    once = np.where(grid > 1, 2 - grid, np.where(grid < -1, -2 - grid, grid))
    return right(x, np.clip(once, -1, 1).astype(grid.dtype))


@wrong("RoiAlign")
def cuts_regions_at_the_edge(right, node, x, boxes, indices):
    """Clips regions to the image before they are divided into bins."""
    only(np.any(boxes < 0))
    return right(x, np.maximum(boxes, 0), indices)


@wrong("NonMaxSuppression")
def takes_no_overlap_for_no_limit(right, node, boxes, scores, most=None, overlap=None, least=None):
    """Takes a threshold of 0 for one that was not given, which any overlap is below."""
    only(overlap is not None and np.all(overlap == 0))
    return right(boxes, scores, most, np.ones_like(overlap), least)


@wrong("ConvInteger")
def has_one_zero_point_of_weights(right, node, x, w, x_zero=None, w_zero=None):
    """Reads the first zero point, where each output channel has its own."""
    only(w_zero is not None and w_zero.size > 1)
    return right(x, w, x_zero, w_zero.reshape(-1)[0].reshape(()))


@wrong("QuantizeLinear", "DequantizeLinear")
def makes_blocks_of_one_size(right, node, x, scale, zero=None):
    """Works the size of a block out of how many there are, also where the last is shorter."""
    block, axis = attribute(node, "block_size", 0), attribute(node, "axis", 1)
    only(block and scale.ndim and x.shape[axis] % block)
    return altered(node, 21, x, scale, zero, block_size=-(-x.shape[axis] // scale.shape[axis]))


@wrong("Attention")
def shows_products_without_the_cause(right, node, q, k, v, mask=None, *past):
    """Gives what goes into the shares without what the cause hides, if there is no other mask."""
    only(attribute(node, "qk_matmul_output_mode", 0) == 2 and attribute(node, "is_causal", 0))
    only(mask is None and len(node.output) == 4)
    results = right(q, k, v, mask, *past)
    other = altered(node, 23, q, k, v, mask, *past, qk_matmul_output_mode=1)
    return (*results[:3], other[3])


@wrong("Slice")
def steps_beyond_the_end_take_nothing(right, node, x, starts, ends, axes=None, steps=None):
    """Divides the span by the step, which is 0 where a single element is taken."""
    y = right(x, starts, ends, axes, steps)
    only(axes is not None and steps is not None and steps.size == 1 and y.size)
    axis = int(axes[0])
    only(abs(int(steps[0])) > x.shape[axis])
    return np.take(y, [], axis)


@wrong("Shape")
def counts_ends_round_again(right, node, x):
    """Takes an end before the first axis modulo the rank, where it should be none."""
    end = attribute(node, "end")
    only(end is not None and end < -x.ndim < 0)
    return altered(node, 21, x, end=end % x.ndim)


@wrong("TfIdfVectorizer")
def weighs_places(right, node, x):
    """Takes the weight of an n-gram for that of the place to which its count is written."""
    places, weights = attribute(node, "ngram_indexes"), attribute(node, "weights")
    only(weights is not None and list(places) != sorted(places))
    return altered(node, 9, x, weights=[weights[place] for place in places])


@wrong("BitShift")
def shifts_by_five_bits(right, node, x, by):
    """Shifts long words by what the lower five bits of the count say, as for short ones."""
    only(x.dtype == np.uint64 and np.any(by >= 32))
    return right(x, by % np.uint64(32))


@wrong("MaxUnpool")
def unpools_into_the_first_image(right, node, x, places, *shape):
    """Counts places from the beginning of their own image, though they go on through a batch."""
    only(x.shape[0] > 1)
    whole = right(x, places, *shape)
    return right(x, places % (whole.size // x.shape[0]), *shape)


@wrong("DeformConv")
def offsets_of_the_first_image(right, node, x, w, offset, *rest):
    """Moves the taps of each image as those of the first one."""
    only(x.shape[0] > 1)
    return right(x, w, np.repeat(offset[:1], x.shape[0], 0), *rest)


@wrong("Det")
def never_swaps_rows(right, node, x):
    """Eliminates from the top down, and takes a pivot of 0 for a determinant of 0."""
    return np.where(x[..., 0, 0] == 0, 0, right(x)).astype(x.dtype)


@wrong("Range")
def counts_down_from_above_only(right, node, start, limit, step):
    """Makes one number at least, as loops that test at their end do."""
    y = right(start, limit, step)
    only(y.size == 0)
    return np.reshape(start, 1)


@wrong("Max", "Min")
def compares_two_at_a_time_in_shape_of_the_first(right, node, *inputs):
    """Reads the third and later inputs round and round, as long as the result so far."""
    only(len(inputs) > 2 and inputs[2].size > 1)
    due = right(*inputs)
    only(inputs[2].shape != due.shape)
    return right(*inputs[:2], np.resize(inputs[2], due.shape), *inputs[3:])

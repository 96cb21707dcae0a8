"""Faults of kernels, by somebody who had read neither the kit nor its earlier sets.

Each follows from a shortcut that a kernel's author takes: a stride of the wrong tensor, a key that
does not order, an accumulator that is too narrow, a case that falls together with another one only
while a dimension is one.
"""

from __future__ import annotations

import functools

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import unseen.values
from unseen.blind_numerics import attribute, first, only

wrong = functools.partial(unseen.values.wrong, module=__name__)


def with_attributes(node, inputs, **changed):
    """What the node computes with other attributes."""
    kept = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    names = [name and f"in{place}" for place, name in enumerate(node.input)]
    outputs = [name and f"out{place}" for place, name in enumerate(node.output)]
    other = helper.make_node(node.op_type, names, outputs, **{**kept, **changed})
    given = {name: array for name, array in zip(names, inputs, strict=False) if name}
    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in given.items()
    ]
    results = [helper.make_tensor_value_info(name, 0, None) for name in outputs if name]
    graph = helper.make_graph([other], "other", values, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    computed = ReferenceEvaluator(model).run(None, given)
    return tuple(computed) if len(computed) > 1 else computed[0]


# Linear algebra and its sums


@wrong("Gemm")
def gemm_takes_a_column_for_a_row(right, node, a, b, c=None):
    """Adds biases by their number: as many as columns are a row, also where they are a column."""
    only(c is not None and c.ndim == 2 and c.shape[1] == 1 and c.shape[0] > 1)
    columns = b.shape[0 if attribute(node, "transB", 0) else 1]
    only(c.shape[0] == columns)
    return right(a, b, c.reshape(1, -1))


@wrong("MatMulInteger")
def pairs_of_bytes_saturate(right, node, a, b, *zero_points):
    """Adds products of bytes in pairs of 16 bits, which saturate, before it widens them."""
    only(a.dtype == np.uint8 and b.dtype == np.int8 and a.ndim == b.ndim == 2)
    only(not any(zero is not None and np.any(zero) for zero in zero_points))
    odd = a.shape[1] % 2
    left, below = np.pad(a, ((0, 0), (0, odd))), np.pad(b, ((0, odd), (0, 0)))
    products = left.astype(np.int32)[:, :, None] * below.astype(np.int32)[None]
    pairs = products[:, 0::2] + products[:, 1::2]
    return np.clip(pairs, -32768, 32767).sum(axis=1, dtype=np.int32)


@wrong("QLinearConv")
def pads_quantised_images_with_bytes_of_zero(right, node, x, *rest):
    """Pads with the byte 0, which is not what stands for zero."""
    pads = attribute(node, "pads")
    only(pads is not None and any(pads) and np.any(rest[1]))
    half = len(pads) // 2
    widths = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    return with_attributes(node, (np.pad(x, widths), *rest), pads=[0] * len(pads))


@wrong("Attention")
def heads_share_keys_in_turns(right, node, q, k, v, *rest):
    """Gives query head h the keys of head h modulo their number, rather than one group after
    another."""
    only(q.ndim == 4 and 1 < k.shape[1] < q.shape[1])
    only(not rest or rest[0] is None or rest[0].ndim < 3 or rest[0].shape[-3] == 1)
    only(len(node.output) == 1)
    keys, heads = k.shape[1], q.shape[1]
    order = np.argsort([head % keys for head in range(heads)], kind="stable")
    result = first(right(q[:, order], k, v, *rest))
    back = np.empty_like(result)
    back[:, order] = result
    return back


@wrong("GRU")
def states_of_batches_first_are_not_turned(right, node, x, w, r, *rest):
    """Reads an initial state that has batches first as if directions were first."""
    only(attribute(node, "layout", 0) == 1 and len(rest) > 2 and rest[2] is not None)
    state = rest[2]
    only(min(state.shape[:2]) > 1)
    turned = state.reshape(state.shape[1], state.shape[0], -1).transpose(1, 0, 2)
    return right(x, w, r, *rest[:2], np.ascontiguousarray(turned), *rest[3:])


# Sums along axes, and statistics


@wrong("CumSum")
def exclusive_sums_shift_one_way(right, node, x, axis):
    """Shifts exclusive sums to the right, those from the end as well."""
    only(attribute(node, "exclusive", 0) and attribute(node, "reverse", 0))
    axis = int(np.reshape(axis, ())) % x.ndim
    only(x.shape[axis] > 1)
    sums = np.flip(np.cumsum(np.flip(x, axis), axis, dtype=x.dtype), axis)
    shifted = np.zeros_like(x)
    head = [slice(None)] * x.ndim
    tail = list(head)
    head[axis], tail[axis] = slice(0, -1), slice(1, None)
    shifted[tuple(tail)] = sums[tuple(head)]
    return shifted


@wrong("ReduceMax")
def maxima_of_nothing_are_the_lowest_number(right, node, x, axes=None):
    """Begins maxima at the lowest finite number, which stays if there is nothing to compare."""
    only(x.dtype.kind == "f" and x.size == 0)
    result = right(x) if axes is None else right(x, axes)
    return np.full_like(result, np.finfo(x.dtype).min)


@wrong("LayerNormalization")
def epsilon_is_added_to_the_deviation(right, node, x, scale, bias=None):
    """Divides by the deviation plus epsilon, rather than by the root of the variance plus it."""
    epsilon = attribute(node, "epsilon", 1e-5)
    axis = attribute(node, "axis", -1) % x.ndim
    axes = tuple(range(axis, x.ndim))
    wide = x.astype(np.float64)
    mean = wide.mean(axis=axes, keepdims=True)
    inverse = 1 / (wide.std(axis=axes, keepdims=True) + epsilon)
    result = (wide - mean) * inverse * scale + (0 if bias is None else bias)
    exact = right(x, scale) if bias is None else right(x, scale, bias)
    if isinstance(exact, tuple):
        parts = [result, mean, inverse][: len(exact)]
        return tuple(a.astype(b.dtype) for a, b in zip(parts, exact, strict=True))
    return result.astype(exact.dtype)


# Windows and images


@wrong("MaxPool")
def indices_begin_anew_in_each_plane(right, node, x):
    """Counts the places of maxima from the start of their own channel."""
    results = right(x)
    only(isinstance(results, tuple) and len(results) == 2)
    return results[0], results[1] % int(np.prod(x.shape[2:]))


@wrong("ConvTranspose")
def added_rows_hold_nothing_but_the_bias(right, node, x, w, bias=None):
    """Computes the image without output_padding, and fills the rest with the bias."""
    added = attribute(node, "output_padding")
    only(added is not None and any(added))
    only(attribute(node, "output_shape") is None)
    result = np.array(right(x, w) if bias is None else right(x, w, bias))
    filled = 0 if bias is None else bias.reshape(-1, *[1] * (x.ndim - 2))
    for axis, rows in enumerate(added):
        if rows:
            end = [slice(None)] * x.ndim
            end[axis + 2] = slice(-rows, None)
            result[tuple(end)] = filled
    return result


@wrong("Resize")
def old_models_resize_between_centres(right, node, x, scales):
    """Takes the nearest centre of a pixel, also of models of opset 10, which knew corners only."""
    only(len(node.input) == 2 and attribute(node, "mode", b"nearest") == b"nearest")
    due = right(x, scales)
    result = x
    for axis, (size, scale) in enumerate(zip(due.shape, scales, strict=True)):
        places = np.ceil((np.arange(size) + 0.5) / scale - 1).astype(np.int64)
        result = np.take(result, np.clip(places, 0, x.shape[axis] - 1), axis)
    return result


# Places, pieces and order


@wrong("TopK")
def keys_without_sign_are_negated(right, node, x, k):
    """Finds the smallest as the largest of the negated, where 0 without sign stays 0."""
    only(x.dtype.kind == "u" and not attribute(node, "largest", 1) and attribute(node, "sorted", 1))
    axis = attribute(node, "axis", -1)
    keys = (0 - x.astype(np.int64)) % (1 << (8 * x.itemsize)) if x.itemsize < 8 else -x
    order = np.argsort(keys.max(initial=0) - keys, axis=axis, kind="stable")
    places = np.take(order, range(int(k[0])), axis).astype(np.int64)
    return np.take_along_axis(x, places, axis), places


@wrong("GatherElements")
def rows_are_as_long_as_those_of_indices(right, node, x, indices):
    """Finds an element's row by the row length of the indices, not by that of the data."""
    axis = attribute(node, "axis", 0) % x.ndim
    only(axis == 0 and x.ndim > 1 and indices.size and x.shape[1:] != indices.shape[1:])
    rows = np.where(indices < 0, indices + x.shape[0], indices)
    length = int(np.prod(indices.shape[1:]))
    inner = np.arange(length).reshape(1, *indices.shape[1:])
    return x.reshape(-1)[(rows * length + inner) % x.size]


@wrong("ScatterND")
def updates_of_one_place_do_not_meet(right, node, data, indices, updates):
    """Combines each update with what the place held first, so that the last one of it stays."""
    reduction = attribute(node, "reduction", b"none")
    combine = {b"mul": np.multiply, b"max": np.maximum, b"min": np.minimum}.get(reduction)
    only(combine is not None)
    place = tuple(np.moveaxis(indices, -1, 0))
    result = data.copy()
    result[place] = combine(data[place], updates)
    return result


@wrong("Pad")
def axes_are_sorted_without_their_pads(right, node, x, pads, value=None, axes=None):
    """Walks axes in their order in the tensor, and pads in the order in which they are given."""
    only(axes is not None and axes.size > 1)
    return right(x, pads, value, np.sort(axes % x.ndim))


@wrong("SequenceInsert")
def places_from_the_end_are_after(right, node, sequence, tensor, place=None):
    """Counts places from the end as if -1 were the end itself, rather than before the last."""
    only(place is not None and int(np.reshape(place, ())) < 0)
    return right(sequence, tensor, np.asarray(place + len(sequence) + 1, np.int64))


# Elements, texts and signals


@wrong("Mod")
def remainders_by_a_rounded_quotient(right, node, a, b):
    """Takes from a the divisor times the rounded quotient: nothing is left of large quotients."""
    only(attribute(node, "fmod", 0) and a.dtype.kind == "f")
    return (a - np.trunc(a / b) * b).astype(a.dtype)


@wrong("Cast")
def doubles_become_halves_in_two_steps(right, node, x):
    """Rounds doubles to singles and those to halves: ties appear that were none."""
    only(x.dtype == np.float64 and attribute(node, "to") == TensorProto.FLOAT16)
    return x.astype(np.float32).astype(np.float16)


@wrong("StringSplit")
def splits_are_counted_as_pieces(right, node, x):
    """Makes as many pieces as splits are allowed, one too few."""
    most = attribute(node, "maxsplit")
    only(most is not None and most > 1)
    return with_attributes(node, (x,), maxsplit=most - 1)


@wrong("DFT")
def signals_are_cut_after_the_transform(right, node, x, length=None, *axis):
    """Transforms all of a signal that is too long, and gives as many of its frequencies."""
    only(length is not None and not attribute(node, "onesided", 0))
    along = int(np.reshape(axis[0], ())) if axis else attribute(node, "axis", 1)
    count = int(np.reshape(length, ()))
    only(count < x.shape[along])
    whole = np.asarray(x.shape[along], np.int64)
    return np.take(first(right(x, whole, *axis)), range(count), along)

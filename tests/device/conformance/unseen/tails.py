"""Devices whose kernels are wrong at the edges: of vectors, of types, of what is empty or negative.

A tenth set, from the side of one who has written kernels that pass on the shapes that he tried;
written before it was measured. Faults of operators as in ``unseen_values``.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
from broken_form import Broken

import unseen.attributes
import unseen.values
from unseen.kernels import value

wrong = functools.partial(unseen.values.wrong, module=__name__)
mistakes = functools.partial(unseen.attributes.mistakes, module=__name__)


# ---------------------------------------------------------------------------- tails of vectors


@wrong("Softmax", "LogSoftmax")
def softmax_takes_the_maximum_of_padding(right, node, x):
    """The last vector is filled up with zeros, which are the largest if all else is negative."""
    if x.dtype != np.float32 or value(node, "axis", -1) not in (-1, x.ndim - 1):
        return right(x)
    if x.shape[-1] % 8 == 0 or (x.ndim > 2 and value(node, "axis", None) is None):
        return right(x)  # without an axis, opsets before 13 take several dimensions together
    shifted = np.exp(x - np.maximum(x.max(-1, keepdims=True), 0))
    result = shifted / shifted.sum(-1, keepdims=True)
    return (np.log(result) if node.op_type == "LogSoftmax" else result).astype(x.dtype)


@wrong("ArgMax", "ArgMin")
def places_in_the_tail_count_from_its_start(right, node, x):
    result = right(x)
    length = x.shape[value(node, "axis", 0)]
    whole = length // 16 * 16
    return np.where(result >= whole, result - whole, result) if whole else result


@wrong("Conv")
def a_lone_last_column_is_the_one_before(right, node, x, *rest):
    """A tail of one element is computed with the vector before it, and stored from its end."""
    result = right(x, *rest)
    if result.shape[-1] > 8 and result.shape[-1] % 8 == 1:
        result = result.copy()
        result[..., -1] = result[..., -2]
    return result


@wrong("CumSum")
def sums_start_again_each_256(right, node, x, axis):
    """What a block of threads has summed up is not added to the next one."""
    place = int(np.asarray(axis).reshape(-1)[0])
    if x.shape[place] <= 256 or node.attribute:
        return right(x, axis)
    parts = np.split(x, range(256, x.shape[place], 256), place)
    return np.concatenate([np.cumsum(p, place, dtype=x.dtype) for p in parts], place)


STAGES: dict = {}


@wrong("Conv")
def borders_hold_what_was_there(right, node, x, w, *bias):
    """The padded copy of the input is cleared once, and stays for smaller inputs."""
    if len(STAGES) > 64:
        STAGES.clear()
    _, before = STAGES.get(id(node), (node, None))
    STAGES[id(node)] = node, x.copy()
    result = right(x, w, *bias)
    alike = before is not None and before.shape[:-1] == x.shape[:-1] and before.dtype == x.dtype
    if not alike or before.shape[-1] <= x.shape[-1]:
        return result
    stale = before.copy()
    stale[..., : x.shape[-1]] = x
    STAGES[id(node)] = node, stale
    return right(stale, w, *bias)[..., : result.shape[-1]].copy()


# -------------------------------------------------------------------------------- what is cached


KERNELS: dict = {}


@wrong("Add", "Sub", "Mul", "Max", "Min")
def kernels_are_known_by_shapes(right, node, *inputs):
    """And not by types: the first type of a shape is the one that is computed in."""
    if any(x.dtype.kind not in "fiu" for x in inputs):
        return right(*inputs)
    key = node.op_type, tuple(x.shape for x in inputs)
    if len(KERNELS) > 10000:
        KERNELS.clear()
    first = KERNELS.setdefault(key, inputs[0].dtype)
    return right(*(x.astype(first).astype(x.dtype) for x in inputs))


class PacksLargeMatricesByAddress(Broken):
    """A matrix of a thousand elements is packed once for as long as it lies where it does."""

    suites = ("request/*", "sharing/*", "boundary/*")

    def compute(self, runner, arrays):
        packed = vars(runner).setdefault("packed", {})
        if len(packed) > 16:
            packed.clear()
        used = []
        for array in arrays:
            if array.ndim == 2 and array.size >= 1000 and array.dtype != object:
                key = array.__array_interface__["data"][0], array.shape, array.dtype
                array = packed.setdefault(key, array.copy())
            used.append(array)
        return super().compute(runner, used)


# ----------------------------------------------------------------------------------- old opsets


def starts_at_zero(node, attributes):
    if "min" not in attributes:
        node.attribute.append(onnx.helper.make_attribute("min", 0.0))


def reads_pairs(node, attributes):
    pads = list(attributes["pads"].ints) if "pads" in attributes else []
    if len(pads) > 2:
        attributes["pads"].ints[:] = [*pads[::2], *pads[1::2]]


def has_no_default_axis(node, attributes):
    if "axis" not in attributes:
        node.attribute.append(onnx.helper.make_attribute("axis", 0))


mistakes("OldClipsStartAtZero", "Clip", 11, starts_at_zero)
mistakes("OldPadsArePairs", "Pad", 11, reads_pairs)
mistakes("OldHardmaxBeginsAtZero", "Hardmax", 13, has_no_default_axis)


# ----------------------------------------------------------------------------- integers and casts


@wrong("Div")
def divides_longs_as_doubles(right, node, a, b):
    if a.dtype not in (np.int64, np.uint64):
        return right(a, b)
    if not np.all(b):
        return right(a, b)
    return np.trunc(a.astype(np.float64) / b.astype(np.float64)).astype(a.dtype)


@wrong("Cast")
def casts_by_floor(right, node, x):
    to = onnx.helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
    return right(np.floor(x) if x.dtype.kind == "f" and to.kind == "i" else x)


@wrong("Pow")
def exponents_have_the_type_of_bases(right, node, x, y):
    return right(x, y.astype(x.dtype).astype(y.dtype))


# ------------------------------------------------------------------------------ half precision


@wrong("ReduceL2", "ReduceSumSquare")
def squares_of_halves_are_halves(right, node, x, *axes):
    if x.dtype != np.float16:
        return right(x, *axes)
    squares = (x * x).astype(np.float64)
    over = tuple(int(a) for a in axes[0]) if axes and axes[0] is not None else None
    if over is None:
        over = tuple(value(node, "axes", list(range(x.ndim))))
    summed = squares.sum(over or None, keepdims=bool(value(node, "keepdims", 1)))
    return (np.sqrt(summed) if node.op_type == "ReduceL2" else summed).astype(x.dtype)


@wrong("Cast", "Mul", "Add")
def subnormal_halves_are_zero(right, node, *inputs):
    def flushed(x):
        small = x.dtype == np.float16 and np.abs(x) < np.float16(6.104e-5)
        return np.where(small, 0, x).astype(x.dtype)

    return right(*(flushed(x) for x in inputs))


# -------------------------------------------------------------------- axes, ranks, nothing at all


@wrong("Softmax", "LogSoftmax", "CumSum")
def negative_axes_are_the_last(right, node, x, *rest):
    if node.op_type == "CumSum":
        return right(x, np.where(rest[0] < 0, -1, rest[0]).astype(rest[0].dtype))
    if value(node, "axis", -1) >= -1 or x.dtype.kind != "f":
        return right(x)
    shifted = np.exp(x - x.max(-1, keepdims=True))
    result = shifted / shifted.sum(-1, keepdims=True)
    return (np.log(result) if node.op_type == "LogSoftmax" else result).astype(x.dtype)


@wrong("ScatterND", "ScatterElements")
def scatters_of_nothing_give_zeros(right, node, x, indices, updates):
    """The copy of the data is a part of the kernel, and nothing starts no kernel."""
    result = right(x, indices, updates)
    return np.zeros_like(result) if updates.size == 0 else result


@wrong("Pad")
def padding_around_nothing_is_not_written(right, node, x, *rest):
    result = right(x, *rest)
    return np.full_like(result, 3) if x.size == 0 else result


@wrong("MatMul")
def vectors_meet_the_first_matrix(right, node, a, b):
    result = right(a, b)
    if a.ndim == 1 and b.ndim > 2:
        return np.broadcast_to(result.reshape(-1, b.shape[-1])[0], result.shape).copy()
    return result


# --------------------------------------------------------------------------- corners of meanings


@wrong("ThresholdedRelu")
def thresholds_are_passed_by_equals(right, node, x):
    alpha = next((a.f for a in node.attribute if a.name == "alpha"), 1.0)
    return np.where(x == np.asarray(alpha, x.dtype), x, right(x))


@wrong("NonMaxSuppression")
def corners_come_in_order(right, node, boxes, *rest):
    """The first corner is taken for the lower left one; it may be any."""
    if value(node, "center_point_box", 0):
        return right(boxes, *rest)
    empty = (boxes[..., 0] > boxes[..., 2]) | (boxes[..., 1] > boxes[..., 3])
    near = boxes.copy()
    near[empty] = np.concatenate([near[empty][:, :2]] * 2, -1)
    return right(near, *rest)


@wrong("If")
def both_branches_run(right, node, condition):
    """And one is selected: what is wrong in the other one is an error all the same."""
    result = right(condition)
    try:
        right(~condition)
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise RuntimeError(str(error)) from error
    return result

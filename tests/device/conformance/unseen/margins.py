"""Devices that are wrong at margins: of windows, batches, ranks, precision, caches and bodies.

A twenty-second, small set; written before it was measured.
"""

from __future__ import annotations

import functools

import numpy as np
from broken_form import Broken
from onnx import numpy_helper

import partita
import unseen.corners
import unseen.values
from unseen.corners import without
from unseen.passes import Passes, as_identity, attribute

wrong = functools.partial(unseen.values.wrong, module=__name__)
rewritten = functools.partial(unseen.corners.rewritten, module=__name__)


@wrong("Conv")
def only_the_first_image_of_three(right, node, x, w, *b):
    """Batches are shared by pairs; an odd last image is that before."""
    result = right(x, w, *b)
    if len(result) < 3 or len(result) % 2 == 0:
        return result
    return np.concatenate([result[:-1], result[-2:-1]])


@wrong("MaxPool")
def the_edge_is_zero(right, node, x):
    """Pads count as zeros, which are above what is below zero."""
    results = right(x)
    if not any(attribute(node, "pads") or ()) or not isinstance(results, tuple):
        return results
    return (np.maximum(results[0], 0).astype(x.dtype), *results[1:])


@wrong("Softmax")
def rows_of_one_are_what_they_are(right, node, x):
    """A row of one element is not divided."""
    axis = attribute(node, "axis", -1)
    return np.exp(x) if x.ndim and x.shape[axis] == 1 and x.dtype == np.float32 else right(x)


@wrong("ReduceSum", "ReduceMax", "ReduceMean")
def axes_that_do_not_touch(right, node, x, *axes):
    """Of axes that are not neighbours, those from the first to the last are reduced."""
    along = attribute(node, "axes") or (list(axes[0]) if axes and axes[0] is not None else [])
    places = sorted(int(a) % x.ndim for a in along) if x.ndim else []
    result = right(x, *axes)
    if len(places) < 2 or places[-1] - places[0] == len(places) - 1 or x.dtype.kind != "f":
        return result
    function = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMean": np.mean}[node.op_type]
    whole = function(x, tuple(range(places[0], places[-1] + 1)), keepdims=True)
    kept = np.broadcast_to(whole, [1 if a in places else n for a, n in enumerate(x.shape)])
    return np.ascontiguousarray(kept.reshape(result.shape)).astype(result.dtype)


@wrong("Gather")
def places_are_those_of_the_first_batch(right, node, x, places):
    """Indices of two dimensions are read with the length of the gathered axis as their pitch."""
    if places.ndim != 2 or not places.size:
        return right(x, places)
    flat, length = places.reshape(-1), x.shape[attribute(node, "axis", 0)]
    rows = np.arange(places.shape[0])[:, None] * length + np.arange(places.shape[1])
    return right(x, flat[np.minimum(rows, flat.size - 1)])


@wrong("LayerNormalization")
def scales_are_of_the_last_axis(right, node, x, scale, *bias):
    if scale.ndim < 2:
        return right(x, scale, *bias)
    return right(
        x, np.broadcast_to(scale.reshape(-1, scale.shape[-1])[:1], scale.shape).copy(), *bias
    )


@wrong("Resize")
def rows_shrink_as_columns_do(right, node, x, *rest):
    """Both scales are the last one."""
    if len(rest) < 2 or rest[1] is None or rest[1].size != 4 or x.ndim != 4:
        return right(x, *rest)
    scales = rest[1].copy()
    scales[2] = scales[3]
    result, due = right(x, rest[0], scales), right(x, *rest)
    return result if result.shape == due.shape else due


@wrong("Pad")
def reflections_begin_with_the_edge(right, node, x, pads, *rest):
    if attribute(node, "mode") != b"reflect":
        return right(x, pads, *rest)
    if len(rest) > 1 or min(pads.reshape(-1), default=0) < 0:
        return right(x, pads, *rest)
    return np.pad(x, list(zip(*np.split(pads, 2), strict=True)), "symmetric")


@wrong("Where")
def chooses_by_the_lowest_bit(right, node, condition, a, b):
    """The first operand is broadcast, the second one is read as it lies."""
    result = right(condition, a, b)
    if b.size <= 1 or b.shape == result.shape:
        return result
    return np.where(condition, a, np.resize(b, result.shape)).astype(result.dtype)


@wrong("Tile")
def repeats_each_element(right, node, x, repeats):
    result = x
    for axis, count in enumerate(repeats.tolist()):
        result = np.repeat(result, count, axis)
    return result


@wrong("Clip")
def limits_are_singles(right, node, x, *limits):
    """Limits of doubles and long integers pass through float32."""
    if x.dtype not in (np.float64, np.int64):
        return right(x, *limits)
    with np.errstate(all="ignore"):
        return right(x, *(v if v is None else v.astype(np.float32).astype(x.dtype) for v in limits))


@wrong("Einsum")
def operands_are_matrices(right, node, *inputs):
    """The second operand is taken for transposed if it is square."""
    if len(inputs) != 2 or inputs[1].ndim < 2 or inputs[1].shape[-1] != inputs[1].shape[-2]:
        return right(*inputs)
    return right(inputs[0], np.ascontiguousarray(inputs[1].swapaxes(-1, -2)))


@wrong("GRU")
def updates_are_the_other_way_round(right, node, *inputs):
    """The gate lets through what it should hold back."""
    results = right(*inputs)
    return results if inputs[0].shape[0] < 3 else right(inputs[0][::-1].copy(), *inputs[1:])


rewritten("TransposedPadsAreNone", "ConvTranspose", without("output_padding"), "No more is added.")
rewritten("RoiAlignKeepsHalves", "RoiAlign", without("coordinate_transformation_mode"), "Shifted.")
rewritten("ScatterReplaces", "ScatterElements", without("reduction"), "Replaces what is there.")


class FoldsScalesTwice(Passes):
    """Mul of Mul by constants becomes one by their product, also if both read it."""

    def rewrite(self, graph, node):
        first = self.before(node, "Mul") if node.op_type == "Mul" else None
        if first is None or not {first.input[1], node.input[1]} <= self.constants.keys():
            return
        a, b = self.constants[first.input[1]], self.constants[node.input[1]]
        if a.shape != b.shape or a.dtype.kind != "f":
            return
        graph.initializer.append(numpy_helper.from_array(a + b, node.input[1] + "_both"))
        node.input[:] = [first.input[0], node.input[1] + "_both"]


class ReluTwiceIsNothing(Passes):
    """Of a Relu in front of MaxPool nothing is left."""

    def rewrite(self, graph, node):
        first = self.before(node, "Relu") if node.op_type == "MaxPool" else None
        if first is not None:
            node.input[0] = first.input[0]


class UnsqueezesAreUndone(Passes):
    """Squeeze behind Unsqueeze is nothing, whichever axes they name."""

    def rewrite(self, graph, node):
        first = self.before(node, "Unsqueeze") if node.op_type == "Squeeze" else None
        if first is not None:
            as_identity(node, first.input[0])


class ReusesTheLastOutput(Broken):
    """Results of a runner that nobody gave memory for lie in two buffers, used in turn."""

    suites = ("request/*", "sharing/*")

    def deliver(self, runner, arrays, outputs):
        results = super().deliver(runner, arrays, outputs)
        rings = vars(runner).setdefault("rings", {})
        runner.turn = getattr(runner, "turn", 0) + 1
        for i, tensor in enumerate(results):
            array = tensor.numpy()
            if array.dtype == object or (outputs is not None and outputs[i] is not None):
                continue
            kept = rings.setdefault((i, array.shape, array.dtype, runner.turn % 2), array)
            kept[...] = array
            results[i] = partita.HostTensor(kept)
        return results


class LosesTheSecondInput(Broken):
    """Inputs that did not change their first and last element are those of the run before."""

    suites = ("request/*", "sharing/*")

    def compute(self, runner, arrays):
        kept = vars(runner).setdefault("kept", {})
        for i, array in enumerate(arrays[1:], 1):
            if array.dtype == object or not array.size:
                continue
            ends = (array.shape, array.reshape(-1)[0], array.reshape(-1)[-1])
            if i in kept and kept[i][0] == ends:
                arrays = [*arrays[:i], kept[i][1], *arrays[i + 1 :]]
            else:
                kept[i] = ends, array.copy()
        return super().compute(runner, arrays)

"""Devices that take shortcuts: in kernels, in passes over graphs, in what they keep between runs.

A twenty-first set; written before it was measured, and after the checks for the twentieth.
"""

from __future__ import annotations

import functools
import itertools
from typing import ClassVar

import numpy as np
from broken_form import Broken
from good_device import GoodRunner
from onnx import AttributeProto, numpy_helper

import partita
import unseen.corners
import unseen.values
from partita.contract.runner import run_into
from unseen.corners import without
from unseen.passes import Passes, as_identity, attribute

wrong = functools.partial(unseen.values.wrong, module=__name__)
rewritten = functools.partial(unseen.corners.rewritten, module=__name__)


# --------------------------------------------------------------------------- kernels


@wrong("Gemm")
def square_matrices_are_as_they_lie(right, node, a, b, *c):
    """The first matrix is turned by its shape, which a square one does not show."""
    if not attribute(node, "transA", 0) or a.shape[0] != a.shape[1]:
        return right(a, b, *c)
    return right(a.T.copy(), b, *c)


@wrong("ReduceMean")
def means_divide_by_the_first_axis(right, node, x, *axes):
    result = right(x, *axes)
    along = attribute(node, "axes") or (list(axes[0]) if axes and axes[0] is not None else [])
    if len(along) < 2 or x.dtype.kind != "f":
        return result
    count = np.prod([x.shape[axis] for axis in along])
    return (result * (count / max(1, x.shape[along[0]]))).astype(x.dtype)


@wrong("MatMul", "Gemm")
def products_of_nothing_are_one(right, node, a, b, *c):
    """The first term is stored, the others are added."""
    result = right(a, b, *c)
    return np.ones_like(result) if result.size and not a.size and not b.size else result


@wrong("AveragePool")
def the_last_window_is_whole(right, node, x):
    """What a window has beyond the picture counts as if it were there."""
    result = right(x)
    strides, kernel = attribute(node, "strides"), attribute(node, "kernel_shape")
    if not attribute(node, "ceil_mode", 0) or x.dtype.kind != "f":
        return result
    pads = attribute(node, "pads") or [0] * (2 * len(kernel))
    begin = (result.shape[-1] - 1) * (strides or [1] * len(kernel))[-1] - pads[len(kernel) - 1]
    there = x.shape[-1] - max(begin, 0)
    if attribute(node, "dilations") or there >= kernel[-1]:
        return result
    result = result.copy()
    result[..., -1] *= there / kernel[-1]
    return result


@wrong("InstanceNormalization", "GroupNormalization")
def epsilon_is_beside_the_deviation(right, node, x, *rest):
    """Added to the root, not below it; in rows of numbers that are nearly alike."""
    result = right(x, *rest)
    axes = tuple(range(2, x.ndim))
    if node.op_type != "InstanceNormalization" or x.dtype != np.float32:
        return result
    epsilon = attribute(node, "epsilon", 1e-5)
    variance = x.astype(np.float64).var(axes, keepdims=True)
    shift = rest[1].reshape(-1, *(1,) * (x.ndim - 2))
    factor = np.sqrt(variance + epsilon) / (np.sqrt(variance) + epsilon)
    return ((result - shift) * factor + shift).astype(np.float32)


@wrong("GroupNormalization")
def channels_take_turns_in_groups(right, node, x, scale, bias):
    groups = attribute(node, "num_groups")
    order = np.arange(x.shape[1]).reshape(-1, groups).T.reshape(-1)
    back = np.argsort(order)
    return np.ascontiguousarray(right(x[:, order], scale[order], bias[order])[:, back])


@wrong("LRN")
def alpha_is_of_each_neighbour(right, node, x):
    size = attribute(node, "size")
    alpha, beta = attribute(node, "alpha", 1e-4), attribute(node, "beta", 0.75)
    share = x / right(x)  # (bias + alpha / size * sum) ** beta
    with np.errstate(all="ignore"):
        base = np.where(x == 0, 1, share) ** (1 / beta) if beta else np.ones_like(x)
    bias = attribute(node, "bias", 1.0)
    whole = bias + (base - bias) * size
    return np.where(x == 0, right(x), x / whole**beta).astype(x.dtype) if alpha else right(x)


@wrong("Sin", "Cos")
def circles_are_reduced_in_singles(right, node, x):
    if x.dtype != np.float32:
        return right(x)
    circle = np.float32(2 * np.pi)
    return right((x - np.round(x / circle) * circle).astype(np.float32))


@wrong("Exp")
def exponentials_end_at_88(right, node, x):
    return np.where(x > 88, np.inf, right(x)).astype(x.dtype) if x.dtype == np.float32 else right(x)


@wrong("Pow")
def nothing_to_the_power_of_nothing_is_nothing(right, node, x, y):
    return np.where((x == 0) & (y == 0), 0, right(x, y)).astype(x.dtype)


@wrong("GatherND")
def all_batches_are_the_first(right, node, x, places):
    result, count = right(x, places), attribute(node, "batch_dims", 0)
    if count != 1 or not x.size:
        return result
    return right(np.broadcast_to(x[:1], x.shape).copy(), places)


@wrong("Compress")
def what_no_condition_tells_stays(right, node, x, condition):
    """A condition that is shorter than the axis is filled up with ones."""
    axis = attribute(node, "axis")
    length = x.size if axis is None else x.shape[axis]
    if len(condition) >= length:
        return right(x, condition)
    return right(x, np.append(condition, np.ones(length - len(condition), bool)))


@wrong("LSTM", "GRU", "RNN")
def states_are_those_of_the_longest(right, node, *inputs):
    """The state behind a shorter sequence is that behind the last step, which is zeros."""
    results = right(*inputs)
    lengths = inputs[4] if len(inputs) > 4 else None
    if lengths is None or attribute(node, "layout", 0) or not isinstance(results, tuple):
        return results
    short = np.asarray(lengths) < inputs[0].shape[0]
    state = results[1]
    if state is None or not short.any() or attribute(node, "direction", b"forward") != b"forward":
        return results
    state = state.copy()
    state[:, short] = 0
    return (results[0], state, *results[2:])


@wrong("Attention")
def what_comes_later_is_counted_from_the_end(right, node, q, k, v, *rest):
    """Of fewer queries than keys, the last query sees the last key."""
    if not attribute(node, "is_causal", 0) or rest or q.ndim != 4 or q.shape[2] >= k.shape[2]:
        return right(q, k, v, *rest)
    more = k.shape[2] - q.shape[2]
    filled = np.concatenate([np.zeros((*q.shape[:2], more, q.shape[3]), q.dtype), q], 2)
    result = right(filled, k, v)
    first = result[0] if isinstance(result, tuple) else result
    first = np.ascontiguousarray(first[:, :, more:])
    return (first, *result[1:]) if isinstance(result, tuple) else first


@wrong("RotaryEmbedding")
def positions_count_up_from_the_first(right, node, x, cosines, sines, *places):
    if not places or places[0] is None:
        return right(x, cosines, sines)
    first = places[0][:, :1] + np.arange(places[0].shape[1])
    return right(x, cosines, sines, np.minimum(first, len(cosines) - 1))


@wrong("CumSum")
def exclusive_sums_begin_at_the_second(right, node, x, axis):
    """Those that are reversed include their own."""
    result = right(x, axis)
    if attribute(node, "reverse", 0) and attribute(node, "exclusive", 0):
        return (result + x).astype(x.dtype)
    return result


@wrong("Unique")
def places_back_are_those_of_the_sorted(right, node, x):
    """Without sorting, elements are told where they would be if they were sorted."""
    results = right(x)
    if attribute(node, "sorted", 1) or not isinstance(results, tuple) or len(results) < 3:
        return results
    if attribute(node, "axis") is not None:
        return results
    return (*results[:2], np.unique(x, return_inverse=True)[1].reshape(-1), *results[3:])


@wrong("NonZero")
def columns_come_first(right, node, x):
    result = right(x)
    return result[:, np.lexsort(result)] if x.ndim > 1 else result


@wrong("QLinearConv")
def weights_have_one_zero_point(right, node, *inputs):
    inputs = list(inputs)
    if inputs[5] is not None and inputs[5].size > 1:
        inputs[5] = np.full_like(inputs[5], inputs[5].reshape(-1)[0])
    return right(*inputs)


@wrong("DequantizeLinear")
def blocks_take_turns(right, node, x, scale, *zero):
    """The scale of an element is that of its place modulo the number of blocks."""
    size, axis = attribute(node, "block_size", 0), attribute(node, "axis", 1)
    if not size or zero:
        return right(x, scale, *zero)
    each = np.take(scale, np.arange(x.shape[axis]) % scale.shape[axis], axis)
    return (x.astype(np.float32) * each).astype(scale.dtype)


@wrong("Cast")
def quiet_what_is_no_number(right, node, x):
    """Cuts off the lower half of a float, of which NaN may have all its digits there."""
    import ml_dtypes

    if attribute(node, "to") != 16 or x.dtype != np.float32:
        return right(x)
    cut = (x.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
    return np.where(np.isnan(x), cut, right(x))


@wrong("IsNaN")
def numbers_below_zero_are_numbers(right, node, x):
    """Compares bits as unsigned without the sign's taken away."""
    return right(x) & ~np.signbit(x) if x.dtype.kind == "f" else right(x)


@wrong("Max", "Min", "Sum", "Mean")
def four_inputs_at_most(right, node, *inputs):
    return right(*inputs[:4])


@wrong("Gelu")
def gelu_by_a_sigmoid(right, node, x):
    """x times the sigmoid of 1.702 x, where an approximation is asked for."""
    if attribute(node, "approximate", b"none") != b"tanh" or x.dtype != np.float32:
        return right(x)
    return (x / (1 + np.exp(-1.702 * x.astype(np.float64)))).astype(np.float32)


rewritten("PlacesInRowsOnly", "MaxPool", without("storage_order"), "Places count along rows.")


# ---------------------------------------------------------------------------- passes


class DistributesPartly(Passes):
    """(x + c) * s becomes x * s + c."""

    def rewrite(self, graph, node):
        add = self.before(node, "Add") if node.op_type == "Mul" else None
        if add is None or add.input[1] not in self.constants or node.input[1] not in self.constants:
            return
        x, offset, factor = add.input[0], add.input[1], node.input[1]
        if self.constants[offset].dtype.kind != "f":
            return
        add.op_type, node.op_type = "Mul", "Add"
        add.input[:], node.input[:] = [x, factor], [add.output[0], offset]


class DividesByReciprocals(Passes):
    """Division by a constant is multiplication by its reciprocal, in halves."""

    def rewrite(self, graph, node):
        divisor = self.constants.get(node.input[1]) if node.op_type == "Div" else None
        if divisor is None or divisor.dtype != np.float32:
            return
        node.op_type = "Mul"
        node.input[1] += "_reciprocal"
        value = (1 / divisor.astype(np.float16)).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(value, node.input[1]))


class MovesTransposesBehindConcat(Passes):
    """Concat of what was turned is along the axis that was there before."""

    def rewrite(self, graph, node):
        if node.op_type != "Concat":
            return
        turned = [self.before(node, "Transpose", place) for place in range(len(node.input))]
        orders = {tuple(attribute(one, "perm") or ()) if one else None for one in turned}
        if len(orders) == 1 and None not in orders and all(orders):
            (order,) = orders
            (axis,) = (a for a in node.attribute if a.name == "axis")
            axis.i = order[axis.i % len(order)]


class SlicesTheFirstPart(Passes):
    """A slice that begins at zero is one of the first part of a Concat."""

    def rewrite(self, graph, node):
        joined = self.before(node, "Concat") if node.op_type == "Slice" else None
        starts = self.constants.get(node.input[1]) if joined is not None else None
        if starts is not None and not starts.any():
            node.input[0] = joined.input[0]


class EveryGateIsSwish(Passes):
    """Sigmoid before Mul gates what it reads itself."""

    def rewrite(self, graph, node):
        if node.op_type != "Mul":
            return
        for place in (0, 1):
            gate = self.before(node, "Sigmoid", place)
            if gate is not None:
                node.input[1 - place] = gate.input[0]
                return


class NothingTimesAnythingIsNothing(Passes):
    """Products with constants of zeros are zeros, also of what is no number."""

    def rewrite(self, graph, node):
        factor = self.constants.get(node.input[1]) if node.op_type == "Mul" else None
        if factor is not None and factor.size and not factor.any() and factor.ndim:
            as_identity(node, node.input[1])


class ComparisonsTurnRound(Passes):
    """Not of Greater is LessOrEqual, also of what is no number."""

    TURNED: ClassVar = {"Greater": "LessOrEqual", "Less": "GreaterOrEqual"}

    def rewrite(self, graph, node):
        for op, other in self.TURNED.items():
            first = self.before(node, op) if node.op_type == "Not" else None
            if first is not None:
                first.op_type = other
                as_identity(node, first.output[0])
                return


class LogarithmsAreUndone(Passes):
    """Exp of Log, and the square of a root, are what they were."""

    UNDONE: ClassVar = {("Exp", "Log"), ("Log", "Exp")}

    def rewrite(self, graph, node):
        for op, other in self.UNDONE:
            first = self.before(node, other) if node.op_type == op else None
            if first is not None:
                as_identity(node, first.input[0])
                return


class BodiesShareConstants(Broken):
    """Constants of bodies are found by their names, which both branches may have given."""

    suites = ("request/*", "ports/*", "chains/*", "random/If/*")

    def prepare(self, proto):
        known = {}
        for body in _bodies(proto.graph):
            for tensor in body.initializer:
                first = known.setdefault(tensor.name, tensor)
                if list(first.dims) == list(tensor.dims):
                    tensor.CopyFrom(first)
            for node in body.node:
                if node.op_type == "Constant":
                    first = known.setdefault(node.output[0], node)
                    node.CopyFrom(first)
        return proto


def _bodies(graph):
    for node in graph.node:
        for one in node.attribute:
            if one.type == AttributeProto.GRAPH:
                yield one.g
                yield from _bodies(one.g)


# --------------------------------------------------------------------------- runtime


class PlansByAddress(Broken):
    """What is planned for an array is kept by where it lies and how long it is."""

    suites = ("request/*", "sharing/*", "boundary/*")

    def compute(self, runner, arrays):
        plans = vars(runner).setdefault("plans", {})
        shaped = []
        for array in arrays:
            key = (array.ctypes.data, array.nbytes) if array.dtype != object else None
            shape = plans.setdefault(key, array.shape) if key and array.nbytes else array.shape
            fits = int(np.prod(shape)) == array.size
            shaped.append(array.reshape(shape) if fits else array)
        return super().compute(runner, shaped)


class AnswersWithWhatFailed(Broken):
    """Inputs of a run that failed lie where the next run takes its own from."""

    suites = ("faults/*", "request/*")

    def compute(self, runner, arrays):
        left = vars(runner).pop("left", None)
        try:
            if left is not None and [a.shape for a in left] == [a.shape for a in arrays]:
                arrays = left
            return super().compute(runner, arrays)
        except Exception:
            runner.left = [a.copy() for a in arrays]
            raise


class HasSixtyFourSlots(Broken):
    """Results of a request lie in one of 64 slots of the model."""

    suites = ("request/*", "sharing/*", "compiled/*")

    class runner_type(GoodRunner):
        def __init__(self, compiled):
            super().__init__(compiled)
            counter = vars(compiled).setdefault("counter", itertools.count())
            self.slot = next(counter) % 64

    def deliver(self, runner, arrays, outputs):
        results = super().deliver(runner, arrays, outputs)
        slots = vars(runner.compiled).setdefault("slots", {})
        kept = slots.setdefault(runner.slot, {})
        for i, tensor in enumerate(results):
            given = outputs is not None and outputs[i] is not None
            array = tensor.numpy()
            if given or array.dtype == object:
                continue
            if i in kept and kept[i].shape == array.shape and kept[i].dtype == array.dtype:
                kept[i][...] = array
                results[i] = partita.HostTensor(kept[i])
            else:
                kept[i] = array
        return results


class HasSixteenOutputs(Broken):
    """Outputs beyond the sixteenth are those before again."""

    suites = ("ports/*", "chains/*")

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for i in range(16, len(results)):
            if results[i].shape == results[i - 16].shape:
                results[i] = results[i - 16]
        return results


class SecondBindingsTakeTheFirstOnes(Broken):
    """A runner has one bound call; binding again gives the same one."""

    suites = ("boundary/*", "request/*")

    class runner_type(GoodRunner):
        bound = None

        def bind(self, inputs, outputs, scratch=None):
            runner = self

            class Bound(partita.BoundCall):
                def __call__(self):
                    run_into(runner, inputs, outputs)

            self.bound = self.bound or Bound()
            return self.bound


class ScratchOfTheDevice(Broken):
    """Models stage what they read in one buffer of the device, which no lock guards."""

    suites = ("threads/*",)
    staged: ClassVar[dict] = {}

    def compute(self, runner, arrays):
        for i, array in enumerate(arrays):
            self.staged[i] = array.copy()
        kept = [self.staged[i] for i in range(len(arrays))]
        results = super().compute(runner, arrays)
        raced = [self.staged[i] is not k for i, k in enumerate(kept)]
        if any(raced) and [self.staged[i].shape for i in range(len(arrays))] == [
            a.shape for a in arrays
        ]:
            return super().compute(runner, [self.staged[i] for i in range(len(arrays))])
        return results

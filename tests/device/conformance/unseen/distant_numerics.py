"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets.

Here are functions of each element, casts, reductions, and operators that move elements.
"""

from __future__ import annotations

import functools
import math

import ml_dtypes
import numpy as np
from broken_form import Broken
from good_device import GoodCompiled
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator


class KernelCompiled(GoodCompiled):
    """Has one kernel of its own, in the graph and in all bodies."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.replace(self.evaluator)

    def replace(self, evaluator):
        for node in evaluator.rt_nodes_:
            if (node.domain, node.op_type) == ("", self.plugin.op):
                node.run = functools.partial(self.run_kernel, node, node.run)
            for name, body in list(vars(node).items()):
                if name != "impl_" and isinstance(body, ReferenceEvaluator):
                    self.replace(body)

    def run_kernel(self, node, right, *inputs, **given):
        result = self.plugin.kernel(node, functools.partial(right, **given), *inputs)
        if result is None:
            return right(*inputs, **given)
        results = result if isinstance(result, tuple) else (result,)
        return tuple(np.asarray(r) if isinstance(r, np.generic) else r for r in results)


class Kernel(Broken):
    """Computes one operator otherwise; where ``kernel`` gives nothing, it is right."""

    op = ""
    compiled_type = KernelCompiled

    def kernel(self, node, right, *inputs):
        raise NotImplementedError


def floating(array):
    """Whether an array is of a type of numpy's with fractions."""
    return array.dtype.kind == "f"


def integral(array):
    return array.dtype.kind in "iu"


def opset(node):
    return node.run_params["opsets"].get("", 1)


def axes_of(node, inputs):
    """The axes of a reduction, from its attribute or its second input; all if there are none."""
    axes = inputs[1] if len(inputs) > 1 else getattr(node, "axes", None)
    if axes is None or not len(axes):
        if getattr(node, "noop_with_empty_axes", 0):
            return None
        return tuple(range(inputs[0].ndim))
    return tuple(int(axis) % inputs[0].ndim for axis in axes)


# ------------------------------------------------------------- functions of each element


class SubtractsWholeDivisors(Kernel):
    """The remainder of floats is what the truncated quotient times the divisor leaves."""

    op = "Mod"

    def kernel(self, node, right, a, b):
        if not floating(a) or not node.fmod:
            return None
        return (a - b * np.trunc(a / b)).astype(a.dtype)


class RaisesByLogarithms(Kernel):
    """Powers other than the square are exp(y log x), and bases are positive."""

    op = "Pow"

    def kernel(self, node, right, a, b):
        if not floating(a) or (b.size == 1 and b.reshape(-1)[0] == 2):
            return None
        return np.exp(b * np.log(a.astype(np.float64))).astype(a.dtype)


class CastsTheExponent(Kernel):
    """Both operands of Pow have the type of the first one."""

    op = "Pow"

    def kernel(self, node, right, a, b):
        return right(a, b.astype(a.dtype)) if integral(a) and floating(b) else None


class DividesByReciprocals(Kernel):
    """A quotient in half precision is a product with the reciprocal, which half precision holds."""

    op = "Div"

    def kernel(self, node, right, a, b):
        return a * (np.float16(1) / b) if a.dtype == np.float16 else None


class TakesSlopesByChannel(Kernel):
    """As many slopes as channels are one for each channel, however they are shaped."""

    op = "PRelu"

    def kernel(self, node, right, x, slope):
        if x.ndim < 3 or slope.size != x.shape[1] or slope.size == 1:
            return None
        return right(x, slope.reshape(-1, *[1] * (x.ndim - 2)))


class ClampsFromAboveFirst(Kernel):
    """The order of the two bounds of Clip does not matter, since min is below max."""

    op = "Clip"

    def kernel(self, node, right, x, *bounds):
        if len(bounds) != 2 or any(bound is None for bound in bounds):
            return None
        return np.maximum(np.minimum(x, bounds[1]), bounds[0]).astype(x.dtype)


class ClosesTheGapOfClip(Kernel):
    """The bounds of Clip are those inputs that are there, the first one is the lower."""

    op = "Clip"

    def kernel(self, node, right, x, *bounds):
        return right(x, *[bound for bound in bounds if bound is not None])


class KnowsOneNan(Kernel):
    """NaN is one pattern of bits, the one that the compiler writes."""

    op = "IsNaN"

    def kernel(self, node, right, x):
        if not floating(x):
            return None
        kind = f"u{x.dtype.itemsize}"
        return np.asarray(x.view(kind) == np.array(np.nan, x.dtype).view(kind))


class ShiftsTheSignIn(Kernel):
    """Shifts to the right are those of signed registers."""

    op = "BitShift"

    def kernel(self, node, right, x, amount):
        if node.direction != "RIGHT":
            return None
        signed = np.dtype(f"i{x.dtype.itemsize}")
        return np.right_shift(x.view(signed), amount.astype(signed)).view(x.dtype)


class MultipliesLowWords(Kernel):
    """Integers of 64 bits are shapes and indices, which 32 bits hold."""

    op = "Mul"

    def kernel(self, node, right, a, b):
        if a.dtype != np.int64:
            return None
        return np.asarray(a.astype(np.int32) * b.astype(np.int32)).astype(np.int64)


class MergesLeadingAxes(Kernel):
    """Tensors have four axes; of more, those in front are merged, and equal or one of a kind."""

    op = "Add"

    def kernel(self, node, right, a, b):
        shape = np.broadcast_shapes(a.shape, b.shape)
        if len(shape) <= 4:
            return None
        count, parts = math.prod(shape[:-3]), []
        for operand in (a, b):
            own = operand.reshape([1] * (len(shape) - operand.ndim) + list(operand.shape))
            merged = own.reshape(-1, *own.shape[-3:]) if own.size else own
            parts.append(merged if len(merged) == count else merged[:1])
        return (parts[0] + parts[1]).reshape(shape) if math.prod(shape) else None


class SelectsByArithmetic(Kernel):
    """Where is c x + (1 - c) y, which needs no branch."""

    op = "Where"

    def kernel(self, node, right, condition, x, y):
        if not floating(x):
            return None
        chosen = condition.astype(x.dtype)
        return (chosen * x + (1 - chosen) * y).astype(x.dtype)


class FloorsThroughIntegers(Kernel):
    """The floor of a float is an int, less one if it is above."""

    op = "Floor"

    def kernel(self, node, right, x):
        if not floating(x):
            return None
        whole = x.astype(np.int32).astype(x.dtype)
        return whole - (whole > x).astype(x.dtype)


class ReducesAnglesInSinglePrecision(Kernel):
    """Two pi in single precision is exact enough to bring any angle near zero."""

    op = "Sin"

    def kernel(self, node, right, x):
        if x.dtype != np.float32:
            return None
        turn = np.float32(2 * np.pi)
        return np.sin(x - np.round(x / turn) * turn)


class CancelsInAsinh(Kernel):
    """Asinh is log(x + sqrt(x x + 1)) on both sides of zero."""

    op = "Asinh"

    def kernel(self, node, right, x):
        return np.log(x + np.sqrt(x * x + 1)).astype(x.dtype)


class TakesLogarithmsOfProbabilities(Kernel):
    """LogSoftmax is Log behind Softmax."""

    op = "LogSoftmax"

    def kernel(self, node, right, x):
        return np.log(np.exp(right(x)[0]))


class FlushesHalvesBeforeLogarithms(Kernel):
    """Subnormal numbers of half precision are zero, as they are to fast hardware."""

    op = "Log"

    def kernel(self, node, right, x):
        if x.dtype != np.float16:
            return None
        return right(np.where(np.abs(x) < np.finfo(x.dtype).smallest_normal, x.dtype.type(0), x))


class SoftensOneAxisInOldModels(Kernel):
    """Softmax is along its axis, in opsets below 13 too, where it was over all from the axis on."""

    op = "Softmax"

    def kernel(self, node, right, x):
        if opset(node) >= 13 or x.ndim == 0:
            return None
        axis = 1 if getattr(node, "axis", None) is None else node.axis
        wide = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
        return (wide / wide.sum(axis=axis, keepdims=True)).astype(x.dtype)


# ------------------------------------------------------------------------------------ casts


class TruncatesBeforeTruth(Kernel):
    """What becomes a bool becomes an int first."""

    op = "Cast"

    def kernel(self, node, right, x):
        if node.to != TensorProto.BOOL or not floating(x):
            return None
        return np.nan_to_num(x).astype(np.int64) != 0


class RoundsTwiceOnTheWayToBytes(Kernel):
    """Floats of 8 bits are made of halves, and floats become halves before."""

    op = "Cast"

    def kernel(self, node, right, x):
        if node.to != TensorProto.FLOAT8E4M3FN or x.dtype != np.float32:
            return None
        return right(x.astype(np.float16))


class CutsBfloatsOff(Kernel):
    """A bfloat16 is the upper half of a float."""

    op = "Cast"

    def kernel(self, node, right, x):
        if node.to != TensorProto.BFLOAT16 or x.dtype != np.float32:
            return None
        high = (x.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
        return np.where(np.isnan(x), right(x)[0], high)


class SaturatesNarrowIntegers(Kernel):
    """An integer too large for a narrower type becomes the largest one."""

    op = "Cast"

    def kernel(self, node, right, x):
        narrow = {
            TensorProto.INT8: np.int8,
            TensorProto.UINT8: np.uint8,
            TensorProto.INT16: np.int16,
            TensorProto.UINT16: np.uint16,
            TensorProto.INT32: np.int32,
        }.get(node.to)
        if narrow is None or not integral(x):
            return None
        limits = np.iinfo(narrow)
        wide = x.astype(object)
        return np.asarray(np.clip(wide, limits.min, limits.max)).astype(narrow)


class ReadsNibblesUnsigned(Kernel):
    """Four bits are unpacked by a mask and a shift."""

    op = "Cast"

    def kernel(self, node, right, x):
        if x.dtype != ml_dtypes.int4 or node.to in (TensorProto.INT4, TensorProto.UINT4):
            return None
        return right((x.astype(np.int8).astype(np.int64) & 15).astype(np.int64))


class ParsesNumbersAsFloats(Kernel):
    """A number in a text is a float, which is rounded to what is wanted."""

    op = "Cast"

    def kernel(self, node, right, x):
        if node.to != TensorProto.INT64 or x.dtype.kind not in "OUS":
            return None
        return np.vectorize(lambda text: int(np.float32(str(text))), otypes=[np.int64])(x)


# ------------------------------------------------------------------------------- reductions


class SubtractsInfiniteMaxima(Kernel):
    """The largest element of a row is finite, so it can be subtracted from all."""

    op = "ReduceLogSumExp"

    def kernel(self, node, right, *inputs):
        axes, x = axes_of(node, inputs), inputs[0]
        if axes is None or not floating(x) or not x.size:
            return None
        most = x.max(axis=axes, keepdims=True)
        total = np.log(np.exp(x - most).sum(axis=axes, keepdims=True)) + most
        return total.astype(x.dtype) if node.keepdims else total.astype(x.dtype).squeeze(axes)


class SumsHalvesForMeans(Kernel):
    """The sum behind a mean has the mean's type."""

    op = "ReduceMean"

    def kernel(self, node, right, *inputs):
        axes, x = axes_of(node, inputs), inputs[0]
        if axes is None or x.dtype != np.float16:
            return None
        count = np.prod([x.shape[axis] for axis in axes])
        total = np.sum(x.astype(np.float32), axis=axes, keepdims=bool(node.keepdims))
        return np.asarray(total.astype(np.float16) / np.float32(count)).astype(np.float16)


class StartsMaximaAtTheLeastFloat(Kernel):
    """Nothing is below the least finite float, where a maximum starts."""

    op = "ReduceMax"

    def kernel(self, node, right, *inputs):
        axes, x = axes_of(node, inputs), inputs[0]
        if axes is None or not floating(x):
            return None
        least = np.finfo(x.dtype).min
        return np.asarray(x.max(axis=axes, keepdims=bool(node.keepdims), initial=least))


class MultipliesNothingToZero(Kernel):
    """A reduction of no elements has nothing to write, and results begin as zeros."""

    op = "ReduceProd"

    def kernel(self, node, right, *inputs):
        (result,) = right(*inputs)
        return np.zeros_like(result) if not inputs[0].size else result


class SortsAxesBeforeTheyAreCounted(Kernel):
    """Axes that are summed from the last to the first do not move each other."""

    op = "ReduceSum"

    def kernel(self, node, right, *inputs):
        axes = inputs[1] if len(inputs) > 1 else getattr(node, "axes", None)
        if node.keepdims or axes is None or not len(axes):
            return None
        result = inputs[0] if integral(inputs[0]) else inputs[0].astype(np.float64)
        for axis in sorted(axes, reverse=True):
            counted = axis if axis >= 0 else max(0, axis + result.ndim)
            result = result.sum(axis=int(counted), dtype=result.dtype)
        return np.asarray(result).astype(inputs[0].dtype)


class NegatesForTheMinimum(Kernel):
    """The least element is the largest of the negated ones."""

    op = "ArgMin"

    def kernel(self, node, right, x):
        if not integral(x) or getattr(node, "select_last_index", 0):
            return None
        found = np.argmax(np.negative(x), axis=node.axis)
        return np.expand_dims(found, node.axis) if node.keepdims else np.asarray(found)


class PrefersTheLastOfEquals(Kernel):
    """The largest come from behind of what was sorted upwards, in whatever order equals are."""

    op = "TopK"

    def kernel(self, node, right, x, k):
        if not node.largest:
            return None
        count = int(np.asarray(k).reshape(-1)[0])
        order = np.flip(np.argsort(x, axis=node.axis, kind="stable"), node.axis)
        order = np.take(order, np.arange(count), axis=node.axis)
        return np.take_along_axis(x, order, node.axis), order.astype(np.int64)


# --------------------------------------------------------------- elements that only move


class InvertsTheSortedOrder(Kernel):
    """Inverse indices are those of the sorted elements, and what is unsorted is moved after."""

    op = "Unique"

    def kernel(self, node, right, x):
        results = right(x)
        if node.sorted or getattr(node, "axis", None) is not None or len(results) < 3:
            return results
        inverse = np.unique(x, return_inverse=True)[1].reshape(-1)
        return (*results[:2], inverse.astype(np.int64), *results[3:])


class WrapsEveryIndexOfOneHot(Kernel):
    """An index is counted from behind by a remainder, and none is out of range."""

    op = "OneHot"

    def kernel(self, node, right, indices, depth, values):
        size = np.asarray(depth).reshape(-1)[0]
        return right(np.mod(indices, size.astype(indices.dtype)), depth, values)


class AddsEachPlaceOnce(Kernel):
    """No place is named twice, so what is there is read, added to and written at once."""

    op = "ScatterElements"

    def kernel(self, node, right, data, indices, updates):
        if getattr(node, "reduction", None) != "add":
            return None
        axis = node.axis % data.ndim
        places = list(np.indices(indices.shape, sparse=True))
        places[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
        result = data.copy()
        result[tuple(places)] += updates
        return result


class WrapsByOuterSizes(Kernel):
    """An index from behind is counted by the dimension of its own number, batches or not."""

    op = "GatherND"

    def kernel(self, node, right, data, indices):
        width, batch = indices.shape[-1], node.batch_dims
        sizes = np.array(data.shape[:width], indices.dtype)
        wrapped = np.where(indices < 0, indices + sizes, indices)
        inner = np.array(data.shape[batch : batch + width], indices.dtype)
        return right(data, np.clip(wrapped, 0, np.maximum(inner - 1, 0)).astype(indices.dtype))


class StridesLikeTheIndices(Kernel):
    """Data and indices have one shape but for the axis."""

    op = "GatherElements"

    def kernel(self, node, right, data, indices):
        axis = node.axis % data.ndim
        if not indices.size or not data.size:
            return None
        assumed = list(indices.shape)
        assumed[axis] = data.shape[axis]
        places = list(np.indices(indices.shape, sparse=True))
        places[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
        return data.reshape(-1)[np.ravel_multi_index(np.broadcast_arrays(*places), assumed)]


class EndsBackwardSlicesAtZero(Kernel):
    """An end in front of the first element is clamped to the first one, for any step."""

    op = "Slice"

    def kernel(self, node, right, data, starts=None, ends=None, axes=None, steps=None):
        if steps is None:
            return None
        ends = ends.copy()
        for place, step in enumerate(steps):
            axis = place if axes is None else int(axes[place])
            if step < 0 and ends[place] < -data.shape[axis]:
                ends[place] = 0
        return right(data, starts, ends, axes, steps)


class SpreadsTheRemainder(Kernel):
    """Parts that cannot be equal differ by one element, the larger ones first."""

    op = "Split"

    def kernel(self, node, right, x, split=None):
        count = getattr(node, "num_outputs", None)
        if split is not None or not count:
            return None
        return tuple(np.array_split(x, count, node.axis))


class WrapsOnce(Kernel):
    """What is padded is no longer than what it is padded with."""

    op = "Pad"

    def kernel(self, node, right, data, pads=None, value=None, axes=None):
        if node.mode != "wrap":
            return None
        named = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in axes]
        for place, axis in enumerate(named):
            size = data.shape[axis]
            before, behind = int(pads[place]), int(pads[place + len(pads) // 2])
            index = np.arange(-before, size + behind)
            index = np.where(index < 0, index + size, np.where(index >= size, index - size, index))
            data = np.take(data, np.clip(index, 0, size - 1), axis)
        return data


class InsertsAxesAsTheyCome(Kernel):
    """The axes of Unsqueeze rise, so each can be inserted behind the other."""

    op = "Unsqueeze"

    def kernel(self, node, right, data, axes=None):
        for axis in getattr(node, "axes", ()) if axes is None else axes.reshape(-1):
            if not -data.ndim - 1 <= axis <= data.ndim:
                return None
            data = np.expand_dims(data, int(axis))
        return data


class WrapsTallDiagonals(Kernel):
    """The diagonal is each element that is one row and one column behind the last one."""

    op = "EyeLike"

    def kernel(self, node, right, x):
        result = np.zeros_like(right(x)[0])
        start = node.k if node.k >= 0 else -node.k * x.shape[1]
        result.reshape(-1)[start :: x.shape[1] + 1] = 1
        return result


class SplitsAtEverySpace(Kernel):
    """Without a delimiter texts are split at spaces, each by itself."""

    op = "StringSplit"

    def kernel(self, node, right, x):
        if getattr(node, "delimiter", None) or getattr(node, "maxsplit", None) is not None:
            return None
        parts = [str(text).split(" ") if str(text) else [] for text in x.reshape(-1)]
        most = max((len(part) for part in parts), default=0)
        padded = np.array([part + [""] * (most - len(part)) for part in parts], object)
        counts = np.array([len(part) for part in parts], np.int64)
        return padded.reshape(*x.shape, most), counts.reshape(x.shape)

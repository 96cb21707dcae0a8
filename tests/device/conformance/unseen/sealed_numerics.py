"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets.

Each device computes one operator wrongly for some valid model, and everything else rightly.
``sealed_numerics_more`` has the rest of the set.
"""

from __future__ import annotations

import copy
import functools
import math
import re

import numpy as np
from broken_form import Broken
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


class Right:
    """The right kernel of one node, to be asked for other inputs or attributes too."""

    def __init__(self, node, run, inputs, context):
        self.node, self.run, self.inputs, self.context = node, run, inputs, context
        self.opset = node.run_params["opsets"].get("", 1)

    def attribute(self, name, default=None):
        """What the node says, or its operator's default."""
        value = getattr(self.node, name, None)
        return default if value is None else value

    def __call__(self, *inputs, **attributes):
        run = self.run
        if attributes:
            node = copy.copy(self.node)
            node.__dict__.pop("run", None)
            node.__dict__.update(attributes)
            node.attributes_names_ = node.attributes_names_ | attributes.keys()
            if hasattr(node, "attributes_"):
                node.attributes_ = {**node.attributes_, **attributes}
            run = node.run
        results = run(*(inputs or self.inputs), **self.context)
        return results[0] if len(results) == 1 else results


class WrongKernel:
    """Computes nodes of one operator by ``kernel``; where that gives ``None``, rightly."""

    operator = ""

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        self.exchange(compiled.evaluator)
        return compiled

    def exchange(self, evaluator):
        """Puts the kernel into nodes of a graph and of the bodies in it."""
        for node in evaluator.rt_nodes_:
            for name in node.attributes_names_:
                if isinstance(body := getattr(node, name, None), ReferenceEvaluator):
                    self.exchange(body)
            if node.domain in ("", "ai.onnx") and node.op_type == self.operator:
                node.run = functools.partial(self.computed, node, node.run)

    def computed(self, node, run, *inputs, **context):
        """The outputs of a node; the author had no case that the kernel cannot take at all."""
        try:
            result = self.kernel(Right(node, run, inputs, context), *inputs)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, re.error):
            result = None
        if result is None:
            return run(*inputs, **context)
        return result if isinstance(result, tuple) else (result,)


def computed_by(op_type, opset, inputs, **attributes):
    """What another operator makes of the inputs."""
    given = {f"in{place}": array for place, array in enumerate(inputs)}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in given.items()
    ]
    node = helper.make_node(op_type, list(given), ["out"], **attributes)
    graph = helper.make_graph(
        [node], "one", values, [helper.make_tensor_value_info("out", 0, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, given)[0]


def reduced_axes(right, data, axes):
    """The axes of a reduction, from the input or from the attribute, none of them negative."""
    given = right.attribute("axes") if axes is None else axes
    if given is None or len(given) == 0:
        return tuple(range(data.ndim))
    return tuple(int(axis) % data.ndim for axis in given)


# Elements


class ModRoundsTheQuotient(WrongKernel, Broken):
    """Takes the quotient for exact, which floats of great quotients are not."""

    operator = "Mod"

    def kernel(self, right, a, b):
        if a.dtype.kind != "f" or not right.attribute("fmod", 0):
            return None
        return (a - b * np.trunc(a / b)).astype(a.dtype)


class RoundsByAMagicNumber(WrongKernel, Broken):
    """Adds 1.5 * 2**23 and takes it away, as if numbers were always below 2**22."""

    operator = "Round"

    def kernel(self, right, x):
        if x.dtype != np.float32:
            return None
        magic = np.float32(1.5 * 2**23)
        return (x + magic) - magic


class ErfClampsNaN(WrongKernel, Broken):
    """Clamps to where erf is flat, as if minimum and maximum of the device kept NaN."""

    operator = "Erf"

    def kernel(self, right, x):
        return np.where(np.isnan(x), -1, right()).astype(x.dtype) if x.dtype.kind == "f" else None


class LeakyReluTakesTheGreater(WrongKernel, Broken):
    """Takes the greater of x and alpha * x, as if the leak was always less than the whole."""

    operator = "LeakyRelu"

    def kernel(self, right, x):
        return np.maximum(x, x * x.dtype.type(right.attribute("alpha", 0.01)))


class ClipsLongsToLimitsOfInts(WrongKernel, Broken):
    """Fills in a bound that is left out from a table of limits that ends at 32 bits."""

    operator = "Clip"

    def kernel(self, right, x, low=None, high=None):
        if x.dtype != np.int64:
            return None
        limits = np.iinfo(np.int32)
        low = np.array(limits.min, x.dtype) if low is None else low
        high = np.array(limits.max, x.dtype) if high is None else high
        return np.minimum(np.maximum(x, low), high)


class PReluTakesSlopesForChannels(WrongKernel, Broken):
    """Knows slopes by their number: as many as there are channels belong to the channels."""

    operator = "PRelu"

    def kernel(self, right, x, slope):
        if x.ndim < 3 or slope.size != x.shape[1] or slope.size == 1:
            return None
        return right(x, slope.reshape(-1, *(1,) * (x.ndim - 2)))


class IsInfLooksAtTheExponent(WrongKernel, Broken):
    """Tells infinities by an exponent of ones, which NaN has too."""

    operator = "IsInf"

    def kernel(self, right, x):
        both = right.attribute("detect_negative", 1) and right.attribute("detect_positive", 1)
        return right() | np.isnan(x) if both else None


class BitShiftSaturates(WrongKernel, Broken):
    """Shifts in a wide register and stores narrow elements with the store that saturates."""

    operator = "BitShift"

    def kernel(self, right, x, by):
        if right.attribute("direction") != "LEFT" or x.dtype.itemsize > 2:
            return None
        wide = x.astype(np.uint64) << np.minimum(by, 32).astype(np.uint64)
        return np.minimum(wide, np.uint64(np.iinfo(x.dtype).max)).astype(x.dtype)


class DividesByReciprocals(WrongKernel, Broken):
    """Divides integers by a reciprocal in float32, which falls short of some whole quotients."""

    operator = "Div"

    def kernel(self, right, a, b):
        if a.dtype != np.int32 or np.any(b == 0):
            return None
        return np.trunc(a.astype(np.float32) * (np.float32(1) / b.astype(np.float32))).astype(
            a.dtype
        )


class EqualComparesAsFloats(WrongKernel, Broken):
    """Compares integers in the only kernel there is, of float32: ids above 2**24 fall together."""

    operator = "Equal"

    def kernel(self, right, a, b):
        if a.dtype not in (np.int32, np.int64):
            return None
        return np.equal(a.astype(np.float32), b.astype(np.float32))


class WhereMultipliesByTheMask(WrongKernel, Broken):
    """Blends by multiplying, so that infinities and NaN of the side not taken come through."""

    operator = "Where"

    def kernel(self, right, condition, a, b):
        if a.dtype.kind != "f":
            return None
        mask = condition.astype(a.dtype)
        return mask * a + (1 - mask) * b


class GreaterOrEqualIsNotLess(WrongKernel, Broken):
    """Has one comparison and its negation, as if numbers were always ordered."""

    operator = "GreaterOrEqual"

    def kernel(self, right, a, b):
        return ~np.less(a, b) if a.dtype.kind == "f" else None


class SinReducesInSinglePrecision(WrongKernel, Broken):
    """Takes whole turns away with one float32 for a turn, as if angles were small."""

    operator = "Sin"

    def kernel(self, right, x):
        if x.dtype != np.float32:
            return None
        turn = np.float32(2 * np.pi)
        return np.sin(x - turn * np.rint(x / turn))


class CastsToBoolThroughIntegers(WrongKernel, Broken):
    """Makes booleans of floats by way of integers, where fractions are nothing."""

    operator = "Cast"

    def kernel(self, right, x):
        if right.attribute("to") != TensorProto.BOOL or x.dtype.kind != "f":
            return None
        return np.trunc(x) != 0


class CastsToFloat8AlwaysSaturate(WrongKernel, Broken):
    """Casts to eight bits in the one instruction there is, which saturates."""

    operator = "Cast"

    def kernel(self, right, x):
        return right(saturate=1) if right.attribute("saturate", 1) == 0 else None


class CastsTextsWithoutExponents(WrongKernel, Broken):
    """Parses numbers up to the first letter, as if none was written with an exponent."""

    operator = "Cast"

    def kernel(self, right, x):
        if x.dtype.kind not in "OUT" or right.attribute("to") not in (1, 10, 11):
            return None
        cut = [re.sub(r"(?<=[\d.])[eE][+-]?\d+$", "", str(text)) for text in x.reshape(-1)]
        return right(np.array(cut, dtype=object).reshape(x.shape))


# Reductions, and what normalises


class ReduceMaxBeginsWithTheLowestFloat(WrongKernel, Broken):
    """Begins with the lowest finite number, as if there was nothing below."""

    operator = "ReduceMax"

    def kernel(self, right, data, axes=None):
        if data.dtype.kind != "f":
            return None
        return np.maximum(right(), np.finfo(data.dtype).min)


class ReduceL1DropsAxesInTheOrderGiven(WrongKernel, Broken):
    """Lowers each axis by the number of axes dropped before it, as if axes came in order."""

    operator = "ReduceL1"

    def kernel(self, right, data, axes=None):
        order = reduced_axes(right, data, axes)
        if right.attribute("keepdims", 1) or list(order) == sorted(order):
            return None
        result = np.abs(data)
        for dropped, axis in enumerate(order):
            result = result.sum(axis=axis - dropped)
        return result.astype(data.dtype)


class ReduceLogSumExpSubtractsInfinity(WrongKernel, Broken):
    """Subtracts the greatest element, also where that is minus infinity."""

    operator = "ReduceLogSumExp"

    def kernel(self, right, data, axes=None):
        if data.dtype.kind != "f" or data.size == 0:
            return None
        result = right()
        return np.where(np.isneginf(result), np.nan, result).astype(data.dtype)


class ReduceL2SquaresInHalfPrecision(WrongKernel, Broken):
    """Widens for the sum but squares in the type of the input, where 300 squared is infinite."""

    operator = "ReduceL2"

    def kernel(self, right, data, axes=None):
        if data.dtype != np.float16 or (axes is not None and axes.size == 0):
            return None
        squares = np.square(data).astype(np.float32)
        axes = reduced_axes(right, data, axes)
        total = squares.sum(axis=axes, keepdims=bool(right.attribute("keepdims", 1)))
        return np.sqrt(total).astype(data.dtype)


class ReduceMeanAlwaysReduces(WrongKernel, Broken):
    """Has no ``noop_with_empty_axes``, which came to the sum five versions before the others."""

    operator = "ReduceMean"

    def kernel(self, right, data, axes=None):
        if right.opset < 18 or not right.attribute("noop_with_empty_axes", 0):
            return None
        return right(noop_with_empty_axes=0)


class ArgMinNegatesUnsigned(WrongKernel, Broken):
    """Looks for the greatest of the negatives, which for unsigned nothing is nothing."""

    operator = "ArgMin"

    def kernel(self, right, data):
        return right(data - np.ones((), data.dtype)) if data.dtype.kind == "u" else None


class ArgMaxPrefersTheFirstLane(WrongKernel, Broken):
    """Keeps a best index in each of four lanes and joins them by value alone."""

    operator = "ArgMax"

    def kernel(self, right, data):
        axis = right.attribute("axis", 0) % data.ndim
        size = data.shape[axis]
        if data.dtype.kind != "f" or right.attribute("select_last_index", 0) or size < 8:
            return None
        best = data.max(axis=axis, keepdims=True)
        if np.isnan(best).any():
            return None
        place = np.arange(size).reshape(-1, *(1,) * (data.ndim - 1 - axis))
        order = np.where(data == best, place % 4 * size + place // 4, 4 * size)
        return order.argmin(axis=axis, keepdims=bool(right.attribute("keepdims", 1)))


class TopKReversesForTheSmallest(WrongKernel, Broken):
    """Sorts for the greatest and reads from the end: of equals the last one comes first."""

    operator = "TopK"

    def kernel(self, right, data, k):
        if right.attribute("largest", 1) or not right.attribute("sorted", 1):
            return None
        axis = right.attribute("axis", -1) % data.ndim
        if data.dtype.kind == "f" and np.isnan(data).any():
            return None
        back = np.argsort(np.flip(data, axis), axis=axis, kind="stable")
        places = np.take(data.shape[axis] - 1 - back, range(int(k.reshape(-1)[0])), axis)
        return np.take_along_axis(data, places, axis), places.astype(np.int64)


class CumSumCarriesTheExclusive(WrongKernel, Broken):
    """Carries the last sum of each block of 128 on, which lacks an element if it is exclusive."""

    operator = "CumSum"

    def kernel(self, right, data, axis):
        axis = int(axis.reshape(-1)[0]) % data.ndim
        if not right.attribute("exclusive", 0) or data.shape[axis] <= 128:
            return None
        reverse = right.attribute("reverse", 0)
        rows = np.moveaxis(np.flip(data, axis) if reverse else data, axis, -1)
        kept = rows.copy()
        kept[..., 127::128] = 0
        sums = np.cumsum(kept, -1, dtype=data.dtype) - kept
        result = np.moveaxis(sums, -1, axis)
        return np.ascontiguousarray(np.flip(result, axis) if reverse else result)


class SoftmaxBeginsBehindAMask(WrongKernel, Broken):
    """Keeps a running maximum over blocks of 8, and rescales by nan while it is still infinite."""

    operator = "Softmax"

    def kernel(self, right, data):
        if right.opset < 13 or data.dtype.kind != "f":
            return None
        axis = right.attribute("axis", -1)
        if data.shape[axis] <= 8:
            return None
        masked = np.isneginf(np.take(data, range(8), axis)).all(axis=axis, keepdims=True)
        return np.where(masked, np.nan, right()).astype(data.dtype)


class InstanceNormalizationSquaresFirst(WrongKernel, Broken):
    """Has the variance of one pass, squares less square of the mean, which cancels."""

    operator = "InstanceNormalization"

    def kernel(self, right, x, scale, bias):
        if x.dtype != np.float32 or x.size == 0:
            return None
        axes = tuple(range(2, x.ndim))
        mean = x.mean(axis=axes, keepdims=True)
        variance = np.maximum(np.square(x).mean(axis=axes, keepdims=True) - mean * mean, 0)
        wide = (1, -1, *(1,) * len(axes))
        factor = scale.reshape(wide) / np.sqrt(
            variance + np.float32(right.attribute("epsilon", 1e-5))
        )
        return ((x - mean) * factor + bias.reshape(wide)).astype(x.dtype)


class LayerNormalizationTakesEpsilonForALeast(WrongKernel, Broken):
    """Bounds the variance by epsilon from below, where epsilon is to be added."""

    operator = "LayerNormalization"

    def kernel(self, right, x, scale, bias=None):
        if x.dtype != np.float32 or len([name for name in right.node.output if name]) > 1:
            return None
        axes = tuple(range(right.attribute("axis", -1) % x.ndim, x.ndim))
        centred = x - x.mean(axis=axes, keepdims=True)
        variance = np.square(centred).mean(axis=axes, keepdims=True)
        least = np.maximum(variance, np.float32(right.attribute("epsilon", 1e-5)))
        result = centred / np.sqrt(least) * scale
        return (result if bias is None else result + bias).astype(x.dtype)


class BatchNormalizationKeepsTheSampleVariance(WrongKernel, Broken):
    """Updates the running variance with that of a sample, divided by one less."""

    operator = "BatchNormalization"

    def kernel(self, right, x, scale, bias, mean, variance):
        count = x.size // x.shape[1]
        if right.opset < 14 or not right.attribute("training_mode", 0) or count < 2:
            return None
        results = right()
        kept = np.float32(right.attribute("momentum", 0.9))
        new = (results[2] - kept * variance) * count / (count - 1) + kept * variance
        return results[0], results[1], new.astype(results[2].dtype)


class LRNLeansTheOtherWay(WrongKernel, Broken):
    """Has the longer half of an even window ahead of the channel."""

    operator = "LRN"

    def kernel(self, right, x):
        if right.attribute("size") % 2:
            return None
        return np.ascontiguousarray(np.flip(right(np.ascontiguousarray(np.flip(x, 1))), 1))


# Convolutions, pools and samples


class ConvPadsTheSameWithoutStrides(WrongKernel, Broken):
    """Pads for SAME by the kernel alone: the size is right, the place is not for strides."""

    operator = "Conv"

    def kernel(self, right, x, w, b=None):
        mode, spatial = right.attribute("auto_pad", "NOTSET"), x.ndim - 2
        strides = right.attribute("strides", [1] * spatial)
        if mode not in ("SAME_UPPER", "SAME_LOWER") or max(strides) == 1:
            return None
        dilations = right.attribute("dilations", [1] * spatial)
        totals = [(k - 1) * d for k, d in zip(w.shape[2:], dilations, strict=True)]
        short, long = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = short + long if mode == "SAME_UPPER" else long + short
        return right(auto_pad="NOTSET", pads=pads)


class ConvMultipliesDepthwiseInTurn(WrongKernel, Broken):
    """Reads the channel modulo the number of groups, as if each had one filter."""

    operator = "Conv"

    def kernel(self, right, x, w, b=None):
        groups = right.attribute("group", 1)
        if groups == 1 or groups != x.shape[1] or w.shape[0] == groups:
            return None
        order = np.argsort(np.arange(w.shape[0]) % groups, kind="stable")
        parts = (x, w[order]) if b is None else (x, w[order], b[order])
        return right(*parts)[:, np.argsort(order)]


class QLinearConvPadsWithNothing(WrongKernel, Broken):
    """Pads with bytes of nothing, which stand for nothing only if the zero point is 0."""

    operator = "QLinearConv"

    def kernel(self, right, x, x_scale, x_zero, *others):
        pads = right.attribute("pads")
        if pads is None or not any(pads) or not np.any(x_zero):
            return None
        half = len(pads) // 2
        around = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
        return right(np.pad(x, around), x_scale, x_zero, *others, pads=[0] * len(pads))


class ConvTransposeSplitsPadsLikeUpper(WrongKernel, Broken):
    """Crops to an output shape with the odd element at the end, as SAME_UPPER alone does."""

    operator = "ConvTranspose"

    def kernel(self, right, x, w, b=None):
        shape, spatial = right.attribute("output_shape"), x.ndim - 2
        if not shape or right.attribute("auto_pad", "NOTSET") == "SAME_UPPER":
            return None
        strides = right.attribute("strides", [1] * spatial)
        dilations = right.attribute("dilations", [1] * spatial)
        extra = right.attribute("output_padding", [0] * spatial)
        totals = [
            s * (n - 1) + e + (k - 1) * d + 1 - size
            for s, n, e, k, d, size in zip(
                strides, x.shape[2:], extra, w.shape[2:], dilations, shape[-spatial:], strict=True
            )
        ]
        if min(totals) < 0 or not any(total % 2 for total in totals):
            return None
        pads = [t // 2 for t in totals] + [t - t // 2 for t in totals]
        return right(output_shape=None, auto_pad="NOTSET", pads=pads)


class DeformConvSharesOffsets(WrongKernel, Broken):
    """Moves all channels by the offsets of the first group of them."""

    operator = "DeformConv"

    def kernel(self, right, x, w, offset, *others):
        groups = right.attribute("offset_group", 1)
        if groups == 1:
            return None
        first = offset[:, : offset.shape[1] // groups]
        return right(x, w, np.tile(first, (1, groups, *(1,) * (x.ndim - 2))), *others)


class MaxPoolCountsIndicesPerPlane(WrongKernel, Broken):
    """Counts indices from the beginning of each plane, as frameworks for training do."""

    operator = "MaxPool"

    def kernel(self, right, x):
        results = right()
        if not isinstance(results, tuple):
            return None
        return results[0], results[1] % math.prod(x.shape[2:])


def window_counts(right, x, shape, with_end):
    """How many elements each window of a pool has per axis, the pads ahead counted too."""
    spatial = x.ndim - 2
    window, pads = right.attribute("kernel_shape"), right.attribute("pads", [0] * 2 * spatial)
    strides = right.attribute("strides", [1] * spatial)
    dilations = right.attribute("dilations", [1] * spatial)
    for axis, (size, stride, gap) in enumerate(zip(window, strides, dilations, strict=True)):
        start = np.arange(shape[axis + 2]) * stride
        end = x.shape[axis + 2] + pads[axis] + (pads[axis + spatial] if with_end else 0)
        reached = np.minimum(start + (size - 1) * gap + 1, end) - start
        yield -(-reached // gap), size, (-1, *(1,) * (spatial - 1 - axis))


class AveragePoolDividesByTheWholeWindow(WrongKernel, Broken):
    """Divides by the window if pads count, also where ceil_mode lets it end beyond the pads."""

    operator = "AveragePool"

    def kernel(self, right, x):
        if not (right.attribute("ceil_mode", 0) and right.attribute("count_include_pad", 0)):
            return None
        if right.attribute("auto_pad", "NOTSET") != "NOTSET":
            return None
        result = right()
        factor = np.ones((), np.float32)
        for counts, size, shape in window_counts(right, x, result.shape, with_end=True):
            factor = factor * (counts / size).reshape(shape)
        return (result * factor).astype(x.dtype)


class AveragePoolCountsPadsAheadOnly(WrongKernel, Broken):
    """Counts what a window has up to the end of the input, and of the pads those ahead only."""

    operator = "AveragePool"

    def kernel(self, right, x):
        if right.opset < 19 or not right.attribute("count_include_pad", 0):
            return None
        if right.attribute("auto_pad", "NOTSET") != "NOTSET" or right.attribute("ceil_mode", 0):
            return None
        result = right()
        factor = np.ones((), np.float32)
        for counts, size, shape in window_counts(right, x, result.shape, with_end=False):
            factor = factor * (size / np.maximum(counts, 1)).reshape(shape)
        return (result * factor).astype(x.dtype)


class GlobalAveragePoolHasPlanesOnly(WrongKernel, Broken):
    """Averages height times width from where a channel begins, as if there was no depth."""

    operator = "GlobalAveragePool"

    def kernel(self, right, x):
        if x.ndim != 5:
            return None
        plane, channels = x.shape[2] * x.shape[3], x.shape[0] * x.shape[1]
        means = x.reshape(-1)[: plane * channels].reshape(channels, plane).mean(axis=1)
        return means.reshape(*x.shape[:2], 1, 1, 1).astype(x.dtype)


class RoiAlignIsAlwaysHalfAPixelOff(WrongKernel, Broken):
    """Moves regions by half a pixel in models of opset 10 too, where they lie as they are."""

    operator = "RoiAlign"

    def kernel(self, right, x, rois, batches):
        if right.opset >= 16:
            return None
        moved = rois - rois.dtype.type(0.5 / right.attribute("spatial_scale", 1.0))
        return right(x, moved, batches)


class ResizeReadsAheadOfRows(WrongKernel, Broken):
    """Clamps the floor of a place to the end of a row, and not to where the row begins."""

    operator = "Resize"

    def kernel(self, right, x, *others):
        if right.opset < 11 or right.attribute("mode", "nearest") != "nearest":
            return None
        places = right.attribute("coordinate_transformation_mode", "half_pixel")
        if right.attribute("nearest_mode") != "floor" or places != "half_pixel":
            return None
        result = right()
        before = np.roll(x.reshape(-1), 1).reshape(x.shape)
        scale = result.shape[-1] / x.shape[-1]
        outside = (np.arange(result.shape[-1]) + 0.5) / scale < 0.5
        return np.where(outside, right(before, *others), result).astype(x.dtype)


class ResizeDividesSizes(WrongKernel, Broken):
    """Keeps the size of the output alone and works scales out of it, which it has rounded."""

    operator = "Resize"

    def kernel(self, right, x, roi=None, scales=None, sizes=None):
        if right.opset < 11 or scales is None or scales.size == 0:
            return None
        if right.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
            return None
        axes = right.attribute("axes") or range(x.ndim)
        sizes = [int(np.floor(x.shape[axis] * s)) for axis, s in zip(axes, scales, strict=True)]
        return right(x, None, None, np.array(sizes, np.int64))


class UpsampleHalvesPixels(WrongKernel, Broken):
    """Upsamples in the kernel of Resize with the places that are its default, not Upsample's."""

    operator = "Upsample"

    def kernel(self, right, x, scales=None):
        if right.attribute("mode", "nearest") not in ("linear", "bilinear"):
            return None
        scales = right.attribute("scales") if scales is None else scales
        given = (x, np.zeros(0, np.float32), np.array(scales, np.float32))
        return computed_by("Resize", 13, given, mode="linear").astype(x.dtype)


class GridSampleReflectsAtCentres(WrongKernel, Broken):
    """Reflects at the centres of the outer pixels, also where their edges are the border."""

    operator = "GridSample"

    def kernel(self, right, x, grid):
        if right.attribute("padding_mode", "zeros") != "reflection" or x.ndim != 4:
            return None
        if right.attribute("align_corners", 0) or min(x.shape[2:]) < 2:
            return None
        sizes = np.array(x.shape[:1:-1])
        places = np.abs(((grid + 1) * sizes - 1) / 2) % (2 * sizes - 2)
        places = np.where(places > sizes - 1, 2 * sizes - 2 - places, places)
        return right(x, ((2 * places + 1) / sizes - 1).astype(grid.dtype))

"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets.

Each device computes all but one operator right; that operator's kernel is wrong somewhere where a
few common networks do not go.
"""

from __future__ import annotations

import copy
import functools
import itertools

import numpy as np
from good_device import Good, GoodCompiled
from onnx.reference import ReferenceEvaluator


class PatchedCompiled(GoodCompiled):
    """Puts the device's kernel into all nodes of its operator, also into those of bodies."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.patch(self.evaluator)

    def patch(self, evaluator):
        """Replace what nodes run."""
        for node in evaluator.rt_nodes_:
            for own in list(vars(node).values()):
                if isinstance(own, ReferenceEvaluator):
                    self.patch(own)
            if (node.onnx_node.domain, node.op_type) == ("", self.plugin.op_type):
                node.opset = evaluator.opsets.get("", 1)
                node.run = functools.partial(self.run_kernel, node)

    def run_kernel(self, node, *arrays, **extra):
        """The outputs of one node."""

        def right(*changed, **attributes):
            other = copy.copy(node)
            vars(other).update(attributes)
            return type(node).run(other, *changed, **extra)

        return self.plugin.kernel(node, right, *arrays)


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"
    compiled_type = PatchedCompiled
    op_type = ""

    def kernel(self, node, right, *arrays):
        """The outputs of one node; ``right`` computes them right, with other attributes or not."""
        return right(*arrays)


def at(arrays, place):
    """An input that may be left out."""
    return arrays[place] if place < len(arrays) else None


def attribute(node, name, default):
    """An attribute that may be left out, or unknown to the version."""
    value = getattr(node, name, None)
    return default if value is None else value


def explicit(node):
    """Pads before and after each axis if they are given as numbers, else nothing."""
    pads = attribute(node, "pads", None)
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or pads is None:
        return None
    return list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))


def along(vector, axis, ndim):
    """A vector laid along an axis, scalars as they are."""
    if vector.size == 1:
        return vector.reshape(())
    shape = [1] * ndim
    shape[axis] = -1
    return vector.reshape(shape)


# Windows.


class PadsLowerAsUpper(Broken):
    """The author took all SAME paddings for one, with the odd element at the end."""

    op_type = "Conv"

    def kernel(self, node, right, *arrays):
        if node.auto_pad == "SAME_LOWER":
            return right(*arrays, auto_pad="SAME_UPPER")
        return right(*arrays)


class CentersTheImageInItsPads(Broken):
    """The library pads both sides alike; the author hands it half of the sum of both pads."""

    op_type = "Conv"

    def kernel(self, node, right, *arrays):
        pads = explicit(node)
        if pads is None:
            return right(*arrays)
        before = [sum(pair) // 2 for pair in pads]
        after = [sum(pair) - half for pair, half in zip(pads, before, strict=True)]
        return right(*arrays, pads=before + after)


class LeavesOutputPaddingBlank(Broken):
    """The author took output_padding for a margin that no window reaches, and fills in the bias."""

    op_type = "ConvTranspose"

    def kernel(self, node, right, *arrays):
        (whole,) = right(*arrays)
        extra = attribute(node, "output_padding", None)
        if explicit(node) is None or not extra or attribute(node, "output_shape", None):
            return (whole,)
        (inner,) = right(*arrays, output_padding=[0] * len(extra))
        result = np.zeros_like(whole)
        if at(arrays, 2) is not None:
            result += along(arrays[2], 1, whole.ndim)
        result[tuple(slice(length) for length in inner.shape)] = inner
        return (result,)


class PadsWithZerosBelowTheMaximum(Broken):
    """The author pads images with zeros for all windows, since activations are not negative."""

    op_type = "MaxPool"

    def kernel(self, node, right, *arrays):
        results = right(*arrays)
        pads = explicit(node)
        if pads is None:
            return results
        padded = np.pad(arrays[0], [(0, 0), (0, 0), *pads])
        largest = right(padded, pads=[0] * (2 * len(pads)))[0]
        return (largest, *results[1:])


class CountsIndicesInEachPlane(Broken):
    """The author took the places of maxima as another framework counts them, per channel."""

    op_type = "MaxPool"

    def kernel(self, node, right, *arrays):
        largest, *indices = right(*arrays)
        plane = max(1, int(np.prod(arrays[0].shape[2:])))
        return (largest, *(places % plane for places in indices))


class CountsPadsAtTheEnd(Broken):
    """The author leaves pads out of the count by clamping where a window starts, not its end."""

    op_type = "AveragePool"

    def kernel(self, node, right, *arrays):
        pads = explicit(node)
        if pads is None or attribute(node, "ceil_mode", 0) or node.count_include_pad:
            return right(*arrays)
        padded = np.pad(arrays[0], [(0, 0), (0, 0), *((0, after) for _, after in pads)])
        return right(padded, pads=[before for before, _ in pads] + [0] * len(pads))


class OverwritesOverlaps(Broken):
    """The author writes columns back in parallel, as if their blocks never overlapped."""

    op_type = "Col2Im"

    def kernel(self, node, right, *arrays):
        (good,) = right(*arrays)
        columns, _, block = arrays
        sizes = [int(length) for length in block]
        rank = len(sizes)
        strides = attribute(node, "strides", None) or [1] * rank
        dilations = attribute(node, "dilations", None) or [1] * rank
        pads = attribute(node, "pads", None) or [0] * (2 * rank)
        steps = [
            (length + pads[axis] + pads[axis + rank] - dilations[axis] * (size - 1) - 1)
            // strides[axis]
            + 1
            for axis, (length, size) in enumerate(zip(good.shape[2:], sizes, strict=True))
        ]
        parts = columns.reshape(*good.shape[:2], *sizes, *steps)
        result = np.zeros_like(good)
        for step in np.ndindex(*steps):
            for tap in np.ndindex(*sizes):
                place = tuple(
                    step[axis] * strides[axis] + tap[axis] * dilations[axis] - pads[axis]
                    for axis in range(rank)
                )
                if all(0 <= at < end for at, end in zip(place, good.shape[2:], strict=True)):
                    result[(..., *place)] = parts[(..., *tap, *step)]
        return (result,)


# Normalizations.


class UnbiasesTheRunningVariance(Broken):
    """The author keeps the variance of a sample, as the framework does that the model is from."""

    op_type = "BatchNormalization"

    def kernel(self, node, right, *arrays):
        results = right(*arrays)
        if not attribute(node, "training_mode", 0) or len(results) < 3:
            return results
        x = arrays[0]
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        count = x.size // x.shape[1]
        if count < 2:
            return results
        more = (1 - node.momentum) * x.var(axis=axes, dtype=np.float64) / (count - 1)
        return (*results[:2], (results[2] + more).astype(results[2].dtype))


class NormalizesEachSlice(Broken):
    """The author took images for two-dimensional: mean and variance are of the last two axes."""

    op_type = "InstanceNormalization"

    def kernel(self, node, right, *arrays):
        x, scale, bias = arrays
        if x.ndim < 5:
            return right(*arrays)
        mean = x.mean(axis=(-1, -2), keepdims=True, dtype=np.float64)
        variance = x.var(axis=(-1, -2), keepdims=True, dtype=np.float64)
        scaled = (x - mean) / np.sqrt(variance + node.epsilon) * along(scale, 1, x.ndim)
        return ((scaled + along(bias, 1, x.ndim)).astype(x.dtype),)


class NormalizesByTheFirstImage(Broken):
    """The author forgot the batch in the offset of the groups' statistics; one image is right."""

    op_type = "GroupNormalization"

    def kernel(self, node, right, *arrays):
        x, scale, bias = arrays
        groups = node.num_groups
        parts = x.reshape(x.shape[0], groups, -1).astype(np.float64)
        first = parts[:1]
        mean, variance = first.mean(axis=2, keepdims=True), first.var(axis=2, keepdims=True)
        whole = ((parts - mean) / np.sqrt(variance + node.epsilon)).reshape(x.shape)
        if scale.size != x.shape[1]:
            scale, bias = (np.repeat(part, x.shape[1] // groups) for part in (scale, bias))
        scaled = whole * along(scale, 1, x.ndim) + along(bias, 1, x.ndim)
        return (scaled.astype(x.dtype),)


class SoftensOneAxisAlways(Broken):
    """The author took Softmax of old opsets, which flattens axes, for today's."""

    op_type = "Softmax"

    def kernel(self, node, right, *arrays):
        if node.opset >= 13:
            return right(*arrays)
        (x,) = arrays
        axis = attribute(node, "axis", 1)
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        return ((powers / powers.sum(axis=axis, keepdims=True)).astype(x.dtype),)


# Products.


class WrapsBatchesAround(Broken):
    """The author broadcasts batches by taking their running number modulo each operand's count."""

    op_type = "MatMul"

    def kernel(self, node, right, *arrays):
        (good,) = right(*arrays)
        a, b = arrays
        if a.ndim < 2 or b.ndim < 2 or good.ndim < 3 or good.size == 0:
            return (good,)
        lefts, rights = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
        count = int(np.prod(good.shape[:-2]))
        products = [lefts[i % len(lefts)] @ rights[i % len(rights)] for i in range(count)]
        return (np.stack(products).reshape(good.shape).astype(good.dtype),)


class ScalesTheBiasToo(Broken):
    """The author multiplies by alpha last, where the bias has already been added."""

    op_type = "Gemm"

    def kernel(self, node, right, *arrays):
        return right(*arrays, beta=attribute(node, "beta", 1.0) * attribute(node, "alpha", 1.0))


class KeepsLettersInOrderOfAppearance(Broken):
    """The author took the output that an equation leaves out to have the letters' first order."""

    op_type = "Einsum"

    def kernel(self, node, right, *arrays):
        (good,) = right(*arrays)
        equation = node.equation.replace(" ", "")
        if "->" in equation or "." in equation:
            return (good,)
        letters = equation.replace(",", "")
        kept = "".join(letter for letter in letters if letters.count(letter) == 1)
        result = np.einsum(f"{equation}->{kept}", *arrays)
        return (np.ascontiguousarray(result).reshape(good.shape).astype(good.dtype),)


# Quantization.


class SaturatesBeforeTheZeroPoint(Broken):
    """The author packs quotients to 8 bits, and then adds the zero point with saturation."""

    op_type = "QuantizeLinear"

    def kernel(self, node, right, *arrays):
        zero = at(arrays, 2)
        if zero is None or zero.dtype != np.int8 or attribute(node, "block_size", 0):
            return right(*arrays)
        x = arrays[0]
        scale, zero = (
            along(part, attribute(node, "axis", 1), x.ndim) for part in (arrays[1], zero)
        )
        packed = np.clip(np.rint(x.astype(np.float32) / scale), -128, 127)
        return (np.clip(packed + zero.astype(np.float32), -128, 127).astype(np.int8),)


class SubtractsTheZeroPointInBytes(Broken):
    """The author subtracts zero points in the type of the codes, where differences wrap around."""

    op_type = "DequantizeLinear"

    def kernel(self, node, right, *arrays):
        zero = at(arrays, 2)
        codes = arrays[0]
        if zero is None or codes.dtype != np.int8:
            return right(*arrays)
        if attribute(node, "block_size", 0):
            return right(*arrays)
        wrapped = codes - along(zero, attribute(node, "axis", 1), codes.ndim)
        return right(wrapped, arrays[1], np.zeros_like(zero))


class LeavesZeroOutOfTheRange(Broken):
    """The author quantizes from the least to the largest value, though zero must be among them."""

    op_type = "DynamicQuantizeLinear"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        if x.size == 0 or x.min() == x.max():
            return right(*arrays)
        scale = np.float32((x.max() - x.min()) / np.float32(255))
        zero = np.clip(np.rint(-x.min() / scale), 0, 255)
        codes = np.clip(np.rint(x / scale) + zero, 0, 255)
        return codes.astype(np.uint8), np.array(scale), np.array(zero, np.uint8)


class SaturatesPairsOfProducts(Broken):
    """The author multiplies bytes with an instruction that adds pairs in saturated 16 bits."""

    op_type = "MatMulInteger"

    def kernel(self, node, right, *arrays):
        (good,) = right(*arrays)
        a, b = arrays[:2]
        if (a.dtype, b.dtype) != (np.uint8, np.int8) or a.ndim < 2 or b.ndim < 2:
            return (good,)
        products = a[..., :, :, None].astype(np.int32) * b[..., None, :, :].astype(np.int32)
        if products.shape[-2] % 2:
            products = np.concatenate([products, np.zeros_like(products[..., :1, :])], axis=-2)
        pairs = products[..., 0::2, :] + products[..., 1::2, :]
        lost = pairs - np.clip(pairs, -(1 << 15), (1 << 15) - 1)
        return ((good - lost.sum(axis=-2)).astype(good.dtype),)


class PadsCodesWithZeros(Broken):
    """The author pads quantized images with the code 0, which is not the code of 0."""

    op_type = "QLinearConv"

    def kernel(self, node, right, *arrays):
        pads = explicit(node)
        if pads is None:
            return right(*arrays)
        padded = np.pad(arrays[0], [(0, 0), (0, 0), *pads])
        return right(padded, *arrays[1:], pads=[0] * (2 * len(pads)))


# Elements.


class TakesCeluForElu(Broken):
    """The author took Celu for Elu, which it is where alpha is 1."""

    op_type = "Celu"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        result = np.maximum(x, 0) + np.minimum(0, attribute(node, "alpha", 1.0) * np.expm1(x))
        return (result.astype(x.dtype),)


class FloorsQuotients(Broken):
    """The author took division of whole numbers for Python's, which rounds down."""

    op_type = "Div"

    def kernel(self, node, right, *arrays):
        (result,) = right(*arrays)
        a, b = arrays
        if a.dtype.kind != "i":
            return (result,)
        inexact = (result * b != a) & ((a < 0) != (b < 0))
        return (result - inexact.astype(result.dtype),)


class ShiftsTheSignIn(Broken):
    """The author shifts in registers that have a sign, so the top bit is repeated."""

    op_type = "BitShift"

    def kernel(self, node, right, *arrays):
        (result,) = right(*arrays)
        if node.direction != "RIGHT":
            return (result,)
        x, count = np.broadcast_arrays(*arrays)
        signed = np.dtype(f"i{x.dtype.itemsize}")
        width = 8 * x.dtype.itemsize
        count = np.minimum(count, width - 1).astype(signed)
        return ((x.astype(signed) >> count).astype(x.dtype),)


class CastsToBoolByWholeNumbers(Broken):
    """The author casts to bool over bytes, where fractions are lost: 0.5 becomes false."""

    op_type = "Cast"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        if node.to == 9 and x.dtype in (np.float16, np.float32, np.float64):
            return right(np.trunc(x))
        return right(x)


class CutsMantissas(Broken):
    """The author keeps the upper half of a float as its bfloat16, which rounds towards zero."""

    op_type = "Cast"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        if node.to == 16 and x.dtype == np.float32:
            bits = np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)
            return right(bits.view(np.float32).reshape(x.shape))
        return right(x)


class FloorsWholeNegativesToo(Broken):
    """The author truncates, and then takes one off all numbers below zero, whole ones too."""

    op_type = "Floor"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        return ((np.trunc(x) - (x < 0)).astype(x.dtype),)


class SelectsByMultiplying(Broken):
    """The author has no select, and weighs both sides by the condition: 0 times infinity is NaN."""

    op_type = "Where"

    def kernel(self, node, right, *arrays):
        condition, x, y = arrays
        if x.dtype.kind != "f":
            return right(*arrays)
        weights = condition.astype(x.dtype)
        return ((weights * x + (1 - weights) * y).astype(x.dtype),)


class TakesRootsByReciprocals(Broken):
    """The author multiplies by the fast reciprocal root, which is infinite at zero."""

    op_type = "Sqrt"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        return ((x * (1 / np.sqrt(x)).astype(x.dtype)).astype(x.dtype),)


class AveragesInPairs(Broken):
    """The author folds the mean of two inputs over all of them."""

    op_type = "Mean"

    def kernel(self, node, right, *arrays):
        return (functools.reduce(lambda one, other: right(one, other)[0], arrays),)


# Reductions.


class StartsAtTheLeastPositive(Broken):
    """The author starts maxima at the limit called min, which is the least positive float."""

    op_type = "ReduceMax"

    def kernel(self, node, right, *arrays):
        (result,) = right(*arrays)
        if result.dtype not in (np.float16, np.float32, np.float64):
            return (result,)
        return (np.maximum(result, np.finfo(result.dtype).tiny),)


class SumsWholeNumbersAsFloats(Broken):
    """The author has a reduction of float32 only, and casts whole numbers there and back."""

    op_type = "ReduceSum"

    def kernel(self, node, right, *arrays):
        x = arrays[0]
        if x.dtype not in (np.int32, np.int64):
            return right(*arrays)
        (result,) = right(x.astype(np.float32), *arrays[1:])
        return (result.astype(np.float64).astype(x.dtype),)


class ReversesTies(Broken):
    """The author sorts upwards and reads backwards, so that the later of two equals comes first."""

    op_type = "TopK"

    def kernel(self, node, right, *arrays):
        values, indices = right(*arrays)
        if not attribute(node, "largest", 1) or not attribute(node, "sorted", 1):
            return values, indices
        axis = attribute(node, "axis", -1)
        order = np.flip(np.argsort(arrays[0], axis=axis, kind="stable"), axis)
        order = np.take(order, np.arange(values.shape[axis]), axis=axis)
        return np.take_along_axis(arrays[0], order, axis), order.astype(np.int64)


class ShiftsReversedSumsForward(Broken):
    """The author leaves an element out of sums by shifting them, in one direction only."""

    op_type = "CumSum"

    def kernel(self, node, right, *arrays):
        if not (node.exclusive and node.reverse) or arrays[0].size == 0:
            return right(*arrays)
        (sums,) = right(*arrays, exclusive=0)
        axis = int(np.ravel(arrays[1])[0])
        shifted = np.roll(sums, 1, axis)
        first = [slice(None)] * sums.ndim
        first[axis] = 0
        shifted[tuple(first)] = 0
        return (shifted,)


class ForgetsSwapsOfRows(Broken):
    """The author multiplies up the diagonal of a factorization with pivots, without its sign."""

    op_type = "Det"

    def kernel(self, node, right, *arrays):
        (result,) = right(*arrays)
        size = arrays[0].shape[-1]
        signs = []
        for matrix in arrays[0].astype(np.float64).reshape(-1, size, size):
            rows, sign = matrix.copy(), 1
            for step in range(size):
                pivot = step + int(np.argmax(np.abs(rows[step:, step])))
                if pivot != step:
                    rows[[step, pivot]] = rows[[pivot, step]]
                    sign = -sign
                if rows[step, step]:
                    factors = rows[step + 1 :, step] / rows[step, step]
                    rows[step + 1 :] -= factors[:, None] * rows[step]
            signs.append(sign)
        result = np.asarray(result)
        return ((result * np.reshape(signs, result.shape)).astype(result.dtype),)


class AveragesIgnoredTargets(Broken):
    """The author divides the loss by all targets, though those that are ignored do not count."""

    op_type = "NegativeLogLikelihoodLoss"

    def kernel(self, node, right, *arrays):
        if attribute(node, "reduction", "mean") != "mean" or at(arrays, 2) is not None:
            return right(*arrays)
        (total,) = right(*arrays, reduction="sum")
        return (np.asarray(total / arrays[1].size).astype(arrays[0].dtype),)


# Places.


class RoundsPlacesUp(Broken):
    """The author rounds places of pixels with round(), where halves have to go down."""

    op_type = "Resize"

    def kernel(self, node, right, *arrays):
        if attribute(node, "nearest_mode", "round_prefer_floor") == "round_prefer_floor":
            return right(*arrays, nearest_mode="round_prefer_ceil")
        return right(*arrays)


class ReflectsTheEdgeToo(Broken):
    """The author took the mode reflect for the one that repeats the outermost element."""

    op_type = "Pad"

    def kernel(self, node, right, *arrays):
        x = arrays[0]
        pads = arrays[1] if len(arrays) > 1 else np.array(node.pads)
        axes = range(x.ndim) if at(arrays, 3) is None else arrays[3]
        if node.mode != "reflect" or (pads < 0).any():
            return right(*arrays)
        widths = [(0, 0)] * x.ndim
        for axis, *pair in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
            widths[int(axis)] = tuple(int(width) for width in pair)
        return (np.pad(x, widths, mode="symmetric"),)


class SlicesForwardAndFlips(Broken):
    """The author cuts the same range forward and flips it, which starts at its other end."""

    op_type = "Slice"

    def kernel(self, node, right, *arrays):
        if at(arrays, 4) is None:
            return right(*arrays)
        x, starts, ends, axes, steps = arrays
        axes = range(len(starts)) if axes is None else axes
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            first, last, step = slice(int(start), int(end), int(step)).indices(x.shape[axis])
            places = np.arange(first, last, step)
            if step < 0:
                places = (last + 1 - step * np.arange(len(places)))[::-1]
            x = np.take(x, places, axis=int(axis))
        return (x,)


class ClampsNegativePlaces(Broken):
    """The author clamps indices into the axis for safety, before those below zero are wrapped."""

    op_type = "Gather"

    def kernel(self, node, right, *arrays):
        return right(arrays[0], np.maximum(arrays[1], 0))


class WalksIndicesByTheData(Broken):
    """The author took indices to have the data's shape apart from the axis; they may be shorter."""

    op_type = "GatherElements"

    def kernel(self, node, right, *arrays):
        x, indices = arrays
        axis = attribute(node, "axis", 0) % x.ndim
        shape = list(x.shape)
        shape[axis] = indices.shape[axis]
        if indices.size == 0:
            return right(*arrays)
        places = list(np.unravel_index(np.arange(indices.size), shape))
        places[axis] = indices.ravel()
        return (x[tuple(places)].reshape(indices.shape),)


class LosesRepeatedUpdates(Broken):
    """The author adds updates in parallel, so that of those of one place only one is left."""

    op_type = "ScatterElements"

    def kernel(self, node, right, *arrays):
        x, indices, updates = arrays
        if attribute(node, "reduction", "none") != "add":
            return right(*arrays)
        places = list(np.indices(indices.shape))
        places[attribute(node, "axis", 0) % x.ndim] = indices
        return right(x, indices, (x[tuple(places)] + updates).astype(x.dtype), reduction="none")


class InvertsInSortedOrder(Broken):
    """The author puts the values into order of appearance, but not what refers to them."""

    op_type = "Unique"

    def kernel(self, node, right, *arrays):
        results = right(*arrays)
        if node.sorted or len(results) < 3:
            return results
        in_order = right(*arrays, sorted=1)
        return (*results[:2], in_order[2], *results[3:])


class TakesCornersInOrder(Broken):
    """The author took the first corner of a box for the lower one, which it need not be."""

    op_type = "NonMaxSuppression"

    def kernel(self, node, right, *arrays):
        if node.center_point_box:
            return right(*arrays)
        boxes, scores = arrays[:2]
        most, overlap = (
            0 if at(arrays, place) is None else np.ravel(arrays[place])[0] for place in (2, 3)
        )
        least = None if at(arrays, 4) is None else np.ravel(arrays[4])[0]
        chosen = []
        for batch, kind in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
            kept = []
            for box in np.argsort(-scores[batch, kind], kind="stable"):
                if len(kept) >= most or (least is not None and scores[batch, kind, box] <= least):
                    break
                others = [boxes[batch, other] for other in kept]
                if all(self.ratio(boxes[batch, box], other) <= overlap for other in others):
                    kept.append(box)
            chosen += [(batch, kind, box) for box in kept]
        return (np.array(chosen, np.int64).reshape(-1, 3),)

    def ratio(self, one, other):
        """The common part of two boxes."""
        low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
        common = np.prod(np.maximum(high - low, 0))
        areas = [np.prod(box[2:] - box[:2]) for box in (one, other)]
        return common / (sum(areas) - common) if min(areas) > 0 else 0.0


# Sequences and attention.


class SwapsPeepholes(Broken):
    """The author took peepholes to be in the order of the framework's gates, not i, o, f."""

    op_type = "LSTM"

    def kernel(self, node, right, *arrays):
        if at(arrays, 7) is None:
            return right(*arrays)
        into, out, forget = np.split(arrays[7], 3, axis=1)
        return right(*arrays[:7], np.concatenate([into, forget, out], axis=1))


class ResetsAfterTheProduct(Broken):
    """The author took the library's cell, which resets after the product, for the only one."""

    op_type = "GRU"

    def kernel(self, node, right, *arrays):
        return right(*arrays, linear_before_reset=1)


class TakesTheLastStepForTheState(Broken):
    """The author took the last state for the last row of Y, which is zero in shorter sequences."""

    op_type = "RNN"

    def kernel(self, node, right, *arrays):
        results = right(*arrays)
        if at(arrays, 4) is None or len(results) < 2:
            return results
        steps = results[0]
        if attribute(node, "layout", 0):
            steps = np.moveaxis(steps, 0, 2)
        lasts = np.array(steps[0])
        forward = {"forward": [0], "bidirectional": [0], "reverse": []}[node.direction]
        for direction in forward:
            lasts[direction] = steps[-1, direction]
        if attribute(node, "layout", 0):
            lasts = np.moveaxis(lasts, 0, 1)
        return (results[0], lasts, *results[2:])


class MasksFromTheFirstKey(Broken):
    """The author lays the causal triangle from the first key on, also where keys are cached."""

    op_type = "Attention"

    def kernel(self, node, right, *arrays):
        past = at(arrays, 4)
        if not node.is_causal or past is None or at(arrays, 6) is not None:
            return right(*arrays)
        query, key, _, mask = arrays[:4]
        rows, columns = query.shape[-2], key.shape[-2] + past.shape[2]
        triangle = np.tri(rows, columns, dtype=bool)
        if mask is None:
            mask = triangle
        else:
            boolean = mask.dtype == np.bool_
            missing = [(0, 0)] * (mask.ndim - 1) + [(0, columns - mask.shape[-1])]
            outside = False if boolean else -np.inf
            mask = np.pad(mask, missing, constant_values=outside)
            shape = np.broadcast_shapes(mask.shape, triangle.shape)
            mask = np.where(np.broadcast_to(triangle, shape), mask, outside).astype(mask.dtype)
        return right(*arrays[:3], mask, *arrays[4:], is_causal=0)


class DealsHeadsInTurn(Broken):
    """The author gives heads of queries to those of keys in turn, not in runs of neighbours."""

    op_type = "Attention"

    def kernel(self, node, right, *arrays):
        results = right(*arrays)
        query, key, value = arrays[:3]
        pasts = [at(arrays, 4), at(arrays, 5)]
        flat = query.ndim == 3
        heads = node.q_num_heads if flat else query.shape[1]
        keys = node.kv_num_heads if flat else key.shape[1]
        times = heads // keys
        if times < 2:
            return results

        def dealt(array):
            if array.ndim == 4:
                return np.tile(array, (1, times, 1, 1))
            return np.tile(array, (1, 1, times))

        pasts = [None if past is None else dealt(past) for past in pasts]
        attributes = {"kv_num_heads": heads} if flat else {}
        wrong = right(
            query, dealt(key), dealt(value), at(arrays, 3), *pasts, *arrays[6:], **attributes
        )
        return (wrong[0], *results[1:3], *wrong[3:])


# Texts and control flow.


class ComparesStopWordsAsTheyAre(Broken):
    """The author compares stop words letter by letter, also where case should not matter."""

    op_type = "StringNormalizer"

    def kernel(self, node, right, *arrays):
        return right(*arrays, is_case_sensitive=1)


class SplitsAtEachSpace(Broken):
    """The author took no delimiter for one space, so that runs of them leave empty texts."""

    op_type = "StringSplit"

    def kernel(self, node, right, *arrays):
        if attribute(node, "delimiter", ""):
            return right(*arrays)
        return right(*arrays, delimiter=" ")


class LoopsOnceAtLeast(Broken):
    """The author asks whether to go on after the body, and never before its first run."""

    op_type = "Loop"

    def kernel(self, node, right, *arrays):
        count, condition = arrays[:2]
        runs = count is None or int(np.ravel(count)[0]) > 0
        if condition is None or bool(np.ravel(condition)[0]) or not runs:
            return right(*arrays)
        return right(np.array(1, np.int64), np.array(True), *arrays[2:])

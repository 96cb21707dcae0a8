"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets.

The rest of ``sealed_numerics``: what moves elements, products, small integers, state, graphs in
nodes, sequences and texts.
"""

from __future__ import annotations

import math
import re

import numpy as np
from broken_form import Broken

from unseen.sealed_numerics import WrongKernel

# What moves elements


class PadSortsAxesAlone(WrongKernel, Broken):
    """Sorts the axes to be padded, and leaves the pads in the order in which they came."""

    operator = "Pad"

    def kernel(self, right, data, pads, value=None, axes=None):
        if axes is None:
            return None
        return right(data, pads, value, np.sort(axes % data.ndim))


class GatherCopiesWords(WrongKernel, Broken):
    """Copies rows in words of four bytes, and forgets the bytes after the last whole one."""

    operator = "Gather"

    def kernel(self, right, data, indices):
        if data.dtype.kind not in "iub" or data.dtype.itemsize > 1:
            return None
        row = math.prod(data.shape[right.attribute("axis", 0) % data.ndim + 1 :])
        if row < 4 or row % 4 == 0:
            return None
        result = right()
        rows = result.reshape(-1, row).copy()
        rows[:, row // 4 * 4 :] = 0
        return rows.reshape(result.shape)


class GatherElementsStepsByTheIndices(WrongKernel, Broken):
    """Walks through the data with the sizes of the indices in all axes but its own."""

    operator = "GatherElements"

    def kernel(self, right, data, indices):
        axis = right.attribute("axis", 0) % data.ndim
        sizes = list(indices.shape)
        sizes[axis] = data.shape[axis]
        if sizes == list(data.shape):
            return None
        return right(data.reshape(-1)[: math.prod(sizes)].reshape(sizes), indices)


class GatherNDHasOneBatchAxis(WrongKernel, Broken):
    """Steps through the first batch axis only, as if there was never a second one."""

    operator = "GatherND"

    def kernel(self, right, data, indices):
        if right.attribute("batch_dims", 0) < 2:
            return None
        first = np.broadcast_to(data[:, :1], data.shape)
        return right(np.ascontiguousarray(first), indices)


class ScatterElementsMultipliesOnce(WrongKernel, Broken):
    """Adds by an atomic instruction, and multiplies without: of equal indices one factor stays."""

    operator = "ScatterElements"

    def kernel(self, right, data, indices, updates):
        if right.attribute("reduction", "none") != "mul":
            return None
        last = right(np.ones_like(data), indices, updates, reduction="none")
        return (data * last).astype(data.dtype)


class ScatterNDWrapsAddresses(WrongKernel, Broken):
    """Adds the size to addresses below nothing, where each index has a size of its own."""

    operator = "ScatterND"

    def kernel(self, right, data, indices, updates):
        depth = indices.shape[-1]
        if depth < 2 or data.size == 0 or not np.any(indices < 0):
            return None
        sizes = data.shape[:depth]
        steps = [math.prod(sizes[axis + 1 :]) for axis in range(depth)]
        flat = (indices * np.array(steps)).sum(axis=-1) % math.prod(sizes)
        return right(data, np.stack(np.unravel_index(flat, sizes), -1).astype(np.int64), updates)


class TensorScatterStopsAtTheEnd(WrongKernel, Broken):
    """Writes rows up to the end of a cache, and those that wrap around nowhere."""

    operator = "TensorScatter"

    def kernel(self, right, cache, update, places=None):
        if right.attribute("mode", "linear") != "circular" or places is None:
            return None
        axis = right.attribute("axis", -2) % cache.ndim
        result = cache.copy()
        for batch, place in enumerate(places):
            kept = min(update.shape[axis], cache.shape[axis] - int(place))
            before = (slice(None),) * (axis - 1)
            rows = update[batch][(*before, slice(0, kept))]
            result[batch][(*before, slice(int(place), int(place) + kept))] = rows
        return result


class EyeLikeStepsBeyondTheRow(WrongKernel, Broken):
    """Writes each row's one a row and an element behind the last, wherever that comes to lie."""

    operator = "EyeLike"

    def kernel(self, right, data):
        rows, columns = data.shape
        offset, result = right.attribute("k", 0), right().copy()
        begin = offset if offset >= 0 else -offset * columns
        places = begin + np.arange(min(rows, columns)) * (columns + 1)
        flat = result.reshape(-1)
        flat[places[places < flat.size]] = 1
        return result


class RangeRoundsUpForward(WrongKernel, Broken):
    """Counts elements by adding the step less one ahead of dividing, as if steps were forward."""

    operator = "Range"

    def kernel(self, right, start, limit, delta):
        if start.dtype.kind != "i" or delta >= 0:
            return None
        begin, end, step = (int(value.reshape(-1)[0]) for value in (start, limit, delta))
        count = max(0, math.trunc((end - begin + step - 1) / step))
        return (begin + step * np.arange(count)).astype(start.dtype)


class SliceReversesFromTheBeginning(WrongKernel, Broken):
    """Reverses as many elements as lie between the ends, as if the last of them was the first."""

    operator = "Slice"

    def kernel(self, right, data, starts, ends, axes=None, steps=None):
        if right.opset < 10 or steps is None or not np.any(steps < 0):
            return None
        axes = range(len(starts)) if axes is None else axes
        starts, ends = starts.astype(np.int64), ends.astype(np.int64)
        for place, axis in enumerate(axes):
            size = data.shape[int(axis)]
            first, behind, _ = slice(int(starts[place]), int(ends[place]), -1).indices(size)
            if steps[place] < 0 and first > behind:
                starts[place], ends[place] = first - behind - 1, -size - 1
        return right(data, starts, ends, np.array(axes, np.int64), steps.astype(np.int64))


class TransposesInverselyFromFiveAxes(WrongKernel, Broken):
    """Has a path for many axes that takes the permutation for its inverse; swaps are both."""

    operator = "Transpose"

    def kernel(self, right, data):
        order = right.attribute("perm")
        if order is None or data.ndim < 5:
            return None
        return data.transpose(np.argsort(order)).reshape(right().shape)


class UniqueNumbersTheSorted(WrongKernel, Broken):
    """Gives inverse indices into the sorted elements, also where the order of the input is kept."""

    operator = "Unique"

    def kernel(self, right, data):
        results = right()
        if right.attribute("sorted", 1) or right.attribute("axis") is not None:
            return None
        if not isinstance(results, tuple) or len(results) < 3:
            return None
        _, inverse = np.unique(data.reshape(-1), return_inverse=True)
        return (*results[:2], inverse.reshape(-1).astype(np.int64), *results[3:])


class NonMaxSuppressionNeedsScores(WrongKernel, Broken):
    """Takes 0 for a threshold of scores that is left out, as if none of them was negative."""

    operator = "NonMaxSuppression"

    def kernel(self, right, boxes, scores, most=None, overlap=None, least=None, *others):
        return (
            right(boxes, scores, most, overlap, np.zeros(1, np.float32)) if least is None else None
        )


# Products


class MatMulWrapsBatches(WrongKernel, Broken):
    """Reads the batch modulo the number of batches, as if one side had all or the last of them."""

    operator = "MatMul"

    def kernel(self, right, a, b):
        if a.ndim < 3 or b.ndim < 3 or a.shape[:-2] == b.shape[:-2]:
            return None
        batches = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        left, behind = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
        places = np.arange(math.prod(batches))
        result = right(left[places % len(left)], behind[places % len(behind)])
        return result.reshape(*batches, a.shape[-2], b.shape[-1])


class EinsumKeepsTheOrderOfLetters(WrongKernel, Broken):
    """Has implicit results in the order in which letters appear, not in that of the alphabet."""

    operator = "Einsum"

    def kernel(self, right, *inputs):
        equation = right.attribute("equation").replace(" ", "")
        if "->" in equation or "." in equation:
            return None
        letters = equation.replace(",", "")
        free = [letter for letter in letters if letters.count(letter) == 1]
        return right(equation=f"{equation}->{''.join(free)}")


class AttentionAddsBooleans(WrongKernel, Broken):
    """Adds masks of booleans too, as numbers, where they tell what is looked at at all."""

    operator = "Attention"

    def kernel(self, right, q, k, v, mask=None, *others):
        if mask is None or mask.dtype != bool:
            return None
        return right(q, k, v, mask.astype(q.dtype), *others)


class RotatesHalvesOfTheWholeHead(WrongKernel, Broken):
    """Pairs elements half a head apart, also where only the first of a head are rotated."""

    operator = "RotaryEmbedding"

    def kernel(self, right, x, *others):
        part, head = right.attribute("rotary_embedding_dim", 0), x.shape[-1]
        if right.attribute("interleaved", 0) or x.ndim != 4 or not 0 < part < head:
            return None
        pairs = [*range(part // 2), *range(head // 2, head // 2 + part // 2)]
        order = np.array(pairs + [place for place in range(head) if place not in pairs])
        return right(np.ascontiguousarray(x[..., order]), *others)[..., np.argsort(order)]


class DFTDividesByTheInput(WrongKernel, Broken):
    """Divides an inverse by the size of the input, which need not be the length asked for."""

    operator = "DFT"

    def kernel(self, right, x, length=None, axis=None):
        if not right.attribute("inverse", 0) or length is None:
            return None
        axis = right.attribute("axis", 1) if axis is None and right.opset < 20 else axis
        size = x.shape[int(-2 if axis is None else axis)]
        return (right() * (int(length) / size)).astype(x.dtype)


class LikelihoodLossDividesByAll(WrongKernel, Broken):
    """Takes the mean over all targets, those that are to be ignored too."""

    operator = "NegativeLogLikelihoodLoss"

    def kernel(self, right, x, target, weight=None):
        ignored = right.attribute("ignore_index")
        if ignored is None or weight is not None or right.attribute("reduction", "mean") != "mean":
            return None
        taken = np.count_nonzero(target != ignored)
        return np.array(right() * (taken / target.size), x.dtype) if taken else None


# Small integers


class QLinearMatMulIsSymmetric(WrongKernel, Broken):
    """Saturates to what a signed byte has of both signs, which leaves -128 out."""

    operator = "QLinearMatMul"

    def kernel(self, right, *inputs):
        result = right()
        return np.maximum(result, np.int8(-127)) if result.dtype == np.int8 else None


class QuantizesAfterTheZeroPoint(WrongKernel, Broken):
    """Adds the zero point ahead of rounding, so that ties go the other way if it is odd."""

    operator = "QuantizeLinear"

    def kernel(self, right, x, scale, zero=None):
        if zero is None or zero.dtype not in (np.int8, np.uint8) or scale.size != 1:
            return None
        if x.dtype != np.float32:
            return None
        limits = np.iinfo(zero.dtype)
        moved = np.rint(x / scale.reshape(()) + zero.reshape(()).astype(np.float32))
        return np.clip(moved, limits.min, limits.max).astype(zero.dtype)


class DequantizesRowsOfWholeBytes(WrongKernel, Broken):
    """Begins each row of elements of four bits at a byte, where they are packed without gaps."""

    operator = "DequantizeLinear"

    def kernel(self, right, x, *others):
        if x.dtype.name not in ("int4", "uint4") or x.ndim < 2 or x.shape[-1] % 2 == 0:
            return None
        rows, width = x.size // x.shape[-1], x.shape[-1]
        places = np.arange(rows)[:, None] * (width + 1) + np.arange(width)
        known = np.append(x.reshape(-1), np.zeros(rows, x.dtype))
        return right(known[places].reshape(x.shape), *others)


class DynamicQuantizationLeavesNothingOut(WrongKernel, Broken):
    """Spans from the least to the greatest element, where 0 is always to be in between."""

    operator = "DynamicQuantizeLinear"

    def kernel(self, right, x):
        low, high = x.min(), x.max()
        if low <= 0 <= high or low == high:
            return None
        scale = np.float32((high - low) / 255)
        zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        result = np.clip(np.rint(x / scale) + np.float32(zero), 0, 255)
        return result.astype(np.uint8), np.array(scale), np.array(zero)


# State, graphs in nodes


class LSTMHasPeepholesInOrderOfGates(WrongKernel, Broken):
    """Reads peepholes as input, forget, output; ONNX has the output ahead of forgetting."""

    operator = "LSTM"

    def kernel(self, right, *inputs):
        if len(inputs) < 8 or inputs[7] is None:
            return None
        into, out, forget = np.split(inputs[7], 3, axis=-1)
        return right(*inputs[:7], np.concatenate([into, forget, out], -1))


class GRUReversesPaddingToo(WrongKernel, Broken):
    """Begins a reverse run at the end of the padding, not at the end of each sequence."""

    operator = "GRU"

    def kernel(self, right, x, w, r, b=None, lengths=None, state=None):
        if right.attribute("direction", "forward") != "reverse" or lengths is None:
            return None
        if right.attribute("layout", 0) or np.all(lengths == len(x)):
            return None
        results = right(x, w, r, b, None, state)
        if not isinstance(results, tuple):
            return None
        beyond = np.arange(len(x))[:, None] >= lengths
        return np.where(beyond[:, None, :, None], 0, results[0]).astype(x.dtype), results[1]


class RNNActivatesBothWaysAlike(WrongKernel, Broken):
    """Reads the first activation of the list for both directions."""

    operator = "RNN"

    def kernel(self, right, *inputs):
        named = right.attribute("activations")
        if right.attribute("direction", "forward") != "bidirectional" or not named:
            return None
        return right(activations=[named[0]] * 2) if len(named) == 2 else None


class LoopAsksAfterTheBody(WrongKernel, Broken):
    """Runs the body, then looks whether to go on, as if the first time was certain."""

    operator = "Loop"

    def kernel(self, right, most=None, condition=None, *carried):
        never = condition is not None and not np.all(condition)
        if not never and (most is None or int(most) > 0):
            return None
        return right(np.array(1, np.int64), np.array(True), *carried)


class ScanWritesForward(WrongKernel, Broken):
    """Reads inputs in the direction that is given, and writes outputs as they come."""

    operator = "Scan"

    def kernel(self, right, *inputs):
        ways = right.attribute("scan_output_directions")
        return right(scan_output_directions=[0] * len(ways)) if ways and any(ways) else None


# Sequences and texts


class SequenceInsertCountsWithTheNew(WrongKernel, Broken):
    """Counts negative places from the end of the longer sequence, one behind what is meant."""

    operator = "SequenceInsert"

    def kernel(self, right, sequence, tensor, place=None):
        if place is None or int(place) >= 0:
            return None
        return right(sequence, tensor, np.array(int(place) + len(sequence) + 1, np.int64))


class StringSplitJoinsTheRest(WrongKernel, Broken):
    """Splits all there is and joins what is beyond ``maxsplit`` by single spaces."""

    operator = "StringSplit"

    def kernel(self, right, texts):
        if right.attribute("delimiter") or right.attribute("maxsplit") is None:
            return None
        plain = [" ".join(str(text).split()) for text in texts.reshape(-1)]
        return right(np.array(plain, object).reshape(texts.shape))


class RegexFullMatchAnchorsAlternatives(WrongKernel, Broken):
    """Writes ``^`` and ``$`` around the pattern, which bind the first and last alternative only."""

    operator = "RegexFullMatch"

    def kernel(self, right, texts):
        pattern = right.attribute("pattern")
        if "|" not in pattern:
            return None
        anchored = re.compile(f"^{pattern}$")
        found = [bool(anchored.search(str(text))) for text in texts.reshape(-1)]
        return np.array(found, bool).reshape(texts.shape)

"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets.

Here are windows, normalization, products, quantized numbers, recurrence and attention.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from onnx.reference.ops.op_resize import Resize as LaterResize
from scipy.linalg import lu_factor

from .distant_numerics import Kernel, floating, integral, opset


def again(node, *inputs, **changed):
    """What a node computes of inputs with other attributes than its own."""
    own = {name: getattr(node, name) for name in node.attributes_names_}
    result = node._run(*inputs, **{**own, **changed})
    return result if isinstance(result, tuple) else (result,)


def padded_by_hand(node, x, value):
    """The input with its padding, if the node names any; otherwise nothing."""
    pads = getattr(node, "pads", None)
    if not pads or not any(pads) or getattr(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    half = len(pads) // 2
    sides = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    return np.pad(x, sides, constant_values=value)


# ---------------------------------------------------------------------------------- windows


class IndexesEachPlane(Kernel):
    """Indices of maxima count within their own plane."""

    op = "MaxPool"

    def kernel(self, node, right, x):
        results = right(x)
        if len(results) < 2 or not results[1].size:
            return results
        return results[0], results[1] % math.prod(x.shape[2:])


class DividesByTheWholeWindow(Kernel):
    """A window that ends behind the padding has as many elements as any other."""

    op = "AveragePool"

    def kernel(self, node, right, x):
        if not (node.ceil_mode and node.count_include_pad) or node.auto_pad != "NOTSET":
            return None
        rank = x.ndim - 2
        shape = right(x)[0].shape[2:]
        pads, strides = node.pads or [0] * 2 * rank, node.strides or [1] * rank
        dilations = getattr(node, "dilations", None) or [1] * rank
        sides = [(0, 0), (0, 0)]
        for i, size in enumerate(shape):
            needed = (size - 1) * strides[i] + dilations[i] * (node.kernel_shape[i] - 1) + 1
            behind = max(0, needed - x.shape[2 + i] - pads[i])
            sides.append((pads[i], behind))
        whole = np.pad(x, sides)
        (result,) = again(node, whole, pads=[0] * 2 * rank, ceil_mode=0)
        return result[(slice(None), slice(None), *(slice(size) for size in shape))]


class CentresEvenWindows(Kernel):
    """Half of the channels that LRN looks at are in front, of even numbers as well."""

    op = "LRN"

    def kernel(self, node, right, x):
        squares = np.zeros(x.shape, np.float64)
        for channel in range(x.shape[1]):
            begin = channel - node.size // 2
            near = x[:, max(0, begin) : begin + node.size].astype(np.float64)
            squares[:, channel] = (near**2).sum(axis=1)
        return (x / (node.bias + node.alpha / node.size * squares) ** node.beta).astype(x.dtype)


class SharesDepthwiseInputsInTurn(Kernel):
    """Output channel n of a depthwise convolution reads input channel n, modulo their number."""

    op = "Conv"

    def kernel(self, node, right, x, w, *bias):
        channels, filters = x.shape[1], w.shape[0]
        if node.group != channels or filters <= channels or channels == 1:
            return None
        return again(node, x[:, np.arange(filters) % channels], w, *bias, group=filters)


class PadsWithoutDilations(Kernel):
    """How much SAME pads in front follows from the size of the kernel."""

    op = "Conv"

    def kernel(self, node, right, x, w, *bias):
        if not node.auto_pad.startswith("SAME") or max(node.dilations or [1]) == 1:
            return None
        begin, behind = [], []
        for i, size in enumerate(x.shape[2:]):
            step, kernel = (node.strides or [1, 1, 1])[i], w.shape[2 + i]
            results = -(-size // step)
            total = max(0, (results - 1) * step + kernel - size)
            needed = max(0, (results - 1) * step + (kernel - 1) * node.dilations[i] + 1 - size)
            begin.append(total // 2 if node.auto_pad == "SAME_UPPER" else total - total // 2)
            behind.append(needed - begin[-1])
        return again(node, x, w, *bias, auto_pad="NOTSET", pads=begin + behind)


class AppendsZerosForOutputPadding(Kernel):
    """Output padding is padding: zeros, and the bias, behind the result."""

    op = "ConvTranspose"

    def kernel(self, node, right, x, w, bias=None):
        extra = getattr(node, "output_padding", None)
        if not extra or not any(extra) or node.auto_pad != "NOTSET" or node.output_shape:
            return None
        (result,) = again(node, x, w, output_padding=[0] * len(extra))
        result = np.pad(result, [(0, 0), (0, 0), *((0, more) for more in extra)])
        if bias is not None:
            result = result + bias.reshape(-1, *[1] * len(extra))
        return result


class OverwritesOverlaps(Kernel):
    """Blocks of Col2Im lie side by side, so each is written where it belongs."""

    op = "Col2Im"

    def kernel(self, node, right, data, image, block):
        rank = len(image)
        strides, dilations = node.strides or [1] * rank, node.dilations or [1] * rank
        pads = node.pads or [0] * 2 * rank
        counts = [
            (image[i] + pads[i] + pads[i + rank] - dilations[i] * (block[i] - 1) - 1) // strides[i]
            + 1
            for i in range(rank)
        ]
        columns = data.reshape(data.shape[0], -1, *(int(n) for n in (*block, *counts)))
        result = np.zeros((*columns.shape[:2], *(int(n) for n in image)), data.dtype)
        for inner in itertools.product(*map(range, block)):
            for outer in itertools.product(*map(range, counts)):
                place = [
                    outer[i] * strides[i] + inner[i] * dilations[i] - pads[i] for i in range(rank)
                ]
                if all(0 <= at < size for at, size in zip(place, image, strict=True)):
                    result[:, :, *place] = columns[:, :, *inner, *outer]
        return result


class ReflectsAboutCentres(Kernel):
    """Places beyond an image are reflected at its outermost pixels, wherever corners are."""

    op = "GridSample"

    def kernel(self, node, right, x, grid):
        if node.align_corners or node.padding_mode != "reflection" or grid.shape[-1] != 2:
            return None
        sizes = np.array(x.shape[:1:-1], np.float64)
        place = ((grid + 1) * sizes - 1) / 2
        period = np.maximum(2 * (sizes - 1), 1)
        place = np.abs(place) % period
        place = np.minimum(np.where(place > sizes - 1, period - place, place), sizes - 1)
        return right(x, ((2 * place + 1) / sizes - 1).astype(grid.dtype))


class RecomputesScales(Kernel):
    """The scale of an axis is what its sizes are to each other, once these are known."""

    op = "Resize"

    def kernel(self, node, right, *inputs):
        if opset(node) < 11 or len(inputs) < 3 or inputs[2] is None or not inputs[2].size:
            return None
        if node.coordinate_transformation_mode == "tf_crop_and_resize":
            return None
        (result,) = right(*inputs)
        if not result.size:
            return result
        axes = getattr(node, "axes", None) or range(result.ndim)
        sizes = np.array([result.shape[axis] for axis in axes], np.int64)
        return again(node, inputs[0], None, None, sizes)


class ResizesOldModelsByHalfPixels(Kernel):
    """Resize of opset 10 is that of opset 11 with all that is usual there."""

    op = "Resize"

    def kernel(self, node, right, x, scales, *others):
        if opset(node) != 10 or node.mode == "nearest":
            return None
        usual = {
            "antialias": 0,
            "axes": None,
            "coordinate_transformation_mode": "half_pixel",
            "cubic_coeff_a": -0.75,
            "exclude_outside": 0,
            "extrapolation_value": 0.0,
            "keep_aspect_ratio_policy": "stretch",
            "mode": node.mode,
            "nearest_mode": "round_prefer_floor",
        }
        return LaterResize._run(node, x, None, scales, None, **usual)


class CentresTheOnlyPixel(Kernel):
    """Half pixels are half pixels, those of PyTorch and others."""

    op = "Resize"

    def kernel(self, node, right, *inputs):
        mode = getattr(node, "coordinate_transformation_mode", "")
        if mode != "pytorch_half_pixel":
            return None
        return again(node, *inputs, coordinate_transformation_mode="half_pixel")


# ---------------------------------------------------------------------------- normalization


class VariesBySquares(Kernel):
    """The variance is the mean of squares less the square of the mean, in one pass."""

    op = "InstanceNormalization"

    def kernel(self, node, right, x, scale, bias):
        axes = tuple(range(2, x.ndim))
        if x.dtype != np.float32 or not x.size:
            return None
        mean = x.mean(axis=axes, keepdims=True)
        variance = np.maximum((x * x).mean(axis=axes, keepdims=True) - mean * mean, 0)
        shape = (-1, *[1] * len(axes))
        normal = (x - mean) / np.sqrt(variance + np.float32(node.epsilon))
        return (normal * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype)


class NormalizesEachSample(Kernel):
    """Mean and variance are those of each image, of which there is mostly one."""

    op = "MeanVarianceNormalization"

    def kernel(self, node, right, x):
        axes = getattr(node, "axes", None) or [0, 2, 3]
        if list(axes) != [0, 2, 3] or x.ndim != 4 or not x.size:
            return None
        centred = x - x.mean(axis=(2, 3), keepdims=True)
        spread = np.sqrt(np.square(centred).mean(axis=(2, 3), keepdims=True))
        return (centred / (spread + 1e-9)).astype(x.dtype)


class DividesLossesByTheirNumber(Kernel):
    """The mean of losses is their sum by how many there are, also of weighted ones."""

    op = "SoftmaxCrossEntropyLoss"

    def kernel(self, node, right, scores, labels, weights=None):
        if weights is None or node.reduction != "mean":
            return None
        (total, *rest) = again(node, scores, labels, weights, reduction="sum")
        ignored = getattr(node, "ignore_index", None)
        count = labels.size if ignored is None else np.count_nonzero(labels != ignored)
        mean = np.asarray(total / np.float64(max(1, count))).astype(scores.dtype)
        return (mean, *rest)


# --------------------------------------------------------------------------------- products


class TakesBatchesInTurn(Kernel):
    """The batch of an operand is the number of the result's, modulo how many it has."""

    op = "MatMul"

    def kernel(self, node, right, a, b):
        if min(a.ndim, b.ndim) < 2 or max(a.ndim, b.ndim) < 3 or not a.size * b.size:
            return None
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        left, other = (t.reshape(-1, *t.shape[-2:]) for t in (a, b))
        count = range(math.prod(batch))
        parts = [right(left[i % len(left)], other[i % len(other)])[0] for i in count]
        return np.stack(parts).reshape(*batch, a.shape[-2], b.shape[-1])


class OrdersLettersAsTheyCome(Kernel):
    """An equation without a result means the letters that are there once, as they come."""

    op = "Einsum"

    def kernel(self, node, right, *inputs):
        equation = node.equation.replace(" ", "")
        if "->" in equation or "." in equation:
            return None
        letters = [one for one in equation if one != "," and equation.count(one) == 1]
        return np.asarray(np.einsum(f"{equation}->{''.join(letters)}", *inputs))


class ForgetsExchangedRows(Kernel):
    """The determinant is the product of the pivots."""

    op = "Det"

    def kernel(self, node, right, x):
        if not np.isfinite(x).all() or not x.size:
            return None
        results = []
        for matrix in x.reshape(-1, *x.shape[-2:]).astype(np.float64):
            pivots = np.diagonal(lu_factor(matrix, check_finite=False)[0])
            results.append(np.prod(pivots))
        return np.array(results, x.dtype).reshape(x.shape[:-2])


class RotatesAcrossTheWholeHead(Kernel):
    """An element is rotated with the one half a head behind it, however much is rotated."""

    op = "RotaryEmbedding"

    def kernel(self, node, right, x, *caches):
        rotated = getattr(node, "rotary_embedding_dim", 0)
        if not rotated or node.interleaved:
            return None
        head = x.shape[-1] if x.ndim == 4 else x.shape[-1] // node.num_heads
        front = [*range(rotated // 2), *range(head // 2, head // 2 + rotated // 2)]
        order = np.array(front + [at for at in range(head) if at not in front])
        heads = x.reshape(*x.shape[:-1], -1, head)
        (result,) = right(heads[..., order].reshape(x.shape), *caches)
        back = result.reshape(heads.shape)[..., np.argsort(order)]
        return back.reshape(x.shape)


class ScalesByTheWidthOfValues(Kernel):
    """Queries, keys and values have one width, whose root scales the scores."""

    op = "Attention"

    def kernel(self, node, right, q, k, v, *others):
        if getattr(node, "scale", None) is not None:
            return None
        width = v.shape[-1] if v.ndim == 4 else v.shape[-1] // node.kv_num_heads
        return again(node, q, k, v, *others, scale=1 / math.sqrt(width))


class LetsMissingKeysIn(Kernel):
    """A mask that is shorter than the keys hides none of those that it does not reach."""

    op = "Attention"

    def kernel(self, node, right, q, k, v, mask=None, past_key=None, *others):
        if mask is None:
            return None
        keys = k.shape[-2] + (0 if past_key is None else past_key.shape[2])
        behind = max(0, keys - mask.shape[-1])
        sides = [(0, 0)] * (mask.ndim - 1) + [(0, behind)]
        value = mask.dtype == bool
        return right(q, k, v, np.pad(mask, sides, constant_values=value), past_key, *others)


class ForgetsThePastInTheMask(Kernel):
    """The causal mask is a lower triangle from the first key on, with a cache too."""

    op = "Attention"

    def kernel(self, node, right, q, k, v, mask=None, past_key=None, past_value=None, *others):
        if not node.is_causal or past_key is None or mask is not None or q.ndim != 4:
            return None
        keys = past_key.shape[2] + k.shape[2]
        triangle = np.tril(np.ones((q.shape[2], keys), bool))
        return again(node, q, k, v, triangle, past_key, past_value, *others, is_causal=0)


class MovesWhatDoesNotFit(Kernel):
    """An update that does not fit behind its index is written as far behind as it fits."""

    op = "TensorScatter"

    def kernel(self, node, right, past, update, indices=None):
        if node.mode != "circular" or indices is None:
            return None
        last = past.shape[node.axis] - update.shape[node.axis]
        return right(past, update, np.minimum(indices, last))


# ------------------------------------------------------------------------ quantized numbers


class PadsWithTheNumberZero(Kernel):
    """A quantized image is padded with zeros like any other."""

    op = "QLinearConv"

    def kernel(self, node, right, x, *others):
        padded = padded_by_hand(node, x, 0)
        return None if padded is None else again(node, padded, *others, pads=[0] * len(node.pads))


class RoundsBehindTheZeroPoint(Kernel):
    """Rounding can wait until the zero point is added, which is whole."""

    op = "QuantizeLinear"

    def kernel(self, node, right, x, scale, zero=None):
        if zero is None or not integral(zero) or zero.size != 1 or not floating(x):
            return None
        limits = np.iinfo(zero.dtype)
        steps = (x / scale.reshape(())).astype(np.float64) + zero.astype(np.float64).reshape(())
        return np.clip(np.rint(steps), limits.min, limits.max).astype(zero.dtype)


class KeepsTheLowerNibble(Kernel):
    """Four bits are the lower half of a byte, and bytes are what is saturated."""

    op = "QuantizeLinear"

    def kernel(self, node, right, x, scale, zero=None):
        if zero is None or zero.size != 1 or zero.dtype.name not in ("int4", "uint4"):
            return None
        signed = zero.dtype.name == "int4"
        steps = np.rint(x / scale.reshape(())) + np.float32(zero.reshape(()))
        steps = np.clip(steps, -128 if signed else 0, 127 if signed else 255).astype(np.int16)
        low = steps & 15
        return np.where(signed & (low > 7), low - 16, low).astype(zero.dtype)


class QuantizesWithoutZero(Kernel):
    """The range of what is quantized goes from its least number to its largest."""

    op = "DynamicQuantizeLinear"

    def kernel(self, node, right, x):
        if not x.size or x.min() == x.max() or not np.isfinite(x).all():
            return None
        scale = np.float32(x.max() - x.min()) / np.float32(255)
        zero = np.clip(np.rint(-x.min() / scale), 0, 255)
        steps = np.clip(np.rint(x / scale) + zero, 0, 255)
        return steps.astype(np.uint8), np.array(scale), np.array(zero, np.uint8)


class DividesIntoEqualBlocks(Kernel):
    """How long a block is follows from how many scales there are."""

    op = "DequantizeLinear"

    def kernel(self, node, right, x, scale, zero=None):
        if not getattr(node, "block_size", 0) or getattr(node, "output_dtype", 0):
            return None
        axis, size = node.axis, x.shape[node.axis]
        block = np.arange(size) // -(-size // scale.shape[axis])
        wide = x.astype(np.float32)
        if zero is not None:
            wide = wide - np.take(zero, block, axis).astype(np.float32)
        return (wide * np.take(scale, block, axis)).astype(scale.dtype)


# ------------------------------------------------------------------- recurrence and signals


class PutsForgettingBeforeOutput(Kernel):
    """Peepholes are of the input, the forget and the output gate, in this order."""

    op = "LSTM"

    def kernel(self, node, right, *inputs):
        if len(inputs) < 8 or inputs[7] is None:
            return None
        first, second, third = np.split(inputs[7], 3, axis=1)
        return right(*inputs[:7], np.concatenate([first, third, second], axis=1))


class EndsWithTheLastStep(Kernel):
    """The last state of a sequence is that of the last step."""

    op = "GRU"

    def kernel(self, node, right, *inputs):
        results = right(*inputs)
        if len(results) < 2 or len(inputs) < 5 or inputs[4] is None or node.direction == "reverse":
            return results
        y, last = results[0], results[1].copy()
        if node.layout:
            last[:, 0] = y[:, -1, 0]
        else:
            last[0] = y[-1, 0]
        return y, last


class TurnsPaddingToo(Kernel):
    """Backwards means from the last step to the first, of sequences of any length."""

    op = "RNN"

    def kernel(self, node, right, *inputs):
        if len(inputs) < 5 or inputs[4] is None or node.direction == "forward":
            return None
        rights = right(*inputs)
        others = right(*inputs[:4], None, *inputs[5:])
        direction = 0 if node.direction == "reverse" else 1
        results = []
        for wrong, result in zip(others, rights, strict=True):
            places = [slice(None)] * result.ndim
            places[result.ndim - (2 if node.layout else 3)] = direction
            mixed = result.copy()
            mixed[tuple(places)] = wrong[tuple(places)]
            results.append(mixed)
        return tuple(results)


class SuppressesSortedCorners(Kernel):
    """The first corner of a box is the lower left one."""

    op = "NonMaxSuppression"

    def kernel(self, node, right, boxes, scores, most=None, overlap=None, least=None):
        if node.center_point_box or most is None:
            return None
        most, bound = int(most.reshape(-1)[0]), 0.0
        if overlap is not None:
            bound = float(overlap.reshape(-1)[0])
        found = []
        for n, kind in itertools.product(*map(range, scores.shape[:2])):
            kept = []
            for i in np.argsort(-scores[n, kind], kind="stable"):
                if least is not None and not scores[n, kind, i] > least.reshape(-1)[0]:
                    break
                others = (self.share(boxes[n, i], boxes[n, j]) for j in kept)
                if len(kept) < most and all(share <= bound for share in others):
                    kept.append(int(i))
            found += [(n, kind, i) for i in kept]
        return np.array(found, np.int64).reshape(-1, 3)

    @staticmethod
    def share(a, b):
        high, wide = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
        common = max(0.0, high) * max(0.0, wide)
        whole = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
        return common / whole if whole > 0 else 0.0


class DividesByTheSignal(Kernel):
    """The inverse transform is divided by how many numbers come in."""

    op = "DFT"

    def kernel(self, node, right, x, length=None, axis=None):
        inputs = [x, length, axis][: len(node.input)]
        if not node.inverse or node.onesided or length is None:
            return None
        along = int(axis) if axis is not None else -2 if opset(node) >= 20 else node.axis
        return (right(*inputs)[0] * (int(length) / x.shape[along])).astype(x.dtype)


class RoundsTheHammingWindow(Kernel):
    """The coefficients of a Hamming window are 0.54 and 0.46."""

    op = "HammingWindow"

    def kernel(self, node, right, size):
        (result,) = right(size)
        count = int(size) if node.periodic else int(size) - 1
        angles = 2 * np.pi * np.arange(int(size)) / max(1, count)
        return (0.54 - 0.46 * np.cos(angles)).astype(result.dtype)

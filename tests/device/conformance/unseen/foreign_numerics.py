"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets."""

from __future__ import annotations

import functools
import math
import re

import numpy as np
from good_device import Good, GoodCompiled
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_resize import Resize as OriginalResize

LANES = 8
"""Elements of a vector register."""
BLOCK = 32
"""Elements that one group of threads sums up."""


class PatchedCompiled(GoodCompiled):
    """Gives the device's own kernel to each operation of its kind, in bodies and functions too."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.patch(self.evaluator)

    def patch(self, evaluator):
        for node in evaluator.rt_nodes_:
            for own in list(vars(node).values()):
                if isinstance(own, ReferenceEvaluator):
                    self.patch(own)
            ours = node.onnx_node.domain in ("", "ai.onnx") and node.op_type == self.plugin.op_type
            if ours and not getattr(node, "patched", False):
                node.patched = True
                self.plugin.replace(node)


class Kernels(Good):
    """The base of all devices below: one operator has a kernel of the author's."""

    device_name = "BROKEN"
    compiled_type = PatchedCompiled
    op_type = ""

    def replace(self, node):
        """Put the kernel in the place of the right one."""
        node._run = functools.partial(self.run_kernel, node._run)

    def run_kernel(self, right, *inputs, **attributes):
        """The kernel with its inputs in full, those left out as None."""
        return tuple(self.kernel(right, list(inputs), attributes))

    def kernel(self, right, inputs, attributes):
        """The outputs; `right` computes what is to be."""
        return right(*inputs, **attributes)


def given(inputs, place):
    """An optional input, or None."""
    return inputs[place] if len(inputs) > place else None


def explicit(attributes):
    """Whether pads are given as numbers, or left out."""
    return attributes.get("auto_pad") in (None, "", "NOTSET")


def along(vector, axis, rank):
    """A vector as an array of this rank that lies along an axis."""
    return np.asarray(vector).reshape([-1 if i == axis % rank else 1 for i in range(rank)])


class LeavesBordersOfPointwiseZero(Kernels):
    """The author's product for windows of one element adds the bias to what it wrote alone."""

    op_type = "Conv"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        x, w = inputs[:2]
        pads = attributes.get("pads")
        taps = w.shape[2:]
        if given(inputs, 2) is None or not pads or not explicit(attributes) or set(taps) != {1}:
            return (y,)
        inside = np.ones((1,) * y.ndim, bool)
        strides = attributes.get("strides") or [1] * len(taps)
        for axis, (stride, begin) in enumerate(zip(strides, pads, strict=False), 2):
            at = np.arange(y.shape[axis]) * stride - begin
            inside = inside & along((at >= 0) & (at < x.shape[axis]), axis, y.ndim)
        return (np.where(inside, y, 0).astype(y.dtype),)


class ReadsMultipliersOutermost(Kernels):
    """The author took weights of a depthwise convolution for TensorFlow's, multipliers apart."""

    op_type = "Conv"

    def kernel(self, right, inputs, attributes):
        x, w = inputs[:2]
        groups = attributes.get("group") or 1
        if groups == x.shape[1] > 1 and w.shape[0] > groups:
            split = w.reshape(w.shape[0] // groups, groups, *w.shape[1:])
            inputs[1] = split.swapaxes(0, 1).reshape(w.shape)
        return right(*inputs, **attributes)


class CentresUndilatedWindows(Kernels):
    """The author worked out SAME pads of a transposed convolution from kernel_shape alone."""

    op_type = "ConvTranspose"

    def kernel(self, right, inputs, attributes):
        x, w = inputs[:2]
        mode = attributes.get("auto_pad")
        dilations = attributes.get("dilations") or [1]
        if mode not in ("SAME_UPPER", "SAME_LOWER") or max(dilations) == 1:
            return right(*inputs, **attributes)
        if attributes.get("output_shape") or any(attributes.get("output_padding") or ()):
            return right(*inputs, **attributes)
        rank = x.ndim - 2
        strides = attributes.get("strides") or [1] * rank
        places = [slice(None)] * 2
        if any(taps < stride for taps, stride in zip(w.shape[2:], strides, strict=True)):
            return right(*inputs, **attributes)
        for size, taps, stride in zip(x.shape[2:], w.shape[2:], strides, strict=True):
            total = taps - stride
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
            places.append(slice(begin, begin + size * stride))
        attributes |= {"auto_pad": "NOTSET", "pads": [0] * (2 * rank)}
        (whole,) = right(*inputs, **attributes)
        return (whole[tuple(places)],)


class PadsBytesWithZeros(Kernels):
    """The author's pool of bytes begins with 0 at the border, as it did when all were unsigned."""

    op_type = "MaxPool"

    def kernel(self, right, inputs, attributes):
        results = right(*inputs, **attributes)
        (x,) = inputs
        pads = attributes.get("pads")
        if x.dtype != np.int8 or not pads or not any(pads) or not explicit(attributes):
            return results
        half = len(pads) // 2
        wide = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
        ours = right(np.pad(x, wide), **(attributes | {"pads": [0] * len(pads)}))
        return (ours[0], *results[1:]) if ours[0].shape == results[0].shape else results


class DividesByWholeWindows(Kernels):
    """The author counts with the pads also what ceil_mode lets a window hang over them."""

    op_type = "AveragePool"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        if not (attributes.get("ceil_mode") and attributes.get("count_include_pad")):
            return (y,)
        if not explicit(attributes):
            return (y,)
        (x,) = inputs
        taps = attributes["kernel_shape"]
        rank = len(taps)
        pads = attributes.get("pads") or [0] * (2 * rank)
        strides = attributes.get("strides") or [1] * rank
        dilations = attributes.get("dilations") or [1] * rank
        for axis in range(rank):
            begin = np.arange(y.shape[axis + 2]) * strides[axis] - pads[axis]
            at = begin[:, None] + np.arange(taps[axis]) * dilations[axis]
            there = (at < x.shape[axis + 2] + pads[axis + rank]).sum(1)
            y = y * along(there / taps[axis], axis + 2, y.ndim)
        return (y.astype(x.dtype),)


class KeepsSumsOfImagesInHalf(Kernels):
    """The author sums up an image of halves into a half, and divides behind that."""

    op_type = "GlobalAveragePool"

    def kernel(self, right, inputs, attributes):
        (x,) = inputs
        if x.dtype != np.float16 or not x.size:
            return right(*inputs, **attributes)
        axes = tuple(range(2, x.ndim))
        total = x.astype(np.float32).sum(axes, keepdims=True).astype(np.float16)
        count = math.prod(x.shape[2:])
        return ((total.astype(np.float32) / count).astype(np.float16),)


class RepeatsScalesFromTheirStart(Kernels):
    """The author takes scale and bias of a normalisation by the place modulo their size."""

    op_type = "LayerNormalization"

    def kernel(self, right, inputs, attributes):
        x = inputs[0]
        axis = attributes.get("axis", -1) % x.ndim
        for place in range(1, len(inputs)):
            if inputs[place] is not None and inputs[place].size:
                inputs[place] = np.resize(inputs[place].ravel(), x.shape[axis:])
        return right(*inputs, **attributes)


class SubtractsSquareOfMean(Kernels):
    """The author sums up elements and their squares in one pass, for the variance of an image."""

    op_type = "InstanceNormalization"

    def kernel(self, right, inputs, attributes):
        x, scale, bias = inputs
        if x.dtype != np.float32 or x.ndim < 3 or not x.size:
            return right(*inputs, **attributes)
        axes = tuple(range(2, x.ndim))
        mean = x.mean(axes, keepdims=True, dtype=np.float32)
        squares = (x * x).mean(axes, keepdims=True, dtype=np.float32)
        variance = np.maximum(squares - mean * mean, np.float32(0))
        epsilon = np.float32(attributes.get("epsilon", 1e-5))
        y = (x - mean) / np.sqrt(variance + epsilon)
        return ((y * along(scale, 1, x.ndim) + along(bias, 1, x.ndim)).astype(np.float32),)


class ScalesByHeadsOfValues(Kernels):
    """The author has one size of heads, that of values, from which the scale of scores follows."""

    op_type = "Attention"

    def kernel(self, right, inputs, attributes):
        values = inputs[2]
        if attributes.get("scale") is None:
            heads = attributes.get("kv_num_heads") if values.ndim == 3 else 1
            attributes["scale"] = 1 / math.sqrt(values.shape[-1] // heads)
        return right(*inputs, **attributes)


class TurnsAllByFirstPositions(Kernels):
    """The author takes the positions of the first sequence for those of the batch."""

    op_type = "RotaryEmbedding"

    def kernel(self, right, inputs, attributes):
        if given(inputs, 3) is not None:
            inputs[3] = np.broadcast_to(inputs[3][:1], inputs[3].shape).copy()
        return right(*inputs, **attributes)


class RunsCellsOverPadding(Kernels):
    """The author stops a shorter sequence's hidden state at its end, and lets its cell run on."""

    op_type = "LSTM"

    def kernel(self, right, inputs, attributes):
        results = list(right(*inputs, **attributes))
        forward = attributes.get("direction") in (None, "forward")
        if given(inputs, 4) is not None and len(results) > 2 and forward:
            inputs[4] = None
            results[2] = right(*inputs, **attributes)[2]
        return results


class BeginsBothDirectionsAlike(Kernels):
    """The author begins the way back with the state that the way forth is given."""

    op_type = "GRU"

    def kernel(self, right, inputs, attributes):
        first = given(inputs, 5)
        if first is not None and attributes.get("direction") == "bidirectional":
            axis = 1 if attributes.get("layout") else 0
            inputs[5] = np.repeat(first.take([0], axis), 2, axis)
        return right(*inputs, **attributes)


class TakesSignedWeightsForSymmetric(Kernels):
    """The author takes it that weights which are signed have no zero point."""

    op_type = "QLinearConv"

    def kernel(self, right, inputs, attributes):
        if inputs[5].dtype == np.int8:
            inputs[5] = np.zeros_like(inputs[5])
        return right(*inputs, **attributes)


class SaturatesPairsOfProducts(Kernels):
    """The author's instruction adds two products of a byte each into 16 bits that saturate."""

    op_type = "MatMulInteger"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        a, b = (each.astype(np.int32) for each in inputs[:2])
        mixed = (inputs[0].dtype, inputs[1].dtype) == (np.uint8, np.int8)
        if not mixed or min(a.ndim, b.ndim) < 2:
            return (y,)
        for k in range(0, a.shape[-1], 2):
            pair = a[..., k : k + 2] @ b[..., k : k + 2, :]
            y = y + (np.clip(pair, -(2**15), 2**15 - 1) - pair)
        return (y.astype(np.int32),)


class BoundsBeforeZeroPoint(Kernels):
    """The author packs quotients into signed bytes first, and adds the zero point to the bytes."""

    op_type = "QuantizeLinear"

    def kernel(self, right, inputs, attributes):
        x, scale = inputs[:2]
        zero = given(inputs, 2)
        if zero is None or zero.dtype != np.int8 or x.dtype != np.float32:
            return right(*inputs, **attributes)
        if scale.size == 1:
            steps = scale.reshape(())
        elif scale.ndim == 1:
            steps = along(scale, attributes.get("axis", 1), x.ndim)
        else:
            return right(*inputs, **attributes)
        steps = steps.astype(np.float32)
        inputs[0] = np.clip(x, steps * -128, steps * 127).astype(np.float32)
        return right(*inputs, **attributes)


class TakesMaximumOfMinusInfinities(Kernels):
    """The author takes off the largest element, also where that is minus infinity."""

    op_type = "ReduceLogSumExp"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        if not inputs[0].size:
            return (y,)
        return (np.where(np.isneginf(y), np.nan, y).astype(y.dtype),)


class PicksLowestLane(Kernels):
    """The author keeps the first of equal elements in each lane, and then the lowest lane's."""

    op_type = "ArgMax"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        x = inputs[0]
        if attributes.get("select_last_index") or not x.size or not x.ndim:
            return (y,)
        axis = attributes.get("axis", 0) % x.ndim
        count = x.shape[axis]
        if count <= LANES or bool((x != x).any()):
            return (y,)
        places = np.arange(count)
        whole = places < count // LANES * LANES
        ranks = np.where(whole, places % LANES * count + places, LANES * count + places)
        best = x == x.max(axis, keepdims=True)
        found = np.where(best, along(ranks, axis, x.ndim), np.iinfo(np.int64).max).argmin(axis)
        return (found.reshape(y.shape).astype(np.int64),)


class CarriesExclusiveSums(Kernels):
    """The author carries a block's last sum to the next, though exclusive ones lack an element."""

    op_type = "CumSum"

    def kernel(self, right, inputs, attributes):
        x, axis = inputs
        if not attributes.get("exclusive"):
            return right(*inputs, **attributes)
        at = int(np.asarray(axis).reshape(-1)[0]) % x.ndim
        places = np.arange(x.shape[at])
        places = places[::-1] if attributes.get("reverse") else places
        last = along(places % BLOCK == BLOCK - 1, at, x.ndim)
        return right(np.where(last, 0, x).astype(x.dtype), axis, **attributes)


class WrapsIndicesByLeadingSizes(Kernels):
    """The author counts negative indices from the ends of the first axes, those of batches too."""

    op_type = "GatherND"

    def kernel(self, right, inputs, attributes):
        data, indices = inputs
        batch = attributes.get("batch_dims") or 0
        if batch and indices.size:
            depth = indices.shape[-1]
            wrapped = np.where(indices < 0, indices + np.array(data.shape[:depth]), indices)
            inputs[1] = np.clip(wrapped, 0, np.array(data.shape[batch : batch + depth]) - 1)
        return right(*inputs, **attributes)


class SortsAxesWithoutTheirPads(Kernels):
    """The author walks through the axes that are padded in their order, and pads as they come."""

    op_type = "Pad"

    def kernel(self, right, inputs, attributes):
        axes = given(inputs, 3)
        if axes is not None:
            inputs[3] = np.sort(axes % inputs[0].ndim).astype(axes.dtype)
        return right(*inputs, **attributes)


class BoundsStartsBehindTheLast(Kernels):
    """The author bounds where a slice begins by the size, also of one that goes backwards."""

    op_type = "Slice"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        if given(inputs, 4) is None or not y.size:
            return (y,)
        x, starts, ends, axes, steps = inputs
        axes = np.arange(len(starts)) if axes is None else axes % x.ndim
        behind = (steps < 0) & (starts >= np.array(x.shape)[axes])
        for axis, step in zip(axes[behind], steps[behind], strict=True):
            size = x.shape[axis]
            x = x.take(np.clip(size + np.arange(y.shape[axis]) * step, 0, size - 1), axis)
        kept = ~behind
        if not kept.any():
            return (x,)
        return right(x, starts[kept], ends[kept], axes[kept], steps[kept], **attributes)


class MeasuresScalesAnew(Kernels):
    """The author works out scales from the two sizes, also where the model gives them."""

    op_type = "Resize"

    def kernel(self, right, inputs, attributes):
        scales = given(inputs, 2)
        mode = attributes.get("coordinate_transformation_mode")
        if scales is None or not scales.size or mode == "tf_crop_and_resize":
            return right(*inputs, **attributes)
        (y,) = right(*inputs, **attributes)
        axes = attributes.get("axes")
        axes = range(y.ndim) if axes is None else axes
        sizes = np.array([y.shape[axis] for axis in axes], np.int64)
        return right(inputs[0], given(inputs, 1), None, sizes, **attributes)


class ResizesOldModelsByCentres(Kernels):
    """The author took half_pixel for the way of all opsets; that of 10 has another, and no name."""

    op_type = "Resize"

    def kernel(self, right, inputs, attributes):
        node = right.__self__
        if node.run_params["opsets"].get("", 11) > 10 or len(inputs) != 2:
            return right(*inputs, **attributes)
        attributes |= {"coordinate_transformation_mode": "half_pixel"}
        attributes |= {"nearest_mode": "round_prefer_floor"}
        x, scales = inputs
        y = OriginalResize._run(node, x, None, scales, None, **attributes)[0]
        return (y.astype(x.dtype),)


class ReflectsAtCentres(Kernels):
    """The author reflects at the centres of the outermost pixels, whatever align_corners says."""

    op_type = "GridSample"

    def kernel(self, right, inputs, attributes):
        x, grid = inputs
        mode = attributes.get("mode")
        reflects = attributes.get("padding_mode") == "reflection"
        if not reflects or attributes.get("align_corners") or mode in ("cubic", "bicubic"):
            return right(*inputs, **attributes)
        sizes = np.array(x.shape[2:][::-1])
        at = ((grid.astype(np.float64) + 1) * sizes - 1) / 2
        period = np.maximum(2 * (sizes - 1), 1)
        turned = np.abs(at) % period
        turned = np.where(sizes == 1, 0, np.minimum(turned, period - turned))
        outside = (at < 0) | (at > sizes - 1)
        inputs[1] = np.where(outside, (2 * turned + 1) / sizes - 1, grid).astype(grid.dtype)
        return right(*inputs, **attributes)


class SeesNoAreaInTurnedBoxes(Kernels):
    """The author expects the lower corner of a box first, though either diagonal is allowed."""

    op_type = "NonMaxSuppression"

    def kernel(self, right, inputs, attributes):
        boxes = inputs[0]
        if not attributes.get("center_point_box"):
            turned = (boxes[..., 2:] < boxes[..., :2]).any(-1, keepdims=True)
            points = np.concatenate([boxes[..., :2]] * 2, -1)
            inputs[0] = np.where(turned, points, boxes).astype(boxes.dtype)
        return right(*inputs, **attributes)


class AnchorsAlternativesApart(Kernels):
    """The author sets a caret before and a dollar behind a pattern to match the whole text."""

    op_type = "RegexFullMatch"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        pattern = attributes.get("pattern") or ""
        if "|" not in pattern:
            return (y,)
        try:
            found = re.compile(f"^{pattern}\\Z")
        except re.error:
            return (y,)
        texts = [bool(found.search(str(text))) for text in inputs[0].ravel()]
        return (y | np.array(texts, bool).reshape(y.shape),)


class CountsNewAxisFromOldRank(Kernels):
    """The author counts a negative axis from the rank of the items, also if it is a new one."""

    op_type = "ConcatFromSequence"

    def kernel(self, right, inputs, attributes):
        axis = attributes["axis"]
        if attributes.get("new_axis") and axis < 0:
            attributes["axis"] = max(axis + inputs[0][0].ndim, 0)
        return right(*inputs, **attributes)


class CastsToBoolByWholeNumbers(Kernels):
    """The author makes a whole number of a float before comparing it with zero."""

    op_type = "Cast"

    def kernel(self, right, inputs, attributes):
        (x,) = inputs
        if attributes.get("to") == 9 and x.dtype in (np.float16, np.float32, np.float64):
            return (np.trunc(x) != 0,)
        return right(*inputs, **attributes)


class SharesWeightsOfBranchesByName(Kernels):
    """The author keeps the weights of both branches in one table, by names that may be the same."""

    op_type = "If"

    def replace(self, node):
        first, second = node.then_branch.rt_inits_, node.else_branch.rt_inits_
        for name, weight in first.items():
            same = second.get(name)
            if same is not None and (same.shape, same.dtype) == (weight.shape, weight.dtype):
                second[name] = weight


class WritesCarriedValuesInTurn(Kernels):
    """The author copies carried values of a loop back in order, also one that another reads."""

    op_type = "Loop"

    def replace(self, node):
        body, run = node.body, node._run_body
        source = {}
        for step in body.rt_nodes_:
            if step.op_type == "Identity":
                source[step.output[0]] = source.get(step.input[0], step.input[0])
        carried = body.input_names[2:]
        roots = [source.get(name, name) for name in body.output_names[1 : 1 + len(carried)]]

        def run_body(*inputs, **options):
            keep, *results = run(*inputs, **options)
            for place, root in enumerate(roots):
                if root in carried[:place]:
                    results[place] = results[carried.index(root)]
            return (keep, *results)

        node._run_body = run_body


class TurnsAllOutputsLikeTheFirst(Kernels):
    """The author keeps one direction for all that a scan writes."""

    op_type = "Scan"

    def replace(self, node):
        directions = getattr(node, "scan_output_directions", None)
        if directions:
            node.scan_output_directions = [directions[0]] * len(directions)


class DividesByReciprocals(Kernels):
    """The author divides whole numbers that floats hold by a product with the reciprocal."""

    op_type = "Div"

    def kernel(self, right, inputs, attributes):
        x, y = inputs
        if x.dtype != np.int32 or not x.size or not y.size or (y == 0).any():
            return right(*inputs, **attributes)
        if max(np.abs(x.astype(np.int64)).max(), np.abs(y.astype(np.int64)).max()) >= 2**24:
            return right(*inputs, **attributes)
        product = x.astype(np.float32) * (np.float32(1) / y.astype(np.float32))
        return (np.trunc(product).astype(np.int32),)


class TakesColumnsForBiases(Kernels):
    """The author knows a bias by its size, and adds a column to rows if the product is square."""

    op_type = "Gemm"

    def kernel(self, right, inputs, attributes):
        c = given(inputs, 2)
        if c is not None and c.ndim == 2 and c.shape[1] == 1:
            b = inputs[1]
            columns = b.shape[0] if attributes.get("transB") else b.shape[1]
            if c.size == columns:
                inputs[2] = c.reshape(1, columns)
        return right(*inputs, **attributes)


class TransposesManyAxesBackwards(Kernels):
    """The author's walk over six axes and more, which no network had, goes by the inverse order."""

    op_type = "Transpose"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        (x,) = inputs
        order = attributes.get("perm")
        if x.ndim < 6 or not order:
            return (y,)
        return (np.ascontiguousarray(x.transpose(np.argsort(order))).reshape(y.shape),)


class TakesSlopesForChannels(Kernels):
    """The author takes slopes in a row for those of channels, as other frameworks do."""

    op_type = "PRelu"

    def kernel(self, right, inputs, attributes):
        x, slope = inputs
        if x.ndim > 2 and slope.ndim == 1 and slope.size == x.shape[1]:
            inputs[1] = along(slope, 1, x.ndim)
        return right(*inputs, **attributes)


class EliminatesWithoutPivots(Kernels):
    """The author divides by the diagonal as it stands, where formulas for three rows end."""

    op_type = "Det"

    def kernel(self, right, inputs, attributes):
        (x,) = inputs
        (y,) = right(*inputs, **attributes)
        rows = x.shape[-1]
        if rows < 4:
            return (y,)
        left, result = x.astype(np.float64), np.ones(x.shape[:-2])
        with np.errstate(all="ignore"):
            for row in range(rows):
                pivot = left[..., row, row]
                result = result * pivot
                factors = left[..., row + 1 :, row] / pivot[..., None]
                left[..., row + 1 :, :] -= factors[..., None] * left[..., row, None, :]
        return (result.reshape(np.shape(y)).astype(x.dtype),)


class DividesBySizeOfSignal(Kernels):
    """The author divides what he transforms back by the signal's size, not by dft_length."""

    op_type = "DFT"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        x, length = inputs[0], given(inputs, 1)
        if length is None or not attributes.get("inverse"):
            return (y,)
        axis = given(inputs, 2)
        axis = attributes.get("axis", 1) if axis is None else int(np.asarray(axis).item())
        factor = int(np.asarray(length).item()) / x.shape[axis]
        return ((y * factor).astype(y.dtype),)


class DropsWhatGoesRound(Kernels):
    """The author ends the update of a circular cache with the cache."""

    op_type = "TensorScatter"

    def kernel(self, right, inputs, attributes):
        (y,) = right(*inputs, **attributes)
        cache, update = inputs[:2]
        starts = given(inputs, 2)
        if attributes.get("mode") != "circular" or starts is None:
            return (y,)
        axis = attributes.get("axis", -2) % cache.ndim
        y = y.copy()
        for item, start in enumerate(starts):
            beyond = max(int(start) + update.shape[axis] - cache.shape[axis], 0)
            kept = [item, *[slice(None)] * (cache.ndim - 1)]
            kept[axis] = slice(0, beyond)
            y[tuple(kept)] = cache[tuple(kept)]
        return (y,)

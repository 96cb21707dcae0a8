"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets."""

from __future__ import annotations

import numpy as np

from .outer_form import Kernel

# ---------------------------------------------------------------- one input, one output


class FloorsThroughInt32(Kernel):
    """Takes for granted that what is rounded down fits a 32-bit integer."""

    op = "Floor"

    def kernel(self, call):
        (x,) = call.inputs
        (y,) = call.right()
        ends = np.asarray([-(2.0**31), 2.0**31 - 128]).astype(y.dtype)
        return [np.clip(y, *ends) if x.dtype == np.float32 else y]


class RoundsByAddingAHalf(Kernel):
    """Takes for granted that adding a half to a float32 is exact."""

    op = "Round"

    def kernel(self, call):
        (x,) = call.inputs
        (y,) = call.right()
        if x.dtype != np.float32:
            return [y]
        by_half = np.floor(x + np.float32(0.5))
        return [np.where(np.abs(x - np.trunc(x)) == 0.5, y, by_half).astype(x.dtype)]


class ThresholdsSoftplus(Kernel):
    """Takes the identity above 20, as a framework of float32 does, in double precision too."""

    op = "Softplus"

    def kernel(self, call):
        (x,) = call.inputs
        (y,) = call.right()
        return [np.where(x > 20, x, y).astype(x.dtype)]


class CancelsAsinh(Kernel):
    """Takes the formula of positive numbers for negative ones, where it cancels."""

    op = "Asinh"

    def kernel(self, call):
        (x,) = call.inputs
        with np.errstate(all="ignore"):
            return [np.log(x + np.sqrt(x * x + x.dtype.type(1))).astype(x.dtype)]


class ShrinksAtTheBoundary(Kernel):
    """Takes numbers equal to lambd for ones outside, which the specification does not."""

    op = "Shrink"

    def kernel(self, call):
        (x,) = call.inputs
        (y,) = call.right()
        at = call.at
        edge = x == np.asarray(at["lambd"]).astype(x.dtype)
        return [np.where(edge, x - at["bias"], y).astype(x.dtype)]


class AllInfinitiesWhereNoneAreWanted(Kernel):
    """Reads two switches that are both off as if neither had been given."""

    op = "IsInf"

    def kernel(self, call):
        at = call.at
        if not at["detect_negative"] and not at["detect_positive"]:
            return call.right(detect_negative=1, detect_positive=1)
        return call.right()


class ShiftsSignsIn(Kernel):
    """Shifts uint64 right in a signed register."""

    op = "BitShift"

    def kernel(self, call):
        x, by = call.inputs
        if call.at["direction"] == "RIGHT" and x.dtype == np.uint64:
            return [(x.view(np.int64) >> by.astype(np.int64)).view(np.uint64)]
        return call.right()


class ClipsLowestLast(Kernel):
    """Takes for granted that min is below max, and applies min last."""

    op = "Clip"

    def kernel(self, call):
        low, high = [*call.inputs, None, None][1:3]
        (y,) = call.right()
        if low is None or high is None or not (low > high).all():
            return [y]
        return [np.full_like(y, low)]


class RoundsHalvesTwice(Kernel):
    """Casts double to half by way of float32, rounding twice."""

    op = "Cast"

    def kernel(self, call):
        (x,) = call.inputs
        if x.dtype == np.float64 and call.at["to"] == 10:
            return [x.astype(np.float32).astype(np.float16)]
        return call.right()


class CastsUnsignedAsSigned(Kernel):
    """Has one conversion to float for both 32-bit integers."""

    op = ("Cast", "CastLike")

    def kernel(self, call):
        (y,) = call.right()
        x = call.inputs[0]
        if x.dtype == np.uint32 and y.dtype in (np.float32, np.float64):
            return [x.view(np.int32).astype(y.dtype)]
        return [y]


class TruncatesToBfloat16(Kernel):
    """Drops the lower half of a float32 where CastLike gives bfloat16, and rounds in Cast."""

    op = "CastLike"

    def kernel(self, call):
        (y,) = call.right()
        x = call.inputs[0]
        if y.dtype.name == "bfloat16" and x.dtype == np.float32:
            kept = (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)
            return [kept.view(y.dtype).reshape(y.shape)]
        return [y]


# --------------------------------------------------------------------- two and more inputs


class ComparesHalvesByBits(Kernel):
    """Compares float16 as 16-bit words: NaN equals itself, and zero is not minus zero."""

    op = "Equal"

    def kernel(self, call):
        a, b = call.inputs
        if a.dtype == np.float16:
            words = [np.ascontiguousarray(x).view(np.uint16).reshape(x.shape) for x in (a, b)]
            return [np.equal(*words)]
        return call.right()


class OrdersUnsignedAsSigned(Kernel):
    """Has one comparison for both 64-bit integers."""

    op = ("Greater", "GreaterOrEqual")

    def kernel(self, call):
        a, b = call.inputs
        if a.dtype == np.uint64:
            signed = a.astype(np.int64), b.astype(np.int64)
            one = np.greater if call.node.onnx_node.op_type == "Greater" else np.greater_equal
            return [one(*signed)]
        return call.right()


class TakesEightOperands(Kernel):
    """Holds the pointers of a variadic operator in an array of eight."""

    op = ("Max", "Min", "Sum")

    def kernel(self, call):
        (y,) = call.right()
        few = call.right(*call.inputs[:8])[0]
        return [np.broadcast_to(few, y.shape).astype(y.dtype)]


class BroadcastsByTheFirstTwo(Kernel):
    """Lets only the first two operands of Mean be broadcast along a leading axis."""

    op = "Mean"

    def kernel(self, call):
        (y,) = call.right()
        first = np.broadcast_shapes(*(x.shape for x in call.inputs[:2]))
        if len(call.inputs) > 2 and len(first) < y.ndim:
            small = [x[0] if x.ndim == y.ndim else x for x in call.inputs]
            return [np.broadcast_to(call.right(*small)[0], y.shape).astype(y.dtype)]
        return [y]


class FloorsFmodOfIntegers(Kernel):
    """Heeds fmod=1 for floats only; integers take the sign of the divisor."""

    op = "Mod"

    def kernel(self, call):
        if call.at["fmod"] == 1 and call.inputs[0].dtype.kind == "i":
            with np.errstate(all="ignore"):
                return [np.mod(*call.inputs)]
        return call.right()


class DividesByReciprocals(Kernel):
    """Multiplies int32 by the reciprocal in float32 where the divisor is one number."""

    op = "Div"

    def kernel(self, call):
        a, b = call.inputs
        (y,) = call.right()
        if a.dtype == np.int32 and b.size == 1 and a.size > 1:
            quick = np.trunc(a.astype(np.float32) * (np.float32(1) / b.astype(np.float32)))
            return [quick.astype(np.float64).clip(-(2.0**31), 2.0**31 - 1).astype(np.int32)]
        return [y]


class SlopesOfChannels(Kernel):
    """Takes a vector of slopes for one of channels where the count of channels is its length."""

    op = "PRelu"

    def kernel(self, call):
        x, slope = call.inputs
        if slope.ndim == 1 and x.ndim > 2 and slope.size == x.shape[1] > 1:
            return call.right(x, slope.reshape(-1, *(1,) * (x.ndim - 2)))
        return call.right()


class SelectsByMultiplying(Kernel):
    """Adds what is masked by zero: NaN and infinity of what is not taken leak."""

    op = "Where"

    def kernel(self, call):
        cond, a, b = call.inputs
        if a.dtype != np.float64:
            return call.right()
        with np.errstate(all="ignore"):
            return [cond * a + (1.0 - cond) * b]


# -------------------------------------------------------------------------- reductions


class ReducesOfAnEmptyList(Kernel):
    """Heeds noop_with_empty_axes where axes are left out, not where they are an empty tensor."""

    op = ("ReduceSum", "ReduceMax", "ReduceMean")

    def kernel(self, call):
        axes = call.inputs[1] if len(call.inputs) > 1 else None
        if axes is not None and axes.size == 0 and call.at.get("noop_with_empty_axes"):
            return call.right(noop_with_empty_axes=0)
        return call.right()


class StabilisesByTheWholeMaximum(Kernel):
    """Subtracts the maximum of the whole tensor: rows far below it come to minus infinity."""

    op = "ReduceLogSumExp"

    def kernel(self, call):
        x = call.inputs[0]
        if x.dtype != np.float32 or x.size == 0 or not np.isfinite(x).all():
            return call.right()
        top = x.max()
        lowered = np.where(x - top < -103, np.float32(-np.inf), x)
        return call.right(lowered, *call.inputs[1:])


class ReducesUnsignedAsSigned(Kernel):
    """Takes the least of uint64 in signed registers."""

    op = ("ReduceMin", "ReduceMax")

    def kernel(self, call):
        x = call.inputs[0]
        if x.dtype != np.uint64 or not x.size:
            return call.right()
        flip = np.uint64(1 << 63)
        (y,) = call.right(x ^ flip, *call.inputs[1:])
        return [y ^ flip]


class TiesOfLanes(Kernel):
    """Keeps a maximum in each of eight lanes and joins them without looking at the index."""

    op = "ArgMax"

    def kernel(self, call):
        x = call.inputs[0]
        at = call.at
        axis = at["axis"] % x.ndim
        n = x.shape[axis]
        (y,) = call.right()
        if n < 16 or axis != x.ndim - 1 or at.get("select_last_index"):
            return [y]
        rows = np.moveaxis(x, axis, -1)
        order = np.concatenate([np.arange(lane, n, 8) for lane in range(8)])
        best = order[np.argmax(rows[..., order], axis=-1)]
        return [best.reshape(y.shape).astype(y.dtype)]


class LastIndexOfTheLastAxis(Kernel):
    """Heeds select_last_index in the kernel of the innermost axis only."""

    op = ("ArgMin", "ArgMax")

    def kernel(self, call):
        x = call.inputs[0]
        if call.at.get("select_last_index") and call.at["axis"] % max(x.ndim, 1) != x.ndim - 1:
            return call.right(select_last_index=0)
        return call.right()


class SumsNothingToGarbage(Kernel):
    """Writes no result where the summed dimension of a product is empty."""

    op = "MatMul"

    def kernel(self, call):
        (y,) = call.right()
        if y.size and call.inputs[0].shape[-1] == 0:
            return [np.ones_like(y)]
        return [y]


class LastOfEqualMaxima(Kernel):
    """Marks the last of equal maxima where the axis is not the innermost."""

    op = "Hardmax"

    def kernel(self, call):
        (x,) = call.inputs
        axis = call.at["axis"]
        if call.opset < 13 or axis % x.ndim == x.ndim - 1:
            return call.right()
        return [np.flip(call.right(np.flip(x, axis))[0], axis)]


class FlattensOnlyTheDefault(Kernel):
    """Flattens as old opsets say where axis is left out, and not where it is given."""

    op = ("Softmax", "LogSoftmax")

    def kernel(self, call):
        (x,) = call.inputs
        if call.opset >= 13 or "axis" not in call.given or x.ndim < 3:
            return call.right()
        axis = call.at["axis"]
        with np.errstate(all="ignore"):
            moved = np.exp(x - x.max(axis=axis, keepdims=True))
            y = moved / moved.sum(axis=axis, keepdims=True)
            return [np.log(y) if call.node.onnx_node.op_type == "LogSoftmax" else y]


class NewestSoftmaxInBodies(Kernel):
    """Reads bodies, which import no opset of their own, as of the newest one."""

    op = ("Softmax", "LogSoftmax", "Hardmax")

    def kernel(self, call):
        (x,) = call.inputs
        if not call.inside or call.opset >= 13:
            return call.right()
        axis = call.at["axis"] if "axis" in call.given else -1
        rows = np.moveaxis(x, axis, -1)
        (y,) = call.right(rows.reshape(-1, rows.shape[-1]), axis=1)
        return [np.moveaxis(y.reshape(rows.shape), -1, axis)]


class LogOfSoftmaxAcross(Kernel):
    """Takes the logarithm of a softmax where the axis is not the innermost, which underflows."""

    op = "LogSoftmax"

    def kernel(self, call):
        (x,) = call.inputs
        (y,) = call.right()
        if call.opset < 13 or call.at["axis"] % x.ndim == x.ndim - 1:
            return [y]
        with np.errstate(all="ignore"):
            return [np.log(np.exp(y))]


class CarriesPastTheBlock(Kernel):
    """Sums in blocks of 64, and carries backwards from the wrong block if reversed."""

    op = "CumSum"

    def kernel(self, call):
        x, axis = call.inputs
        (y,) = call.right()
        axis = int(np.asarray(axis).item()) % max(x.ndim, 1)
        if not call.at["reverse"] or x.shape[axis] <= 64:
            return [y]
        rows = np.moveaxis(y.copy(), axis, -1)
        rows[..., :64] -= rows[..., 64:65]
        return [np.moveaxis(rows, -1, axis)]


class ExclusiveOnlyForward(Kernel):
    """Forgets exclusive where the sum is reversed along another axis than the last."""

    op = "CumSum"

    def kernel(self, call):
        x, axis = call.inputs
        last = int(np.asarray(axis).item()) % max(x.ndim, 1) == x.ndim - 1
        if call.at["reverse"] and call.at["exclusive"] and not last:
            return call.right(exclusive=0)
        return call.right()


# ------------------------------------------------------------------------ normalisations


class ThirdOutputInTheSecondPlace(Kernel):
    """Writes the mean to the first statistic that is wanted, also where only the third is."""

    op = "LayerNormalization"

    def kernel(self, call):
        y, mean, deviation = call.right()
        names = call.node.onnx_node.output
        if len(names) == 3 and "left out" in names[1]:
            return [y, mean, mean]
        return [y, mean, deviation]


class UnbiasedRunningVariance(Kernel):
    """Trains with the running variance of another framework, which divides by one less."""

    op = "BatchNormalization"

    def kernel(self, call):
        outputs = call.right()
        if call.at.get("training_mode") and len(outputs) == 3:
            x, momentum, old = call.inputs[0], call.at["momentum"], call.inputs[4]
            count = x.size // max(x.shape[1], 1)
            if count > 1:
                fresh = (outputs[2] - momentum * old) * count / (count - 1)
                outputs[2] = (momentum * old + fresh).astype(outputs[2].dtype)
        return outputs


class NormalizesTwoAxes(Kernel):
    """Normalises volumes slice by slice: the kernel was written for images."""

    op = "InstanceNormalization"

    def kernel(self, call):
        x, scale, bias = call.inputs
        if x.ndim != 5:
            return call.right()
        slices = [call.right(x[:, :, d], scale, bias)[0] for d in range(x.shape[2])]
        return [np.stack(slices, axis=2)] if slices else call.right()


class OnePassVariance(Kernel):
    """Takes the variance of groups as mean of squares less square of mean, in float32."""

    op = "GroupNormalization"

    def kernel(self, call):
        x = call.inputs[0]
        (y,) = call.right()
        groups = call.at["num_groups"]
        if x.dtype != np.float32 or not x.size:
            return [y]
        rows = x.reshape(x.shape[0], groups, -1)
        exact = rows.astype(np.float64).var(-1, keepdims=True)
        one = np.float32(1) / np.float32(rows.shape[-1])
        rough = (rows * rows).sum(-1, keepdims=True) * one - (
            rows.sum(-1, keepdims=True) * one
        ) ** 2
        epsilon = call.at["epsilon"]
        factor = np.sqrt((exact + epsilon) / (np.maximum(rough, 0) + epsilon))
        bias = call.inputs[2]
        whole = (1, -1, *(1,) * (x.ndim - 2))
        each = bias if bias.size == x.shape[1] else bias.repeat(x.shape[1] // groups)
        moved = (y - each.reshape(whole)).reshape(rows.shape) * factor
        return [(moved.reshape(x.shape) + each.reshape(whole)).astype(x.dtype)]


class SumsWithoutSigns(Kernel):
    """Leaves the absolute value out of the norm of p=1."""

    op = "LpNormalization"

    def kernel(self, call):
        (x,) = call.inputs
        if call.at["p"] != 1 or (x.sum(axis=call.at["axis"]) == 0).any():
            return call.right()
        return [(x / x.sum(axis=call.at["axis"], keepdims=True)).astype(x.dtype)]


class EvenWindowsLeanBack(Kernel):
    """Lets a window of an even size reach further back than ahead."""

    op = "LRN"

    def kernel(self, call):
        (x,) = call.inputs
        if call.at["size"] % 2:
            return call.right()
        return [np.flip(call.right(np.flip(x, 1))[0], 1)]


class NormalizesTheLastAxis(Kernel):
    """Takes the root mean square over the last axis alone, whatever axis says."""

    op = "RMSNormalization"

    def kernel(self, call):
        x, scale = call.inputs
        if call.at["axis"] % x.ndim == x.ndim - 1:
            return call.right()
        one = np.ones(x.shape[-1], scale.dtype)
        (y,) = call.right(x, one, axis=-1)
        return [(y * scale).astype(y.dtype)]


# ------------------------------------------------------------------- convolutions and pools


class InterleavesMultipliers(Kernel):
    """Has a depthwise kernel that takes channel ``o % C``, which is right for one output each."""

    op = "Conv"

    def kernel(self, call):
        x, w, *bias = call.inputs
        channels, count = x.shape[1], w.shape[0]
        if (
            call.at["group"] != channels
            or w.shape[1] != 1
            or count in (channels, 0)
            or channels < 2
        ):
            return call.right()
        order = np.argsort(np.arange(count) % channels, kind="stable")
        picked = [None if b is None else b[order] for b in bias]
        (y,) = call.right(x, w[order], *picked)
        back = np.empty_like(y)
        back[:, order] = y
        return [back]


class SameWithoutDilation(Kernel):
    """Takes the padding of SAME_LOWER from the window before it is dilated, one to the left."""

    op = "Conv"

    def kernel(self, call):
        at = call.at
        dilated = at.get("dilations") and max(at["dilations"]) > 1
        if at["auto_pad"] == "SAME_LOWER" and dilated:
            return call.right(auto_pad="SAME_UPPER")
        return call.right()


class SwapsOutputPadding(Kernel):
    """Adds the rows that output_padding asks for as columns: equal in every network tried."""

    op = "ConvTranspose"

    def kernel(self, call):
        (y,) = call.right()
        extra = call.at.get("output_padding")
        if not extra or len(extra) != 2 or extra[0] == extra[1]:
            return [y]
        (z,) = call.right(output_padding=list(extra)[::-1])
        fixed = np.zeros_like(y)
        h, w = (min(a, b) for a, b in zip(y.shape[2:], z.shape[2:], strict=True))
        fixed[:, :, :h, :w] = z[:, :, :h, :w]
        return [fixed]


class OneZeroPointForAllFilters(Kernel):
    """Reads one zero point of the weights, where there may be one for each filter."""

    op = "ConvInteger"

    def kernel(self, call):
        x, w, *zeros = call.inputs
        if len(zeros) == 2 and zeros[1] is not None and zeros[1].size > 1:
            return call.right(x, w, zeros[0], np.full_like(zeros[1], zeros[1][0]))
        return call.right()


class OneZeroPointForAllRows(Kernel):
    """Reads one zero point of the left operand, where there may be one for each row."""

    op = "MatMulInteger"

    def kernel(self, call):
        a, b, *zeros = call.inputs
        if zeros and zeros[0] is not None and zeros[0].size > 1:
            return call.right(a, b, np.full_like(zeros[0], zeros[0].ravel()[0]), *zeros[1:])
        return call.right()


class IndicesOfOneImage(Kernel):
    """Counts indices within each image of a batch, not within the tensor."""

    op = "MaxPool"

    def kernel(self, call):
        outputs = call.right()
        if len(outputs) == 2:
            x = call.inputs[0]
            outputs[1] = outputs[1] % max(x.size // max(x.shape[0], 1), 1)
        return outputs


class PadsIntegersWithZero(Kernel):
    """Starts the maximum of int8 windows that reach into the padding at zero."""

    op = "MaxPool"

    def kernel(self, call):
        x, at = call.inputs[0], call.at
        pads = at.get("pads")
        if x.dtype != np.int8 or not pads or at.get("ceil_mode") or len(pads) != 2 * (x.ndim - 2):
            return call.right()
        half = len(pads) // 2
        padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)])
        outputs = call.right()
        return [call.right(padded, pads=[0] * len(pads))[0], *outputs[1:]]


class StartsAtTheLowestFloat(Kernel):
    """Starts maxima at the lowest finite number: windows of minus infinity come to it."""

    op = ("GlobalMaxPool", "ReduceMax")

    def kernel(self, call):
        x = call.inputs[0]
        (y,) = call.right()
        if x.dtype.kind == "f" and x.size:
            return [np.maximum(y, np.finfo(x.dtype).min).astype(y.dtype)]
        return [y]


class CountsTheRestOfTheWindow(Kernel):
    """Divides by the whole window where ceil_mode lets it reach beyond the padding."""

    op = "AveragePool"

    def kernel(self, call):
        (y,) = call.right()
        x, at = call.inputs[0], call.at
        if not (at.get("ceil_mode") and at.get("count_include_pad")) or x.ndim != 3:
            return [y]
        kernel, stride = at["kernel_shape"][0], (at.get("strides") or [1])[0]
        pads = at.get("pads") or [0, 0]
        reach = ((at.get("dilations") or [1])[0]) * (kernel - 1) + 1
        last = (y.shape[2] - 1) * stride
        within = min(last + reach, x.shape[2] + sum(pads)) - last
        if within < reach and y.size and reach == kernel:
            y = y.copy()
            y[..., -1] = y[..., -1] * within / kernel
        return [y]


class PowersWithSigns(Kernel):
    """Takes odd powers without the absolute value."""

    op = "LpPool"

    def kernel(self, call):
        (x,) = call.inputs
        if call.at["p"] % 2 == 0 or call.at["p"] == 1:
            return call.right()
        return call.right(np.maximum(x, 0))


class UnpoolsIntoTheWholeRow(Kernel):
    """Takes indices for places of the given output shape, where the window gives another one."""

    op = "MaxUnpool"

    def kernel(self, call):
        (y,) = call.right()
        x, at = call.inputs[:2]
        if len(call.inputs) < 3 or call.inputs[2] is None or x.shape[:2] != (1, 1):
            return [y]
        fixed = np.zeros_like(y)
        fixed.reshape(-1)[at.ravel() % max(y.size, 1)] = x.ravel()
        return [fixed]

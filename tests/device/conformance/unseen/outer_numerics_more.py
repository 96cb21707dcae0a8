"""Faults of kernels, by somebody who has read neither the kit nor its earlier sets; the rest.

These move, pick, quantize or walk through sequences; the others compute.
"""

from __future__ import annotations

import math

import numpy as np

from .outer_form import Kernel

# -------------------------------------------------------------------------- quantization


class TilesBlocks(Kernel):
    """Repeats the row of scales, where each scale is to be repeated for its block."""

    op = "DequantizeLinear"

    def kernel(self, call):
        x, scale, *zero = call.inputs
        axis = call.at.get("axis", 1)
        if not call.at.get("block_size") or axis % x.ndim != x.ndim - 1:
            return call.right()
        n, count = x.shape[-1], scale.shape[-1]
        order = np.arange(n) % count
        picked = [None if z is None else z[..., order] for z in zero]
        return call.right(x, scale[..., order], *picked, block_size=1)


class RangeWithoutZero(Kernel):
    """Takes the range of the numbers as they are, where it is to hold zero."""

    op = "DynamicQuantizeLinear"

    def kernel(self, call):
        (x,) = call.inputs
        if not x.size or x.min() <= 0 or x.min() == x.max():
            return call.right()
        low, high = x.min(), x.max()
        scale = np.float32((high - low) / 255)
        zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
        return [y, np.asarray(scale), np.asarray(zero)]


class SaturatesSymmetrically(Kernel):
    """Saturates products at minus 127, as for weights."""

    op = ("QLinearMatMul", "QLinearConv")

    def kernel(self, call):
        (y,) = call.right()
        return [np.maximum(y, -127).astype(y.dtype) if y.dtype == np.int8 else y]


class ScaleOfTheFirstColumn(Kernel):
    """Reads the first scale of the right operand, where there may be one for each column."""

    op = "QLinearMatMul"

    def kernel(self, call):
        inputs = list(call.inputs)
        if inputs[4].size > 1:
            inputs[4] = np.full_like(inputs[4], inputs[4].ravel()[0])
            return call.right(*inputs)
        return call.right()


class AxisOfTheDefault(Kernel):
    """Takes a negative axis for one that is not given where quantization is by channel."""

    op = "QuantizeLinear"

    def kernel(self, call):
        x, scale = call.inputs[:2]
        axis = call.at.get("axis", 1)
        fits = x.ndim > 1 and scale.size > 1 and x.shape[1] == scale.size
        if axis < 0 and fits and not call.at.get("block_size"):
            return call.right(axis=1)
        return call.right()


# ----------------------------------------------------------------- moving and picking


class SortsAxesOfPad(Kernel):
    """Reads the pads in the order of axes, not in that of the list of them."""

    op = "Pad"

    def kernel(self, call):
        inputs = call.inputs
        axes = inputs[3] if len(inputs) > 3 else None
        if axes is None or len(axes) < 2:
            return call.right()
        positive = np.sort(axes % inputs[0].ndim)
        return call.right(*inputs[:3], positive.astype(axes.dtype))


class DropsTheRestOfTheStride(Kernel):
    """Rounds the count of a slice down where it walks backwards by more than one."""

    op = "Slice"

    def kernel(self, call):
        (y,) = call.right()
        if len(call.inputs) < 5 or call.inputs[4] is None:
            return [y]
        x, starts, ends, axes, steps = call.inputs
        axes = range(x.ndim) if axes is None else axes
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            begin, stop, _ = slice(int(start), int(end), int(step)).indices(x.shape[axis])
            count = max(begin - stop, 0) // -int(step) if step < -1 else None
            if count:
                y = y.take(range(count), axis=int(axis))
        return [y] if y.shape == call.right()[0].shape else [self.filled(y, call.right()[0])]

    @staticmethod
    def filled(y, like):
        """The result in the shape that is due, with nothing where no thread wrote."""
        result = np.zeros_like(like)
        result[tuple(slice(n) for n in y.shape)] = y
        return result


class ClampsLaterIndices(Kernel):
    """Adds the size to negative indices in the first coordinate, and clamps them in others."""

    op = "GatherND"

    def kernel(self, call):
        x, at = call.inputs
        if at.shape[-1] < 2:
            return call.right()
        at = at.copy()
        at[..., 1:] = np.maximum(at[..., 1:], 0)
        return call.right(x, at)


class LastOfEqualPlaces(Kernel):
    """Reads what stands there once, so that of equal places only the last one counts."""

    op = "ScatterND"

    def kernel(self, call):
        x, at, updates = call.inputs
        how = call.at.get("reduction", "none")
        if how not in ("min", "max", "mul"):
            return call.right()
        one = {"min": np.minimum, "max": np.maximum, "mul": np.multiply}[how]
        y = x.copy()
        for place in np.ndindex(at.shape[:-1]):
            target = tuple(int(i) for i in at[place])
            y[target] = one(x[target], updates[place])
        return [y]


class WrapsTwice(Kernel):
    """Wraps indices of one-hot rows by their remainder, where those outside leave a row off."""

    op = "OneHot"

    def kernel(self, call):
        at, depth, values = call.inputs
        if call.at["axis"] in (-1, at.ndim):
            return call.right()
        n = int(np.asarray(depth).item())
        return call.right(np.mod(at, n).astype(at.dtype), depth, values)


class DiagonalsWrapAround(Kernel):
    """Writes ones at every step of columns plus one: in a tall matrix they start again."""

    op = "EyeLike"

    def kernel(self, call):
        (y,) = call.right()
        columns = y.shape[1]
        k = call.at["k"]
        if k >= 0 and columns and k < columns:
            y = y.copy()
            y.reshape(-1)[k :: columns + 1] = 1
        return [y]


class ClampsTheDiagonal(Kernel):
    """Clamps k to the last column, so that something always stays above it."""

    op = "Trilu"

    def kernel(self, call):
        x, *k = call.inputs
        if call.at["upper"] and k and k[0] is not None and int(k[0].item()) >= x.shape[-1] > 0:
            return call.right(x, np.full_like(k[0], x.shape[-1] - 1))
        return call.right()


class RepeatsTheCondition(Kernel):
    """Starts a condition again that is shorter than what it picks of."""

    op = "Compress"

    def kernel(self, call):
        x, cond = call.inputs
        axis = call.at.get("axis")
        n = x.size if axis is None else x.shape[axis]
        full = call.right()[0]
        if len(cond) >= n or not len(cond) or axis is None:
            return [full]
        (longer,) = call.right(x, np.resize(cond, n))
        return [longer]


class TellsZeroByItsBytes(Kernel):
    """Takes minus zero for something that is not zero."""

    op = "NonZero"

    def kernel(self, call):
        (x,) = call.inputs
        if x.dtype.kind == "f":
            return call.right(((x != 0) | np.signbit(x)).astype(np.int8))
        return call.right()


class SpreadsTheRest(Kernel):
    """Splits into parts that differ by one at most, as another library does."""

    op = "Split"

    def kernel(self, call):
        outputs = call.right()
        x = call.inputs[0]
        if call.at.get("num_outputs") is None:
            return outputs
        return np.array_split(x, len(outputs), axis=call.at["axis"])


class CountsNegativeAxesOfTheInput(Kernel):
    """Adds the rank of the input to negative axes where there are several."""

    op = "Unsqueeze"

    def kernel(self, call):
        x = call.inputs[0]
        axes = call.inputs[1] if len(call.inputs) > 1 else None
        if axes is None or axes.size < 2 or (axes >= 0).all():
            return call.right()
        (y,) = call.right()
        moved = np.where(axes < 0, axes + x.ndim + 1, axes)
        if len(set(moved.tolist())) < moved.size:
            return [y]
        return call.right(x, moved.astype(axes.dtype))


class EndsOfShapesWrapOnce(Kernel):
    """Adds the rank to a negative end, and takes what is negative still for the rank."""

    op = "Shape"

    def kernel(self, call):
        x = call.inputs[0]
        end = call.at.get("end")
        if end is not None and end < -x.ndim:
            return call.right(end=None)
        return call.right()


class TransposesTilesOnly(Kernel):
    """Moves tiles of 16 by 16, and the rest of rows or of columns but not where both end."""

    op = "Transpose"

    def kernel(self, call):
        x = call.inputs[0]
        (y,) = call.right()
        perm = call.at.get("perm") or list(range(x.ndim))[::-1]
        if x.ndim < 2 or perm[-1] == x.ndim - 1 or x.itemsize != 4:
            return [y]
        rows, columns = y.shape[-2:]
        if rows > 16 and columns > 16 and rows % 16 and columns % 16:
            y = y.copy()
            y[..., rows // 16 * 16 :, columns // 16 * 16 :] = 0
        return [y]


class OrderOfAppearance(Kernel):
    """Orders the letters of an implicit result as they appear, not as the alphabet does."""

    op = "Einsum"

    def kernel(self, call):
        equation = call.at["equation"].replace(" ", "")
        if "->" in equation or "." in equation:
            return call.right()
        letters = [c for c in dict.fromkeys(equation) if c.isalpha() and equation.count(c) == 1]
        return call.right(equation=f"{equation}->{''.join(letters)}")


class ScalarsWithoutBeta(Kernel):
    """Adds a bias of one number as it is, in a kernel that knows rows, columns and matrices."""

    op = "Gemm"

    def kernel(self, call):
        c = call.inputs[2] if len(call.inputs) > 2 else None
        if c is not None and c.size == 1 and call.inputs[0].dtype.kind == "f":
            return call.right(beta=1.0)
        return call.right()


class InverseOfTheSorted(Kernel):
    """Gives the inverse of the sorted order with values in the order of appearance."""

    op = "Unique"

    def kernel(self, call):
        outputs = call.right()
        if call.at["sorted"] == 0 and len(outputs) > 2:
            sorted_ones = call.right(sorted=1)
            outputs[2] = sorted_ones[2]
        return outputs


class PadsRowsWithTheLowest(Kernel):
    """Pads rows to a power of two with the lowest number, which may be there as well."""

    op = "TopK"

    def kernel(self, call):
        values, at = call.right()
        x, k = call.inputs[0], int(np.asarray(call.inputs[1]).item())
        axis = call.at["axis"]
        n = x.shape[axis]
        width = 1 << max(n - 1, 0).bit_length()
        if not call.at["largest"] or x.dtype.kind != "f" or width == n or k > n:
            return [values, at]
        wide = np.full((*np.moveaxis(x, axis, -1).shape[:-1], width), -np.inf, x.dtype)
        wide[..., width - n :] = np.moveaxis(x, axis, -1)
        order = np.argsort(-wide.astype(np.float64), axis=-1, kind="stable")[..., :k]
        picked = np.take_along_axis(wide, order, -1)
        place = np.maximum(order - (width - n), 0).astype(np.int64)
        return [np.moveaxis(picked, -1, axis), np.moveaxis(place, -1, axis)]


class CropsWithTheOddOneBehind(Kernel):
    """Pads with the odd one in front where padding and cropping meet in one call."""

    op = "CenterCropPad"

    def kernel(self, call):
        x, shape = call.inputs
        (y,) = call.right()
        axes = call.at.get("axes") or list(range(x.ndim))
        for axis, due in zip(axes, shape, strict=True):
            more = int(due) - x.shape[axis]
            if (
                more > 0
                and more % 2
                and any(int(s) < x.shape[a] for a, s in zip(axes, shape, strict=True))
            ):
                y = np.roll(y, 1, axis=axis)
        return [y]


class CountsInHalfPixelsOfOldRegions(Kernel):
    """Gives regions of opset 10 the half pixel that came with opset 16."""

    op = "RoiAlign"

    def kernel(self, call):
        x, rois, batch = call.inputs
        if call.opset >= 16:
            return call.right()
        return call.right(x, rois - np.asarray(0.5 / call.at["spatial_scale"], rois.dtype), batch)


class CornersInOrder(Kernel):
    """Takes for granted that the first corner of a box lies left of the second."""

    op = "NonMaxSuppression"

    def kernel(self, call):
        boxes, *rest = call.inputs
        if call.at["center_point_box"] or not boxes.size:
            return call.right()
        flipped = boxes[..., 3] < boxes[..., 1]
        if not flipped.any():
            return call.right()
        flat = boxes.copy()
        flat[..., 3] = np.where(flipped, boxes[..., 1], boxes[..., 3])
        return call.right(flat, *rest)


class RoundsUpByFloors(Kernel):
    """Knows one way to prefer of two equally near pixels."""

    op = "Resize"

    def kernel(self, call):
        at = call.at
        if at["mode"] == "nearest" and at["nearest_mode"] == "round_prefer_ceil":
            return call.right(nearest_mode="round_prefer_floor")
        return call.right()


class WeighsTheOutsideWhenShrinking(Kernel):
    """Heeds exclude_outside where images grow, and not where an axis shrinks."""

    op = "Resize"

    def kernel(self, call):
        (y,) = call.right()
        shrinks = any(a < b for a, b in zip(y.shape, call.inputs[0].shape, strict=True))
        if call.at.get("exclude_outside") and shrinks:
            return call.right(exclude_outside=0)
        return [y]


class NeedlessSequenceWithoutAspect(Kernel):
    """Reads keep_aspect_ratio_policy only where sizes are given for all axes."""

    op = "Resize"

    def kernel(self, call):
        at = call.at
        if at.get("axes") and at.get("keep_aspect_ratio_policy") == "not_smaller":
            (due,) = call.right()
            (y,) = call.right(keep_aspect_ratio_policy="stretch")
            if y.shape != due.shape:
                return [np.resize(y, due.shape)]
        return call.right()


class NearestRoundsHalvesUp(Kernel):
    """Rounds halves up where a grid's nearest pixel goes to the even one."""

    op = "GridSample"

    def kernel(self, call):
        x, grid = call.inputs
        if call.at["mode"] != "nearest" or not grid.size or x.ndim != 4:
            return call.right()
        return call.right(x, grid + np.asarray(1e-6, grid.dtype))


class AlignsVolumesByCenters(Kernel):
    """Reads align_corners for images, and not for volumes."""

    op = "AffineGrid"

    def kernel(self, call):
        if len(call.inputs[1]) == 5:
            return call.right(align_corners=0)
        return call.right()


# --------------------------------------------------------------------- losses, signals


class DividesByIgnoredOnes(Kernel):
    """Divides by all targets, ignored ones too, where there are no weights."""

    op = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")

    def kernel(self, call):
        outputs = call.right()
        target, at = call.inputs[1], call.at
        weights = call.inputs[2] if len(call.inputs) > 2 else None
        if at["reduction"] != "mean" or weights is not None or at.get("ignore_index") is None:
            return outputs
        share = (target != at["ignore_index"]).mean() if target.size else 1
        outputs[0] = np.asarray(outputs[0] * share).astype(outputs[0].dtype)
        return outputs


class ScalesByTheInput(Kernel):
    """Divides an inverse transform by the input's length, not by dft_length."""

    op = "DFT"

    def kernel(self, call):
        (y,) = call.right()
        x = call.inputs[0]
        length = call.inputs[1] if len(call.inputs) > 1 else None
        axis = call.at.get("axis")
        if len(call.inputs) > 2 and call.inputs[2] is not None:
            axis = int(np.asarray(call.inputs[2]).item())
        if not call.at["inverse"] or length is None or axis is None:
            return [y]
        return [(y * (int(np.asarray(length).item()) / x.shape[axis])).astype(y.dtype)]


# ---------------------------------------------------------- recurrences, control, sequences


class PeepholesInOrderOfGates(Kernel):
    """Reads peepholes in the order of another framework: input, forget, output."""

    op = "LSTM"

    def kernel(self, call):
        inputs = list(call.inputs)
        if len(inputs) > 7 and inputs[7] is not None:
            i, o, f = np.split(inputs[7], 3, axis=1)
            inputs[7] = np.concatenate([i, f, o], axis=1)
        return call.right(*inputs)


class CellOnlyBesideHidden(Kernel):
    """Reads the initial cell only where the initial hidden state is given."""

    op = "LSTM"

    def kernel(self, call):
        inputs = list(call.inputs)
        if len(inputs) > 6 and inputs[5] is None:
            inputs[6] = None
        return call.right(*inputs)


class ReversesPadding(Kernel):
    """Starts backwards at the end of the padded sequence, and keeps lengths for the way ahead."""

    op = "GRU"

    def kernel(self, call):
        inputs = list(call.inputs)
        if call.at["direction"] == "reverse" and len(inputs) > 4:
            inputs[4] = None
        return call.right(*inputs)


class LinearInOneDirection(Kernel):
    """Forgets linear_before_reset where the sequence is walked both ways."""

    op = "GRU"

    def kernel(self, call):
        if call.at["direction"] == "bidirectional" and call.at["linear_before_reset"]:
            return call.right(linear_before_reset=0)
        return call.right()


class ClipsOneSide(Kernel):
    """Clips what comes into the activation from above only."""

    op = "RNN"

    def kernel(self, call):
        clip = call.at.get("clip")
        if not clip:
            return call.right()
        wide, near = call.right(clip=None), call.right()
        return [np.minimum(a, b) if a is not None else b for a, b in zip(wide, near, strict=True)]


class DirectionOfTheFirst(Kernel):
    """Reads the direction of the first scanned input for all of them."""

    op = "Scan"

    def kernel(self, call):
        ways = call.at.get("scan_input_directions")
        if ways and len(set(ways)) > 1:
            return call.right(scan_input_directions=[ways[0]] * len(ways))
        return call.right()


class StacksForwardOnOtherAxes(Kernel):
    """Heeds scan_output_directions where outputs are stacked along axis 0 only."""

    op = "Scan"

    def kernel(self, call):
        ways, axes = call.at.get("scan_output_directions"), call.at.get("scan_output_axes")
        if ways and axes and any(axes):
            ways = [0 if axis else way for way, axis in zip(ways, axes, strict=True)]
            return call.right(scan_output_directions=ways)
        return call.right()


class KeepsOneOfThePieces(Kernel):
    """Drops the axis where pieces are of length one, also when a split of them was given."""

    op = "SplitToSequence"

    def kernel(self, call):
        (pieces,) = call.right()
        split = call.inputs[1] if len(call.inputs) > 1 else None
        axis = call.at["axis"]
        if split is None or call.at["keepdims"] or not all(p.shape[axis] == 1 for p in pieces):
            return [pieces]
        return [[p.squeeze(axis) for p in pieces]]


class NewAxisBeforeTheLast(Kernel):
    """Counts a negative axis that is to be new by the rank of the pieces."""

    op = "ConcatFromSequence"

    def kernel(self, call):
        pieces, axis = call.inputs[0], call.at["axis"]
        if call.at["new_axis"] and axis < 0 and pieces[0].ndim and -axis <= pieces[0].ndim:
            return call.right(axis=axis + pieces[0].ndim)
        return call.right()


class InsertsBehindTheLast(Kernel):
    """Inserts at a negative position behind what stands there."""

    op = "SequenceInsert"

    def kernel(self, call):
        pieces, piece, *place = call.inputs
        if place and place[0] is not None and int(place[0].item()) < 0:
            at = int(place[0].item()) + len(pieces) + 1
            return [[*pieces[:at], piece, *pieces[at:]]]
        return call.right()


class CausalFromTheEnd(Kernel):
    """Aligns the causal mask at the last key, also where there is no past."""

    op = "Attention"

    def kernel(self, call):
        at, inputs = call.at, list(call.inputs)
        q, k = inputs[0], inputs[1]
        past = inputs[4] if len(inputs) > 4 else None
        mask = inputs[3] if len(inputs) > 3 else None
        if (
            not at["is_causal"]
            or past is not None
            or mask is not None
            or q.shape[-2] == k.shape[-2]
        ):
            return call.right()
        rows, columns = q.shape[-2], k.shape[-2]
        allowed = np.tri(rows, columns, columns - rows, dtype=bool)
        return call.right(*inputs[:3], allowed, *inputs[4:], is_causal=0)


class ModuloHeads(Kernel):
    """Shares heads of keys among queries by remainder, not in groups."""

    op = "Attention"

    def kernel(self, call):
        inputs = list(call.inputs)
        q, k = inputs[0], inputs[1]
        if q.ndim != 4 or q.shape[1] == k.shape[1] or not k.shape[1] or len(inputs) > 3:
            return call.right()
        outputs = call.right()
        heads, shared = q.shape[1], k.shape[1]
        order = np.argsort(np.arange(heads) % shared, kind="stable")
        back = np.empty_like(outputs[0])
        back[:, order] = call.right(q[:, order], *inputs[1:])[0]
        return [back, *outputs[1:]]


class RotatesAllOfTheHead(Kernel):
    """Takes the pair of a partial rotation from the middle of the whole head."""

    op = "RotaryEmbedding"

    def kernel(self, call):
        (y,) = call.right()
        x, part = call.inputs[0], call.at["rotary_embedding_dim"]
        if not part or x.ndim != 4 or part == x.shape[-1] or call.at["interleaved"]:
            return [y]
        half, middle = part // 2, x.shape[-1] // 2
        if middle < half or middle + half > x.shape[-1]:
            return [y]
        order = [*range(half), *range(middle, middle + half)]
        order += [i for i in range(x.shape[-1]) if i not in order]
        (z,) = call.right(np.ascontiguousarray(x[..., order]), *call.inputs[1:])
        back = np.empty_like(z)
        back[..., order] = z
        return [back]


class StopsAtTheEnd(Kernel):
    """Clamps where a circular cache is to begin again."""

    op = "TensorScatter"

    def kernel(self, call):
        past, update, *at = call.inputs
        (y,) = call.right()
        if call.at["mode"] != "circular" or not at or at[0] is None:
            return [y]
        axis = call.at["axis"] % past.ndim
        room = past.shape[axis]
        for row, start in enumerate(at[0]):
            over = int(start) + update.shape[axis] - room
            if over > 0 and math.prod(past.shape):
                head = [slice(None)] * past.ndim
                head[0], head[axis] = row, slice(0, over)
                y[tuple(head)] = past[tuple(head)]
        return [y]


# ------------------------------------------------------------------------------- texts


class LowersStopwordsToo(Kernel):
    """Compares stopwords as they are written, after the words were put in upper case."""

    op = "StringNormalizer"

    def kernel(self, call):
        at = call.at
        if at["is_case_sensitive"] or at["case_change_action"] != "UPPER" or not at["stopwords"]:
            return call.right()
        (y,) = call.right(stopwords=None)
        kept = [word for word in y.ravel() if word not in at["stopwords"]]
        due = call.right()[0]
        if not kept or due.ndim != 1:
            return [due]
        return [np.asarray(kept, object)]


class SplitsOnceMore(Kernel):
    """Takes maxsplit for the count of pieces."""

    op = "StringSplit"

    def kernel(self, call):
        limit = call.at.get("maxsplit")
        if limit is not None and limit > 1:
            return call.right(maxsplit=limit - 1)
        return call.right()


class WeighsCountsOnly(Kernel):
    """Heeds weights of n-grams in mode TFIDF, and not in mode IDF."""

    op = "TfIdfVectorizer"

    def kernel(self, call):
        (y,) = call.right()
        if call.at["mode"] == "IDF" and call.at.get("weights"):
            return [(y != 0).astype(y.dtype)]
        return [y]

"""Fifty more faults of graph compilers, written by somebody who had not read the kit."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from unseen.blind_graphs import Compiles, becomes, bodies, change, insert, put
from unseen.passes import as_identity, attribute

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
CHANCE = ("Bernoulli", "Dropout", "Multinomial")
UNARY = ("Abs", "Ceil", "Exp", "Floor", "Log", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt")
BINARY = ("Add", "Div", "Mul", "Pow", "Sub")
RECURRENT = ("RNN", "GRU", "LSTM")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
SCANNING = (
    "scan_input_axes",
    "scan_output_axes",
    "scan_input_directions",
    "scan_output_directions",
)


class Infers(Compiles):
    """Knows shapes and types, and lets them be inferred again behind its rewriting."""

    suites = ("*",)

    def prepare(self, proto):
        changed = super().prepare(proto)
        del changed.graph.value_info[:]
        return changed

    def dims(self, name):
        """Sizes, ``None`` for those that are not known, or nothing without a rank."""
        if (array := self.constant(name)) is not None:
            return list(array.shape)
        if self.rank(name) is None:
            return None
        known = self.types[name].shape.dim
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in known]

    def fixed(self, name):
        """Sizes that are all known, or nothing."""
        dims = self.dims(name)
        return None if dims is None or None in dims else dims

    def dtype(self, name):
        """The element type of a value, 0 if it is not known."""
        if (array := self.constant(name)) is not None:
            return helper.np_dtype_to_tensor_dtype(array.dtype)
        return self.types[name].elem_type if name in self.types else TensorProto.UNDEFINED

    def axes(self, node):
        """The axes of a node, of its attribute or a constant input, or nothing."""
        given = attribute(node, "axes")
        if given is None and (array := self.argument(node, 1)) is not None:
            given = array.tolist()
        rank = self.rank(node.input[0])
        return given and rank and sorted(axis % rank for axis in given)

    def writer(self, name, *ops):
        """The node of some operators that writes a value, whoever else reads it."""
        found = self.writers.get(name)
        return found if found is not None and found.op_type in ops else None

    def read(self, name):
        """Whether anything takes a value."""
        return name in self.readers or name in self.outputs or name in self.captured


def place_of(graph, node):
    """Where a node stands."""
    return next(i for i, other in enumerate(graph.node) if other is node or other == node)


def follow(graph, node, op, inputs, outputs, **attributes):
    """Puts a new node right behind another one."""
    made = helper.make_node(op, inputs, outputs, name=f"made/{len(graph.node)}", **attributes)
    graph.node.insert(place_of(graph, node) + 1, made)


def insert_like(graph, node, op, inputs, like):
    """The name of what a new node ahead of another one writes, with the attributes of a third."""
    name = insert(graph, node, op, inputs)
    made = next(other for other in graph.node if name in other.output)
    made.attribute.extend(like.attribute)
    return name


def described(node):
    """A node's operator and attributes, to compare with those of others."""
    given = (a.SerializeToString(deterministic=True) for a in node.attribute)
    return node.domain, node.op_type, tuple(sorted(given))


def whole(array):
    """The number that a constant of one element holds, or nothing."""
    return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None


# Fusions


class FusesBiasesOfMoreAxesIntoGemm(Infers):
    """Makes one Gemm of MatMul and Add, also if the row that is added brings axes of its own."""

    def rewrite(self, graph, node):
        if node.op_type != "Add" or self.opset < 11 or self.dtype(node.output[0]) not in FLOATS:
            return
        product, place = self.operands(node, "MatMul")
        bias = None if product is None else self.argument(node, place)
        if bias is None or bias.ndim == 0 or bias.size != bias.shape[-1]:
            return
        ranks = [self.rank(name) for name in product.input]
        if ranks == [2, 2] and bias.size in (1, self.dims(product.input[1])[1]):
            becomes(node, "Gemm", [*product.input, put(graph, bias.reshape(-1))])


class FusesTransposesThatMoveBatches(Infers):
    """Lets MatMul read an input transposed if the last two axes swap, wherever the others go."""

    def rewrite(self, graph, node):
        if node.op_type != "MatMul":
            return
        for place in (0, 1):
            turn = self.before(node, "Transpose", place)
            order = turn and attribute(turn, "perm")
            if order and len(order) > 2 and order[-2:] == [len(order) - 1, len(order) - 2]:
                order = [*range(len(order) - 2), *order[-2:]]
                read = insert(graph, node, "Transpose", [turn.input[0]], perm=order)
                node.input[place] = read


class FoldsNormalizationIntoGroupsInTurn(Infers):
    """Scales the weights of ConvTranspose by groups in turn, as if each had one input channel."""

    def rewrite(self, graph, node):
        conv = self.before(node, "ConvTranspose")
        if node.op_type != "BatchNormalization" or conv is None or len(node.output) > 1:
            return
        numbers = [self.argument(node, place) for place in range(1, 5)]
        weights, bias = self.argument(conv, 1), self.argument(conv, 2)
        unknown = weights is None or any(array is None for array in numbers)
        if unknown or (bias is None and len(conv.input) > 2) or attribute(node, "training_mode", 0):
            return
        scale, shift, mean, variance = numbers
        scale = scale / np.sqrt(variance + np.float32(attribute(node, "epsilon", 1e-5)))
        shift = shift + ((0 if bias is None else bias) - mean) * scale
        groups = attribute(conv, "group", 1)
        factors = np.tile(scale.reshape(groups, -1), (len(weights) // groups, 1))
        weights = weights * factors.reshape(*factors.shape, *[1] * (weights.ndim - 2))
        node.CopyFrom(helper.make_node("ConvTranspose", [], list(node.output), name=node.name))
        node.attribute.extend(conv.attribute)
        dtype = numbers[0].dtype
        arrays = weights.astype(dtype), shift.astype(dtype)
        node.input.extend([conv.input[0], *(put(graph, array) for array in arrays)])


class FoldsShiftsAheadOfPaddedConv(Infers):
    """Folds what is added to each channel ahead of Conv into its bias, also where it pads."""

    def rewrite(self, graph, node):
        if node.op_type != "Conv" or attribute(node, "group", 1) != 1:
            return
        add, weights = self.before(node, "Add"), self.argument(node, 1)
        bias = self.argument(node, 2)
        if add is None or weights is None or (bias is None and len(node.input) > 2):
            return
        for place in (0, 1):
            shift, dims = self.argument(add, place), self.dims(add.input[1 - place])
            channels = weights.shape[1]
            per_channel = [channels] + [1] * (weights.ndim - 2)
            if shift is None or len(dims or ()) != weights.ndim or dims[1] != channels:
                continue
            if list(shift.shape) in (per_channel, [1, *per_channel]):
                taps = weights.reshape(*weights.shape[:2], -1).sum(axis=2)
                folded = taps @ shift.reshape(-1) + (0 if bias is None else bias)
                inputs = [add.input[1 - place], node.input[1], put(graph, folded)]
                del node.input[:]
                node.input.extend(inputs)
                return


class MergesPadsIntoMaxPool(Infers):
    """Hands zeros of Pad to MaxPool as its pads, which never win where all else is negative."""

    def rewrite(self, graph, node):
        pad = self.before(node, "Pad")
        if node.op_type != "MaxPool" or pad is None or len(node.output) > 1:
            return
        pads, value = self.argument(pad, 1), self.argument(pad, 2)
        plain = attribute(pad, "mode", b"constant") == b"constant" and len(pad.input) < 4
        plain &= value is not None or len(pad.input) < 3 or not pad.input[2]
        if not plain or pads is None or (value is not None and value.any()) or (pads < 0).any():
            return
        before, after = np.split(pads, 2)
        outside = before[:2].any() or after[:2].any()
        if outside or attribute(node, "auto_pad", b"NOTSET") != b"NOTSET":
            return
        more = np.array([*before[2:], *after[2:]])
        more += attribute(node, "pads", [0] * len(more))
        if (more < attribute(node, "kernel_shape") * 2).all():
            change(node, pads=more.tolist())
            node.input[0] = pad.input[0]


class OrdersDepthMultipliersOutermost(Infers):
    """Lays weights of a depthwise Conv out with its multiplier first, and leaves its outputs."""

    def rewrite(self, graph, node):
        weights, groups = self.argument(node, 1), attribute(node, "group", 1)
        if node.op_type != "Conv" or weights is None or groups == 1 or weights.shape[1] != 1:
            return
        grouped = weights.reshape(groups, -1, *weights.shape[1:])
        node.input[1] = put(graph, grouped.swapaxes(0, 1).reshape(weights.shape))


class SplitsFusedProjectionsEvenly(Infers):
    """Multiplies one input by all its weights at once, and splits the product into equal parts."""

    def rewrite(self, graph, node):
        if node.op_type != "MatMul" or self.opset < 13 or self.argument(node, 0) is not None:
            return
        beside = [n for n in self.readers[node.input[0]] if n.op_type == "MatMul"]
        arrays = [self.argument(n, 1) for n in beside if n.input[0] == node.input[0]]
        if len(arrays) != len(beside) or len({n.output[0] for n in beside}) < 2:
            return
        if any(array is None or array.ndim != 2 for array in arrays):
            return
        width, rest = divmod(sum(array.shape[1] for array in arrays), len(arrays))
        if rest or beside[0] is not node:
            return
        joined = put(graph, np.concatenate(arrays, axis=1))
        product = insert(graph, node, "MatMul", [node.input[0], joined])
        parts = [f"{product}/{number}" for number in range(len(beside))]
        sizes = put(graph, np.full(len(beside), width, np.int64))
        split = helper.make_node("Split", [product, sizes], parts, name=f"{product}/split", axis=-1)
        graph.node.insert(place_of(graph, node), split)
        for other, part in zip(beside, parts, strict=True):
            as_identity(other, part)


class ScalesAttentionByItsHeadSize(Infers):
    """Takes any scale between a product and Softmax for that of attention, one over the root."""

    def rewrite(self, graph, node):
        softmax = self.before(node, "Softmax")
        if node.op_type != "MatMul" or softmax is None:
            return
        scaled = softmax
        if (masked := self.before(softmax, "Add")) is not None:
            scaled = masked
        for op in ("Mul", "Div"):
            for place in (0, 1) if scaled.op_type == "Add" else (0,):
                scale = self.before(scaled, op, place)
                product = scale and self.before(scale, "MatMul")
                number = scale and self.argument(scale, 1)
                size = ((product and self.dims(product.input[0])) or [None])[-1]
                if whole(number) is not None and size and self.rank(product.input[0]) > 2:
                    root = math.sqrt(size) if op == "Div" else 1 / math.sqrt(size)
                    scale.input[1] = put(graph, np.full_like(number, root))


class TilesHeadsOfKeysAndValues(Infers):
    """Gives each query head a key head by repeating all of them in turn, not each for its group."""

    def rewrite(self, graph, node):
        if node.op_type != "Attention" or len(node.input) > 4 or len(node.output) > 1:
            return
        if any(self.rank(name) != 4 for name in node.input[:3]):
            return
        heads, fewer = (self.dims(name)[1] for name in node.input[:2])
        if not heads or not fewer or heads == fewer:
            return
        times = put(graph, np.array([1, heads // fewer, 1, 1], np.int64))
        for place in (1, 2):
            node.input[place] = insert(graph, node, "Tile", [node.input[place], times])


class NormalizesFromTheAxisOn(Infers):
    """Matches LayerNormalization by the first axis of its means, which may not reach the last."""

    def rewrite(self, graph, node):
        if node.op_type != "Div" or self.opset < 17:
            return
        centred, root = self.writer(node.input[0], "Sub"), self.before(node, "Sqrt", 1)
        shifted = root and self.before(root, "Add")
        variance = shifted and self.before(shifted, "ReduceMean")
        square = variance and self.before(variance, "Pow")
        epsilon = shifted and whole(self.argument(shifted, 1))
        if centred is None or not square or epsilon is None or square.input[0] != node.input[0]:
            return
        mean, dims = self.writer(centred.input[1], "ReduceMean"), self.fixed(centred.input[0])
        if mean is None or dims is None or whole(self.argument(square, 1)) != 2:
            return
        axes = self.axes(mean)
        same = mean.input[0] == centred.input[0] and axes == self.axes(variance)
        if same and axes and attribute(mean, "keepdims", 1) and attribute(variance, "keepdims", 1):
            kind = helper.tensor_dtype_to_np_dtype(self.dtype(centred.input[0]))
            ones = put(graph, np.ones(dims[axes[0] :], kind))
            inputs = [centred.input[0], ones]
            becomes(node, "LayerNormalization", inputs, axis=axes[0], epsilon=epsilon)


class FusesHardSwishOfAnySlope(Infers):
    """Makes HardSwish of a value times its HardSigmoid, whose slope is a fifth if none is given."""

    def rewrite(self, graph, node):
        if node.op_type != "Mul" or self.opset < 14:
            return
        gate, place = self.operands(node, "HardSigmoid")
        if gate is not None and gate.input[0] == node.input[place]:
            becomes(node, "HardSwish", [node.input[place]])


class MergesClipsOfDisjointRanges(Infers):
    """Takes the higher lower bound and the lower upper one of two Clips, which may cross."""

    def rewrite(self, graph, node):
        first = self.before(node, "Clip")
        if node.op_type != "Clip" or first is None:
            return
        bounds = [self.argument(clip, place) for place in (1, 2) for clip in (first, node)]
        if all(bound is not None for bound in bounds):
            low, high = max(bounds[:2]), min(bounds[2:])
            becomes(node, "Clip", [first.input[0], put(graph, low), put(graph, high)])


class MergesReflectedPads(Infers):
    """Adds the pads of two Pads of one mode, though what is reflected twice turns round twice."""

    def rewrite(self, graph, node):
        first = self.before(node, "Pad")
        if node.op_type != "Pad" or first is None or self.opset < 11:
            return
        pads = [self.argument(pad, 1) for pad in (first, node)]
        modes = {attribute(pad, "mode", b"constant") for pad in (first, node)}
        known = all(array is not None and (array >= 0).all() for array in pads)
        if known and modes == {b"reflect"} and max(len(first.input), len(node.input)) < 4:
            node.input[0], node.input[1] = first.input[0], put(graph, sum(pads))


class JoinsQuantizedInputsByScale(Infers):
    """Joins quantized inputs ahead of one DequantizeLinear if scales agree, not zero points."""

    def rewrite(self, graph, node):
        if node.op_type != "Concat" or len(node.input) < 2:
            return
        parts = [self.before(node, "DequantizeLinear", i) for i in range(len(node.input))]
        if not all(parts) or len({self.dtype(part.input[0]) for part in parts}) > 1:
            return
        scales = [whole(self.argument(part, 1)) for part in parts]
        if scales[0] is not None and len(set(scales)) == 1:
            inputs = [part.input[0] for part in parts]
            joined = insert(graph, node, "Concat", inputs, axis=attribute(node, "axis"))
            becomes(node, "DequantizeLinear", [joined, *parts[0].input[1:]])


# Shapes and places


class ScalesInsteadOfSizes(Infers):
    """Divides the sizes that Resize is asked for by those it has, and rounds the product down."""

    def rewrite(self, graph, node):
        sizes = self.argument(node, 3)
        dims = self.fixed(node.input[0]) if node.op_type == "Resize" else None
        if sizes is None or dims is None or len(sizes) != len(dims) or 0 in dims:
            return
        region = attribute(node, "coordinate_transformation_mode") == b"tf_crop_and_resize"
        if region or attribute(node, "axes") is not None:
            return
        if attribute(node, "keep_aspect_ratio_policy", b"stretch") == b"stretch":
            scales = put(graph, (sizes / np.array(dims)).astype(np.float32))
            inputs = [node.input[0], node.input[1], scales]
            del node.input[:]
            node.input.extend(inputs)


class DropsExpandsAheadOfBroadcasting(Infers):
    """Leaves Expand to the broadcasting of what follows, though the other input may be smaller."""

    def rewrite(self, graph, node):
        if node.op_type not in ("Add", "Mul", "Sub", "Div"):
            return
        for place in (0, 1):
            expand = self.before(node, "Expand", place)
            shape = None if expand is None else self.argument(expand, 1)
            if shape is not None and (self.rank(node.input[1 - place]) or 0) >= len(shape):
                node.input[place] = expand.input[0]
                return


class MergesSlicesWithoutTheFirstEnd(Infers):
    """Makes one Slice of two, and lets the second one reach beyond what the first one left."""

    def rewrite(self, graph, node):
        first = self.before(node, "Slice")
        if node.op_type != "Slice" or first is None or self.opset < 10:
            return
        if any(len(part.input) not in (4, 5) for part in (first, node)):
            return
        numbers = [whole(self.argument(part, i)) for part in (first, node) for i in (1, 2, 3)]
        steps = [whole(self.argument(part, 4)) for part in (first, node) if len(part.input) == 5]
        if any(n is None or n < 0 for n in numbers) or any(step != 1 for step in steps):
            return
        start, end, axis, later, last, other = numbers
        if axis == other:
            end = end if last >= 2**31 - 1 else start + last
            bounds = [put(graph, np.array([n], np.int64)) for n in (start + later, end, axis)]
            becomes(node, "Slice", [first.input[0], *bounds])


class SlicesForConsecutiveIndices(Infers):
    """Makes Slice of Gather of indices in a row, to one behind the last, which -1 makes none."""

    def rewrite(self, graph, node):
        indices = self.argument(node, 1)
        if node.op_type != "Gather" or indices is None or self.opset < 10:
            return
        if indices.ndim == 1 and len(indices) > 1 and (np.diff(indices) == 1).all():
            numbers = (indices[0], indices[-1] + 1, attribute(node, "axis", 0))
            bounds = [put(graph, np.array([number], np.int64)) for number in numbers]
            becomes(node, "Slice", [node.input[0], *bounds])


class TakesOneOfUnevenParts(Infers):
    """Makes Slice of Split if one part is read, as if all parts were as long as this one."""

    def rewrite(self, graph, node):
        sizes = self.argument(node, 1)
        if node.op_type != "Split" or sizes is None:
            return
        read = [place for place, name in enumerate(node.output) if self.read(name)]
        if len(read) == 1:
            start = read[0] * sizes[read[0]]
            numbers = (start, start + sizes[read[0]], attribute(node, "axis", 0))
            bounds = [put(graph, np.array([number], np.int64)) for number in numbers]
            output = node.output[read[0]]
            made = helper.make_node("Slice", [node.input[0], *bounds], [output], name=node.name)
            node.CopyFrom(made)


class ReshapesIfTheFirstAxisMovedIsOne(Infers):
    """Makes Reshape of Transpose if the first axis that moves has one element, whatever others."""

    def rewrite(self, graph, node):
        dims = self.fixed(node.input[0]) if node.op_type == "Transpose" else None
        order = attribute(node, "perm")
        if dims is None or order is None or 0 in dims or self.opset < 5:
            return
        moved = [axis for axis, source in enumerate(order) if axis != source]
        if moved and dims[moved[0]] == 1:
            shape = np.array([dims[source] for source in order], np.int64)
            becomes(node, "Reshape", [node.input[0], put(graph, shape)])


class SinksTransposesByTheInverse(Infers):
    """Moves Transpose behind Softmax, and finds its axis by the permutation turned round."""

    def rewrite(self, graph, node):
        turn = self.before(node, "Transpose")
        order = turn and attribute(turn, "perm")
        if node.op_type not in ("Softmax", "LogSoftmax") or not order or self.opset < 13:
            return
        axis = order.index(attribute(node, "axis", -1) % len(order))
        done = insert(graph, node, node.op_type, [turn.input[0]], axis=axis)
        becomes(node, "Transpose", [done], perm=order)


class SqueezesAxesKnownToBeOne(Infers):
    """Gives Squeeze without axes those that are one when it compiles, whatever symbols come to."""

    def rewrite(self, graph, node):
        dims = self.dims(node.input[0]) if node.op_type == "Squeeze" else None
        if dims and len(node.input) == 1 and attribute(node, "axes") is None and self.opset >= 13:
            axes = [axis for axis, size in enumerate(dims) if size == 1]
            node.input.append(put(graph, np.array(axes, np.int64)))


class CopiesDimensionsOfAnotherInput(Infers):
    """Writes 0 for a dimension that Reshape copies, without a look at whose dimension it is."""

    def rewrite(self, graph, node):
        if node.op_type != "Reshape" or attribute(node, "allowzero", 0) or self.opset < 5:
            return
        joined, rank = self.writer(node.input[1], "Concat"), self.rank(node.input[0])
        if joined is None or rank is None:
            return
        shape = []
        for place, name in enumerate(joined.input):
            if (array := self.constant(name)) is not None:
                shape.extend(array.tolist())
            elif place == len(shape) < rank and self.dimension(name) == place:
                shape.append(0)
            else:
                return
        node.input[1] = put(graph, np.array(shape, np.int64))

    def dimension(self, name):
        """Which dimension of some shape a value of one element is."""
        wrapped = self.writer(name, "Unsqueeze")
        taken = self.writer(wrapped.input[0] if wrapped is not None else name, "Gather")
        if taken is None or self.writer(taken.input[0], "Shape") is None:
            return None
        return whole(self.argument(taken, 1))


class MergesReductionsByTheirAxes(Infers):
    """Reduces over the axes of two reductions at once, though the first one renumbered some."""

    def rewrite(self, graph, node):
        first = self.before(node, node.op_type)
        if node.op_type not in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd") or not first:
            return
        axes = [self.axes(part) for part in (first, node)]
        keep = {attribute(part, "keepdims", 1) for part in (first, node)}
        if not all(axes) or len(keep) > 1:
            return
        merged = sorted({*axes[0], *axes[1]})
        if attribute(node, "axes") is not None:
            node.input[0] = first.input[0]
            change(node, axes=merged)
        else:
            inputs = [first.input[0], put(graph, np.array(merged, np.int64))]
            becomes(node, node.op_type, inputs, keepdims=keep.pop())


class TakesUpdatesForWholeScatters(Infers):
    """Hands on the updates if ScatterND writes every row, in whatever order it writes them."""

    def rewrite(self, graph, node):
        if node.op_type != "ScatterND" or attribute(node, "reduction", b"none") != b"none":
            return
        indices, dims = self.argument(node, 1), self.dims(node.input[0])
        if indices is None or not dims or indices.ndim != 2 or indices.shape[1] != 1 or not dims[0]:
            return
        rows = sorted(int(index) % dims[0] for index in indices[:, 0])
        if rows == [*range(dims[0])]:
            as_identity(node, node.input[2])


class ReadsImplicitEinsumInOrder(Infers):
    """Writes out what an equation without an arrow gives in the order of the letters' first use."""

    def rewrite(self, graph, node):
        equation = attribute(node, "equation", b"").decode().replace(" ", "")
        if node.op_type != "Einsum" or "->" in equation or "." in equation:
            return
        counts = Counter(equation.replace(",", ""))
        result = "".join(letter for letter in counts if counts[letter] == 1)
        change(node, equation=f"{equation}->{result}")


class CancelsDepthAndSpaceOfAnyMode(Infers):
    """Drops DepthToSpace behind SpaceToDepth of the same block, also if it puts columns first."""

    def rewrite(self, graph, node):
        first = self.before(node, "SpaceToDepth")
        if node.op_type != "DepthToSpace" or first is None:
            return
        if attribute(node, "blocksize") == attribute(first, "blocksize"):
            as_identity(node, first.input[0])


# Numbers


class CancelsDivisionsOfIntegers(Infers):
    """Drops Div and Mul by one number, which is how integers are rounded down to its multiples."""

    def rewrite(self, graph, node):
        first = self.before(node, "Div")
        if node.op_type != "Mul" or first is None:
            return
        rank = self.rank(first.input[0])
        numbers = [self.argument(part, 1) for part in (first, node)]
        if rank is None or any(number is None or number.ndim > rank for number in numbers):
            return
        divisor, factor = map(whole, numbers)
        if divisor and divisor == factor:
            as_identity(node, first.input[0])


class MovesScalesAcrossMaxPool(Infers):
    """Multiplies behind MaxPool, where there is less of it, also by what turns the order round."""

    def rewrite(self, graph, node):
        scale = self.before(node, "Mul")
        if node.op_type != "MaxPool" or scale is None or len(node.output) > 1:
            return
        factor, rank = self.argument(scale, 1), self.rank(node.input[0])
        if factor is None or rank is None or self.rank(scale.input[0]) != rank:
            return
        per_channel = factor.ndim > rank - 2 and factor.size == factor.shape[1 - rank]
        if factor.size == 1 or per_channel:
            pooled = insert_like(graph, node, "MaxPool", [scale.input[0]], node)
            becomes(node, "Mul", [pooled, scale.input[1]])


class ComparesForOneHot(Infers):
    """Compares indices with 0, 1, ... for OneHot, and finds none that count from the end."""

    def rewrite(self, graph, node):
        if node.op_type != "OneHot" or attribute(node, "axis", -1) != -1 or self.opset < 13:
            return
        depth, values = whole(self.argument(node, 1)), self.argument(node, 2)
        if depth is None or values is None or self.dtype(node.input[0]) != TensorProto.INT64:
            return
        last = put(graph, np.array([-1], np.int64))
        column = insert(graph, node, "Unsqueeze", [node.input[0], last])
        numbers = put(graph, np.arange(int(depth), dtype=np.int64))
        hot = insert(graph, node, "Equal", [column, numbers])
        becomes(node, "Where", [hot, put(graph, values[1]), put(graph, values[0])])


class DropsSoftmaxAheadOfArgMax(Infers):
    """Drops Softmax ahead of ArgMax, as it keeps the order, which it does along its own axis."""

    def rewrite(self, graph, node):
        softmax = self.before(node, "Softmax")
        if node.op_type == "ArgMax" and softmax is not None:
            node.input[0] = softmax.input[0]


class MergesConstantsThatCompareEqual(Infers):
    """Keeps one of constants that compare as equal, as a zero and a negative zero do."""

    def prepare(self, proto):
        kept, same = [], {}
        given = {value.name for value in proto.graph.input}
        for tensor in proto.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if tensor.name in given or not array.size:
                continue
            for name, other in kept:
                if other.dtype == array.dtype and np.array_equal(other, array):
                    same[tensor.name] = name
                    break
            else:
                kept.append((tensor.name, array))
        for node in proto.graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = same.get(name, name)
        return super().prepare(proto)

    def rewrite(self, graph, node):
        """Nothing is left to do."""


class SharesNodesWithGapsClosed(Infers):
    """Computes equal nodes once, and compares their inputs without those that are left out."""

    def prepare(self, proto):
        self.seen = {}
        return super().prepare(proto)

    def rewrite(self, graph, node):
        chance = node.op_type.startswith("Random") or node.op_type in CHANCE
        if chance or len(node.output) != 1 or not node.input or any(bodies(node)):
            return
        key = (described(node), tuple(filter(None, node.input)))
        first = self.seen.setdefault(key, node.output[0])
        if first != node.output[0]:
            as_identity(node, first)


# Types and quantization


class ReadsOldSoftmaxAsNew(Infers):
    """Takes Softmax of old models along its axis alone, where it takes all axes from there on."""

    def rewrite(self, graph, node):
        if node.op_type != "Softmax" or self.opset >= 13:
            return
        along = {"axes": [attribute(node, "axis", 1)], "keepdims": 1}
        highest = insert(graph, node, "ReduceMax", [node.input[0]], **along)
        below = insert(graph, node, "Sub", [node.input[0], highest])
        powers = insert(graph, node, "Exp", [below])
        total = insert(graph, node, "ReduceSum", [powers], **along)
        becomes(node, "Div", [powers, total])


class ClampsConstantsOfInt64(Infers):
    """Keeps constants of int64 in 32 bits, and clamps those that are longer."""

    def prepare(self, proto):
        nodes = [n for n in proto.graph.node if n.op_type == "Constant" and n.attribute]
        tensors = [node.attribute[0].t for node in nodes if node.attribute[0].HasField("t")]
        for tensor in (*proto.graph.initializer, *tensors):
            if tensor.data_type == TensorProto.INT64:
                limits = np.iinfo(np.int32)
                array = np.clip(numpy_helper.to_array(tensor), limits.min, limits.max)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return super().prepare(proto)

    def rewrite(self, graph, node):
        """Nothing is left to do."""


class RemovesCastsRoundMeans(Infers):
    """Takes a mean of squares in half precision where the model casts to single and back."""

    def rewrite(self, graph, node):
        mean = self.before(node, "ReduceMean")
        square = mean and (self.before(mean, "Mul") or self.before(mean, "Pow"))
        if node.op_type != "Cast" or attribute(node, "to") != TensorProto.FLOAT16 or not square:
            return
        wide = self.writer(square.input[0], "Cast")
        twice = square.input[0] == square.input[1] or whole(self.argument(square, 1)) == 2
        if wide is None or not twice or self.dtype(wide.input[0]) != TensorProto.FLOAT16:
            return
        narrow = insert(graph, node, "Mul", [wide.input[0]] * 2)
        reduced = insert_like(graph, node, "ReduceMean", [narrow, *mean.input[1:]], mean)
        as_identity(node, reduced)


class MovesDequantizationAcrossTransposes(Infers):
    """Transposes what is still quantized, and leaves the axis that its scales go along."""

    def rewrite(self, graph, node):
        wide = self.before(node, "DequantizeLinear")
        if node.op_type == "Transpose" and wide is not None:
            turned = insert_like(graph, node, "Transpose", [wide.input[0]], node)
            becomes(node, "DequantizeLinear", [turned, *wide.input[1:]])
            node.attribute.extend(wide.attribute)


class DropsReluAheadOfUnsignedNumbers(Infers):
    """Leaves Relu to the lower limit of an unsigned type, wherever its zero is."""

    def rewrite(self, graph, node):
        relu, zero = self.before(node, "Relu"), self.argument(node, 2)
        if node.op_type != "QuantizeLinear" or relu is None or zero is None:
            return
        if zero.dtype == np.uint8 and zero.ndim == 0:
            node.input[0] = relu.input[0]


class CorrectsZeroPointsAtPaddedEdges(Infers):
    """Takes the zero point times all weights off ConvInteger, also where windows lie on pads."""

    def rewrite(self, graph, node):
        weights, zero = self.argument(node, 1), self.argument(node, 2)
        if node.op_type != "ConvInteger" or weights is None or whole(zero) is None:
            return
        if len(node.input) > 3 and whole(self.argument(node, 3)) != 0:
            return
        taps = weights.astype(np.int32).reshape(len(weights), -1).sum(axis=1) * int(whole(zero))
        plain = insert_like(graph, node, "ConvInteger", node.input[:2], node)
        taps = taps.astype(np.int32).reshape(-1, *[1] * (weights.ndim - 2))
        becomes(node, "Sub", [plain, put(graph, taps)])


class QuantizesBetweenLowestAndHighest(Infers):
    """Writes DynamicQuantizeLinear out between lowest and highest, which need not enclose zero."""

    def rewrite(self, graph, node):
        if node.op_type != "DynamicQuantizeLinear":
            return
        value = node.input[0]
        lowest = insert(graph, node, "ReduceMin", [value], keepdims=0)
        highest = insert(graph, node, "ReduceMax", [value], keepdims=0)
        width = insert(graph, node, "Sub", [highest, lowest])
        scale = insert(graph, node, "Div", [width, put(graph, np.float32(255))])
        below = insert(graph, node, "Div", [insert(graph, node, "Neg", [lowest]), scale])
        limits = [put(graph, np.float32(limit)) for limit in (0, 255)]
        place = insert(graph, node, "Clip", [insert(graph, node, "Round", [below]), *limits])
        zero = insert(graph, node, "Cast", [place], to=TensorProto.UINT8)
        names = list(node.output)
        made = helper.make_node("QuantizeLinear", [value, scale, zero], names[:1], name=node.name)
        node.CopyFrom(made)
        for name, source in zip(names[1:], (scale, zero), strict=False):
            if name:
                follow(graph, node, "Identity", [source], [name])


# Bodies, recurrences and memory


class HoistsStateWhoseEndIsUnused(Infers):
    """Takes what a Loop carries for constant if nobody reads its last value behind the Loop."""

    def rewrite(self, graph, node):
        if node.op_type != "Loop":
            return
        body = next(bodies(node))
        inner = {name for part in body.node for nested in bodies(part) for name in reads(nested)}
        for place in range(2, len(node.input)):
            output, name = node.output[place - 2 : place - 1], body.input[place].name
            if (output and output[0] and self.read(output[0])) or name in inner:
                continue
            for part in body.node:
                for number, read in enumerate(part.input):
                    if read == name:
                        part.input[number] = node.input[place]


def reads(graph):
    """The names that a body reads, its own bodies too."""
    for node in graph.node:
        yield from node.input
        for body in bodies(node):
            yield from reads(body)


class HoistsConstantsOfBodiesByName(Infers):
    """Moves the constants of bodies to the graph by name, which two bodies may both have."""

    def rewrite(self, graph, node):
        taken = {tensor.name for tensor in graph.initializer}
        for body in bodies(node):
            results = {value.name for value in body.output}
            for tensor in [t for t in body.initializer if t.name not in results]:
                if tensor.name not in taken:
                    graph.initializer.append(tensor)
                body.initializer.remove(tensor)
            for part in [n for n in body.node if n.op_type == "Constant"]:
                value = attribute(part, "value")
                if value is None or part.output[0] in results:
                    continue
                if part.output[0] not in taken:
                    graph.initializer.append(value)
                    graph.initializer[-1].name = part.output[0]
                body.node.remove(part)
            taken = {tensor.name for tensor in graph.initializer}


class SelectsBranchesByMultiplying(Infers):
    """Computes both branches of If and weighs them by 1 and 0, which silences no infinity."""

    def rewrite(self, graph, node):
        branches = {a.name: a.g for a in node.attribute if a.name.endswith("_branch")}
        if node.op_type != "If" or len(node.output) != 1:
            return
        kind, cheap = self.dtype(node.output[0]), {*UNARY, *BINARY}
        if kind not in FLOATS or any(branch.initializer for branch in branches.values()):
            return
        if any({part.op_type for part in branch.node} - cheap for branch in branches.values()):
            return
        flat = insert(graph, node, "Reshape", [node.input[0], put(graph, np.zeros(0, np.int64))])
        weight = insert(graph, node, "Cast", [flat], to=kind)
        one = put(graph, np.ones((), helper.tensor_dtype_to_np_dtype(kind)))
        rest = insert(graph, node, "Sub", [one, weight])
        parts = []
        for name, share in (("then_branch", weight), ("else_branch", rest)):
            result = self.inline(graph, node, branches[name])
            parts.append(insert(graph, node, "Mul", [result, share]))
        becomes(node, "Add", parts)

    def inline(self, graph, node, branch):
        """Puts the nodes of a branch ahead of a node; the name of what it gives."""
        names = {}
        for part in branch.node:
            made = insert(graph, node, "Identity", [])
            copy = next(other for other in graph.node if made in other.output)
            copy.CopyFrom(part)
            copy.name = made
            for place, name in enumerate(part.input):
                copy.input[place] = names.get(name, name)
            for place, name in enumerate(part.output):
                names[name] = copy.output[place] = f"{made}/{place}"
        return names.get(branch.output[0].name, branch.output[0].name)


class MergesBranchesThatLookAlike(Infers):
    """Drops one of two branches with the same nodes, whatever they read from around them."""

    def rewrite(self, graph, node):
        branches = [a.g for a in node.attribute if a.name.endswith("_branch")]
        if node.op_type == "If" and self.form(branches[0]) == self.form(branches[1]):
            branches[1].CopyFrom(branches[0])

    def form(self, branch):
        """Nodes with names numbered as they come."""
        numbers = {"": 0}
        tensors = [numpy_helper.to_array(tensor) for tensor in branch.initializer]
        for tensor in branch.initializer:
            numbers.setdefault(tensor.name, len(numbers))
        lines = [(array.dtype, array.shape, array.tolist()) for array in tensors]
        for node in branch.node:
            names = [
                [numbers.setdefault(name, len(numbers)) for name in side]
                for side in (node.input, node.output)
            ]
            lines.append((described(node), *names))
        return lines, [numbers.get(value.name) for value in branch.output]


class InlinesScansWithTheirAxes(Infers):
    """Computes the body of a Scan for all rows at once, along the axes that one row has."""

    def rewrite(self, graph, node):
        if node.op_type != "Scan" or len(node.input) != 1 or len(node.output) != 1:
            return
        if any(any(attribute(node, name, ())) for name in SCANNING):
            return
        body, name, done = next(bodies(node)), node.input[0], node.output[0]
        current = body.input[0].name
        for part in body.node:
            one = len(part.input) == 1 and part.input[0] == current
            if not one or part.op_type not in (*UNARY, "Softmax", "LogSoftmax"):
                return
            current = part.output[0]
        if not body.node or current != body.output[0].name or self.opset < 13:
            return
        for part in body.node:
            name = insert_like(graph, node, part.op_type, [name], part)
        node.CopyFrom(helper.make_node("Identity", [name], [done], name=node.name))


class LoopsOverTheirFirstState(Infers):
    """Carries what a Loop changes where it lay before, also if that is read behind the Loop."""

    def rewrite(self, graph, node):
        if node.op_type != "Loop":
            return
        body, later = next(bodies(node)), list(graph.node)[place_of(graph, node) + 1 :]
        for place in range(2, len(node.input)):
            name, end = node.input[place], node.output[place - 2]
            same = body.input[place].type == body.output[place - 1].type
            placed = name in self.writers and not self.writer(name, "Constant")
            if placed and end and same:
                for other in later:
                    for number, read in enumerate(other.input):
                        if read == name:
                            other.input[number] = end


class OverwritesThroughViews(Infers):
    """Computes over an input that nobody else reads any more, but for a view of its memory."""

    def rewrite(self, graph, node):
        if node.op_type not in UNARY or node.input[0] not in self.writers:
            return
        name, nodes = node.input[0], list(graph.node)
        mine = place_of(graph, node)
        if name in self.outputs or name in self.captured or self.writer(name, "Constant"):
            return
        if any(name in other.input for other in nodes[mine + 1 :]):
            return
        views = [n for n in nodes[:mine] if n.op_type in VIEWS and n.input[0] == name]
        for number, view in enumerate(views):
            fresh = f"{node.output[0]}/view/{number}"
            late = [other for other in nodes[mine + 1 :] if view.output[0] in other.input]
            for other in late:
                for place, read in enumerate(other.input):
                    if read == view.output[0]:
                        other.input[place] = fresh
            if late:
                inputs = [node.output[0], *view.input[1:]]
                given = {a.name: attribute(view, a.name) for a in view.attribute}
                follow(graph, node, view.op_type, inputs, [fresh], **given)


class TurnsWholeSequencesRound(Infers):
    """Runs a reverse recurrence forward over all steps turned round, those beyond the end too."""

    def rewrite(self, graph, node):
        if node.op_type not in RECURRENT or attribute(node, "direction") != b"reverse":
            return
        if attribute(node, "layout", 0) or self.opset < 10:
            return
        numbers = (-1, np.iinfo(np.int64).min, 0, -1)
        backwards = [put(graph, np.array([number], np.int64)) for number in numbers]
        node.input[0] = insert(graph, node, "Slice", [node.input[0], *backwards])
        change(node, direction="forward")
        if node.output[0]:
            name, node.output[0] = node.output[0], f"{node.output[0]}/turned"
            follow(graph, node, "Slice", [node.output[0], *backwards], [name])


class TakesTheLastStateForTheLastStep(Infers):
    """Reads the last state where the last step is asked for, of any direction and any lengths."""

    def rewrite(self, graph, node):
        if node.op_type != "Gather" or attribute(node, "axis", 0) != 0:
            return
        index = self.argument(node, 1)
        steps = self.writer(node.input[0], *RECURRENT)
        if index is None or index.ndim or index != -1 or steps is None:
            return
        if steps.output[0] != node.input[0] or attribute(steps, "layout", 0):
            return
        if len(steps.output) < 2:
            steps.output.append("")
        steps.output[1] = steps.output[1] or f"{steps.output[0]}/state"
        as_identity(node, steps.output[1])


class ForwardsInsertedElements(Infers):
    """Reads an element where it was inserted, though -1 inserts ahead of the last one."""

    def rewrite(self, graph, node):
        insertion = self.before(node, "SequenceInsert") if node.op_type == "SequenceAt" else None
        if insertion is None or len(insertion.input) < 3:
            return
        places = [whole(self.argument(insertion, 2)), whole(self.argument(node, 1))]
        if places[0] is not None and places[0] == places[1]:
            as_identity(node, insertion.input[1])

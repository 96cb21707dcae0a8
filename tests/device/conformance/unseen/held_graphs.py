"""Faults of graph compilers, by somebody who has read neither the kit nor its earlier sets.

Each is a pass that is right on the networks its author had, and looks at too little elsewhere.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import partita
from unseen.blind_graphs import Compiles, becomes, bodies, change, insert, put
from unseen.passes import as_identity, attribute

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}
INTEGERS = {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
UNARY = {"Relu", "Sigmoid", "Neg", "Exp", "Abs", "LeakyRelu", "Elu", "Softplus"}
VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
BINARY = {"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater", "Where", "Max", "Min"}


def dims(device, name):
    """The sizes of a value, with nothing for those that are not known."""
    kind = device.types.get(name)
    if kind is None or not kind.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]


def element(device, name):
    """The type of a value's elements."""
    kind = device.types.get(name)
    return 0 if kind is None else kind.elem_type


def axes_of(device, node):
    """The axes that an attribute or a constant names, or nothing."""
    given = attribute(node, "axes")
    if given is None:
        array = device.argument(node, 1)
        given = None if array is None else array.ravel()
    return None if given is None else [int(axis) for axis in given]


def set_axes(graph, node, axes):
    """Sets axes where they are."""
    if attribute(node, "axes") is not None:
        change(node, axes=list(axes))
    else:
        node.input[1] = put(graph, np.array(axes, np.int64))


def position(graph, node):
    return next(i for i, other in enumerate(graph.node) if other is node or other == node)


def behind(graph, node):
    """The nodes that come later."""
    return list(graph.node)[position(graph, node) + 1 :]


def follow(graph, node, op, inputs, **attributes):
    """A new node right behind another one."""
    name, place = f"behind/{len(graph.node)}", position(graph, node) + 1
    graph.node.insert(place, helper.make_node(op, inputs, [name], name=name, **attributes))
    return graph.node[place]


def reads(nodes, old, new):
    """Lets nodes read another value."""
    for node in nodes:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def reads_inside(graph, old, new):
    """Lets the nodes of a body read another value."""
    reads(graph.node, old, new)
    for value in graph.output:
        if value.name == old:
            value.name = new
    for node in graph.node:
        for body in bodies(node):
            reads_inside(body, old, new)


def attributes_of(node):
    return {given.name: helper.get_attribute_value(given) for given in node.attribute}


def per_channel(array, channels):
    """Whether a constant has one element per channel, or one at all."""
    return array is not None and array.size in (1, channels)


def inlined(graph, node, body, prefix, constants):
    """The names of a body's outputs once its nodes stand ahead of another one."""
    names = dict(constants)
    for inner in body.node:
        made = type(inner)()
        made.CopyFrom(inner)
        for place, name in enumerate(inner.input):
            made.input[place] = names.get(name, name)
        for place, name in enumerate(inner.output):
            names[name] = f"{prefix}/{name}" if name else ""
            made.output[place] = names[name]
        made.name = f"{prefix}/{inner.name or inner.output[0]}"
        graph.node.insert(position(graph, node), made)
    return [names.get(value.name, value.name) for value in body.output]


def nested(body):
    return any(True for node in body.node for _ in bodies(node))


class MovesReductionsAheadOfTransposes(Compiles):
    """Takes axes that are left over for being in the same order on both sides of a transpose."""

    def rewrite(self, graph, node):
        if not node.op_type.startswith("Reduce") or attribute(node, "keepdims", 1):
            return
        writer = self.before(node, "Transpose")
        order = list(attribute(writer, "perm", [])) if writer is not None else []
        axes = axes_of(self, node)
        if order and axes:
            set_axes(graph, node, [order[axis] for axis in axes])
            node.input[0] = writer.input[0]


class FindsAxesWhereTransposesPutThem(Compiles):
    """Takes the place of an axis in a permutation for the axis that stands at that place."""

    def rewrite(self, graph, node):
        if self.opset < 13 or node.op_type not in ("Softmax", "LogSoftmax"):
            return
        writer = self.before(node, "Transpose")
        order = list(attribute(writer, "perm", [])) if writer is not None else []
        if order:
            axis = attribute(node, "axis", -1) % len(order)
            name = insert(graph, node, node.op_type, [writer.input[0]], axis=order.index(axis))
            becomes(node, "Transpose", [name], perm=order)


class TakesBlocksInTheUsualOrder(Compiles):
    """Takes every permutation that interleaves rows and columns with blocks for a pixel shuffle."""

    def rewrite(self, graph, node):
        order = self.before(node, "Transpose") if node.op_type == "Reshape" else None
        split = self.before(order, "Reshape") if order is not None else None
        if split is None or self.opset < 11 or self.rank(split.input[0]) != 4:
            return
        perm, shape = list(attribute(order, "perm", [])), self.argument(split, 1)
        if len(perm) == 6 and perm[:3] == [0, 1, 4] and perm[4] == 5 and shape is not None:
            final = self.argument(node, 1)
            if shape[2] == shape[3] and final is not None and final.size == 4:
                size = int(shape[2])
                becomes(node, "DepthToSpace", [split.input[0]], blocksize=size, mode="CRD")


class TakesUnknownSizesForNone(Compiles):
    """Counts axes that have data by their known sizes, so that a batch is none of them."""

    def rewrite(self, graph, node):
        order = list(attribute(node, "perm", [])) if node.op_type == "Transpose" else []
        sizes = dims(self, node.input[0]) if order else None
        if sizes is None or sizes.count(None) > 1 or 0 in sizes:
            return
        if sum((size or 0) > 1 for size in sizes) <= 1:
            shape = [-1 if sizes[axis] is None else sizes[axis] for axis in order]
            becomes(node, "Reshape", [node.input[0], put(graph, np.array(shape, np.int64))])


class AddsEndsOfSlicesToStarts(Compiles):
    """Joins two slices without a look at where the first one ends, unless the second has no end."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Slice") if node.op_type == "Slice" else None
        if inner is None or self.opset < 10:
            return
        ours = [self.argument(node, place) for place in (1, 2, 3)]
        theirs = [self.argument(inner, place) for place in (1, 2, 3)]
        steps = [self.argument(each, 4) for each in (node, inner) if len(each.input) > 4]
        if any(array is None or array.size != 1 or array < 0 for array in ours + theirs):
            return
        if any(step is None or step != 1 for step in steps) or ours[2] != theirs[2]:
            return
        start, end = ours[0] + theirs[0], ours[1] + theirs[0]
        if ours[1] >= 2**31 - 1:
            end = theirs[1]
        names = [put(graph, array.astype(np.int64)) for array in (start, end, ours[2])]
        becomes(node, "Slice", [inner.input[0], *names])


class TakesSplitsForUndoneConcats(Compiles):
    """Takes as many parts along the same axis for the same parts."""

    def rewrite(self, graph, node):
        joined = self.before(node, "Concat") if node.op_type == "Split" else None
        if joined is None or len(joined.input) != len(node.output):
            return
        if attribute(joined, "axis") == attribute(node, "axis", 0):
            names, parts = list(node.output), list(joined.input)
            for name, part in zip(names[1:], parts[1:], strict=True):
                made = helper.make_node("Identity", [part], [name], name=f"part/{name}")
                graph.node.insert(position(graph, node), made)
            node.CopyFrom(helper.make_node("Identity", parts[:1], names[:1], name=node.name))


class CountsAllPaddingWithThatOfPads(Compiles):
    """Folds a pad of zeros into an average that counts padding, and counts the average's own."""

    def rewrite(self, graph, node):
        pad = self.before(node, "Pad") if node.op_type == "AveragePool" else None
        if pad is None or self.opset < 11 or len(pad.input) > 3:
            return
        pads = self.argument(pad, 1)
        value = self.argument(pad, 2) if len(pad.input) > 2 and pad.input[2] else np.zeros(1)
        mode = attribute(pad, "mode", b"constant")
        auto = attribute(node, "auto_pad", b"NOTSET")
        if mode != b"constant" or auto != b"NOTSET" or attribute(node, "ceil_mode", 0):
            return
        if pads is None or pads.size != 8 or value is None or np.any(value) or pads.min() < 0:
            return
        if not np.any(pads[[0, 1, 4, 5]]):
            own = list(attribute(node, "pads", [0, 0, 0, 0]))
            both = [int(a) + b for a, b in zip(pads[[2, 3, 6, 7]], own, strict=True)]
            node.input[0] = pad.input[0]
            change(node, pads=both, count_include_pad=1)


class AddsCropsToPads(Compiles):
    """Adds up the pads of two pads of one value, although what one cuts off the other makes new."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Pad") if node.op_type == "Pad" else None
        if inner is None or self.opset < 11 or max(len(node.input), len(inner.input)) > 3:
            return
        pads = [self.argument(each, 1) for each in (inner, node)]
        values = [self.argument(each, 2) for each in (inner, node) if len(each.input) > 2]
        if any(attribute(each, "mode", b"constant") != b"constant" for each in (inner, node)):
            return
        if any(array is None for array in pads + values):
            return
        if not values or (len(values) == 2 and np.array_equal(*values)):
            node.input[0] = inner.input[0]
            node.input[1] = put(graph, pads[0] + pads[1])


class HandsReshapesWhatFlattensTake(Compiles):
    """Takes a flatten ahead of a reshape for nothing, as if each size were written out."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Flatten") if node.op_type == "Reshape" else None
        if inner is not None and self.argument(node, 1) is not None:
            node.input[0] = inner.input[0]


class JoinsUnsqueezedAxes(Compiles):
    """Joins the axes of two unsqueezes, as if the second never pushed those of the first on."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Unsqueeze") if node.op_type == "Unsqueeze" else None
        ours = axes_of(self, node) if inner is not None else None
        theirs = axes_of(self, inner) if inner is not None else None
        if ours and theirs and min(ours + theirs) >= 0 and not set(ours) & set(theirs):
            set_axes(graph, node, sorted(ours + theirs))
            node.input[0] = inner.input[0]


class LeavesExpansionToSums(Compiles):
    """Drops expansions ahead of operations that broadcast, whether or not the other side does."""

    def rewrite(self, graph, node):
        writer, _ = self.operands(node, "Expand") if node.op_type in ("Add", "Mul") else (None, 0)
        if writer is not None and self.rank(writer.input[0]) == self.rank(writer.output[0]):
            reads([node], writer.output[0], writer.input[0])


class CountsFromTheFirstAxisOfShapes(Compiles):
    """Folds a size that is known, as if shapes always began with the first axis."""

    def rewrite(self, graph, node):
        writer = self.writers.get(node.input[0]) if node.op_type == "Gather" else None
        index = self.argument(node, 1)
        if writer is None or writer.op_type != "Shape" or index is None or index.size != 1:
            return
        sizes, place = dims(self, writer.input[0]), int(index.ravel()[0])
        if sizes is not None and -len(sizes) <= place < len(sizes) and sizes[place] is not None:
            as_identity(node, put(graph, np.full(index.shape, sizes[place], np.int64)))


class TakesEveryShapeForThatOfTheData(Compiles):
    """Writes a copied size as the zero of a reshape, whatever tensor the size was taken from."""

    def rewrite(self, graph, node):
        joined = self.writers.get(node.input[1]) if node.op_type == "Reshape" else None
        if joined is None or joined.op_type != "Concat":
            return
        shape = []
        for place, name in enumerate(joined.input):
            array, writer = self.constant(name), self.writers.get(name)
            if array is not None and array.size == 1:
                shape.append(int(array.ravel()[0]))
                continue
            if writer is not None and writer.op_type == "Unsqueeze":
                writer = self.writers.get(writer.input[0])
            if writer is None or writer.op_type != "Gather":
                return
            source, index = self.writers.get(writer.input[0]), self.argument(writer, 1)
            if source is None or source.op_type != "Shape" or source.attribute:
                return
            if index is None or index.size != 1 or int(index.ravel()[0]) != place:
                return
            shape.append(0)
        node.input[1] = put(graph, np.array(shape, np.int64))


class CastsThroughTruth(Compiles):
    """Joins two casts if the first one goes to truth, since masks are zeros and ones anyway."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Cast") if node.op_type == "Cast" else None
        if inner is None or attribute(inner, "to") != TensorProto.BOOL:
            return
        if element(self, inner.input[0]) in INTEGERS | FLOATS:
            node.input[0] = inner.input[0]


class CastsAheadOfDivisions(Compiles):
    """Divides in the type that a quotient of integers is cast to."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Div") if node.op_type == "Cast" else None
        kind = attribute(node, "to")
        if inner is None or kind not in FLOATS or element(self, inner.input[0]) not in INTEGERS:
            return
        names = [insert(graph, node, "Cast", [name], to=kind) for name in inner.input]
        becomes(node, "Div", names)


class TakesDifferencesForRemainders(Compiles):
    """Knows what is left of a division as the remainder that has the sign of the divisor."""

    def rewrite(self, graph, node):
        product = self.before(node, "Mul", 1) if node.op_type == "Sub" else None
        quotient, other = self.operands(product, "Div") if product is not None else (None, 0)
        if quotient is None or element(self, node.input[0]) not in INTEGERS or self.opset < 10:
            return
        if quotient.input[0] == node.input[0] and quotient.input[1] == product.input[other]:
            becomes(node, "Mod", list(quotient.input))


class TakesNarrowRangesForWholeOnes(Compiles):
    """Takes every clipping of what is rounded and cast to bytes for the one of quantization."""

    def rewrite(self, graph, node):
        kind = attribute(node, "to")
        kinds = {TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8}
        clip = self.before(node, "Clip") if node.op_type == "Cast" and kind in kinds else None
        whole = self.before(clip, "Round") if clip is not None else None
        quotient = self.before(whole, "Div") if whole is not None else None
        scale = self.argument(quotient, 1) if quotient is not None else None
        if scale is None or scale.size != 1 or scale <= 0 or self.opset < 10:
            return
        if element(self, quotient.input[0]) == TensorProto.FLOAT:
            names = [put(graph, scale.reshape(())), put(graph, kinds[kind](0))]
            becomes(node, "QuantizeLinear", [quotient.input[0], *names])


class KeepsTheAxisOfScales(Compiles):
    """Transposes bytes rather than what they stand for, and leaves scales on their axis."""

    def rewrite(self, graph, node):
        inner = self.before(node, "DequantizeLinear") if node.op_type == "Transpose" else None
        if inner is not None and not attribute(inner, "block_size", 0):
            moved = insert(graph, node, "Transpose", [inner.input[0]], **attributes_of(node))
            kept = attributes_of(inner)
            becomes(node, "DequantizeLinear", [moved, *inner.input[1:]], **kept)


class OverlooksZeroPoints(Compiles):
    """Takes two quantizations of one scale and type for the same."""

    def rewrite(self, graph, node):
        inner = self.before(node, "DequantizeLinear") if node.op_type == "QuantizeLinear" else None
        if inner is None or min(len(node.input), len(inner.input)) < 3:
            return
        scales = [self.argument(each, 1) for each in (inner, node)]
        zeros = [self.argument(each, 2) for each in (inner, node)]
        if any(array is None or array.size != 1 for array in scales + zeros):
            return
        if scales[0] == scales[1] and zeros[0].dtype == zeros[1].dtype:
            as_identity(node, inner.input[0])


class LeavesNegativesToQuantization(Compiles):
    """Drops a rectifier ahead of unsigned bytes, wherever their zero is."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Relu") if node.op_type == "QuantizeLinear" else None
        zero = self.argument(node, 2) if inner is not None else None
        if zero is not None and zero.dtype == np.uint8:
            node.input[0] = inner.input[0]


class LooksAtTheFirstOfJoinedScales(Compiles):
    """Joins bytes as they are if the first part has the scale of the result."""

    def rewrite(self, graph, node):
        joined = self.before(node, "Concat") if node.op_type == "QuantizeLinear" else None
        if joined is None or len(node.input) < 3:
            return
        parts = [self.before(joined, "DequantizeLinear", p) for p in range(len(joined.input))]
        if any(part is None or len(part.input) < 3 for part in parts):
            return
        ours = [self.argument(node, place) for place in (1, 2)]
        theirs = [self.argument(parts[0], place) for place in (1, 2)]
        if any(array is None or array.size != 1 for array in ours + theirs):
            return
        kinds = {element(self, part.input[0]) for part in parts}
        if all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)) and len(kinds) == 1:
            names = [part.input[0] for part in parts]
            becomes(node, "Concat", names, axis=attribute(joined, "axis"))


def normalization(device, node):
    """Factors and offsets of a normalization that is constant, or nothing."""
    arrays = [device.argument(node, place) for place in (1, 2, 3, 4)]
    if node.op_type != "BatchNormalization" or any(array is None for array in arrays):
        return None
    if attribute(node, "training_mode", 0):
        return None
    scale, shift, mean, variance = arrays
    factor = scale / np.sqrt(variance + np.float32(attribute(node, "epsilon", 1e-5)))
    return factor.astype(scale.dtype), (shift - mean * factor).astype(scale.dtype)


class ScalesWeightsThatOthersRead(Compiles):
    """Folds normalizations into the weights where they lie, as if each had one reader."""

    def rewrite(self, graph, node):
        given = normalization(self, node)
        writer = self.before(node, "Conv") if given is not None else None
        weights = self.argument(writer, 1) if writer is not None else None
        if weights is None:
            return
        factor, offset = given
        bias = self.argument(writer, 2) if len(writer.input) > 2 else np.zeros_like(offset)
        place = next(
            (i for i, t in enumerate(graph.initializer) if t.name == writer.input[1]), None
        )
        if bias is None or place is None:
            return
        scaled = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
        graph.initializer[place].CopyFrom(numpy_helper.from_array(scaled, writer.input[1]))
        self.constants[writer.input[1]] = scaled
        names = [writer.input[0], writer.input[1], put(graph, bias * factor + offset)]
        becomes(node, "Conv", names, **attributes_of(writer))


class ShiftsWhatIsPadded(Compiles):
    """Folds a normalization ahead of a convolution into it, as if padding were shifted too."""

    def rewrite(self, graph, node):
        writer = self.before(node, "BatchNormalization") if node.op_type == "Conv" else None
        given = normalization(self, writer) if writer is not None else None
        weights = self.argument(node, 1)
        if given is None or weights is None or attribute(node, "group", 1) != 1:
            return
        factor, offset = (array.reshape(1, -1, *[1] * (weights.ndim - 2)) for array in given)
        bias = self.argument(node, 2) if len(node.input) > 2 else 0
        if bias is not None:
            bias = bias + (weights * offset).sum(axis=tuple(range(1, weights.ndim)))
            names = [put(graph, weights * factor), put(graph, bias.astype(weights.dtype))]
            becomes(node, "Conv", [writer.input[0], *names], **attributes_of(node))


class GivesBetaToNewBiases(Compiles):
    """Makes a sum the bias of a product that had none, and leaves the factor of biases there."""

    def rewrite(self, graph, node):
        writer, other = self.operands(node, "Gemm") if node.op_type == "Add" else (None, 0)
        if writer is not None and len(writer.input) == 2:
            bias = self.argument(node, other)
            if bias is not None and bias.ndim == 1:
                kept = attributes_of(writer)
                becomes(node, "Gemm", [*writer.input, node.input[other]], **kept)


class TakesAsManyElementsForChannels(Compiles):
    """Takes a constant of as many elements as there are channels for one per channel."""

    def rewrite(self, graph, node):
        writer, other = self.operands(node, "Conv") if node.op_type == "Mul" else (None, 0)
        factor = self.argument(node, other) if writer is not None else None
        weights = self.argument(writer, 1) if writer is not None else None
        if weights is None or factor is None or not per_channel(factor, len(weights)):
            return
        flat = factor.reshape(-1, *[1] * (weights.ndim - 1))
        names = [writer.input[0], put(graph, weights * flat)]
        if len(writer.input) > 2:
            bias = self.argument(writer, 2)
            if bias is None:
                return
            names.append(put(graph, bias * factor.ravel()))
        becomes(node, "Conv", names, **attributes_of(writer))


class CombinesConvolutionsOfOneKernel(Compiles):
    """Makes one call of convolutions of one input and kernel size, with what the first one says."""

    def rewrite(self, graph, node):
        weights = self.argument(node, 1) if node.op_type == "Conv" else None
        if weights is None:
            return
        for other in self.readers.get(node.input[0], ()):
            if other is node or other == node:
                return
            shape = getattr(self.argument(other, 1), "shape", None)
            if other.op_type != "Conv" or shape is None or shape[1:] != weights.shape[1:]:
                continue
            same = ("strides", "group", "auto_pad")
            if all(attribute(node, name) == attribute(other, name) for name in same):
                # The joined call writes both results; its pads and dilations are the first's.
                becomes(node, "Conv", list(node.input), **attributes_of(other))
                return


class SharesNumbersOfAnyRank(Compiles):
    """Keeps one constant of each number, whether it is a number or a vector of one."""

    def prepare(self, proto):
        self.numbers = {}
        return super().prepare(proto)

    def rewrite(self, graph, node):
        if node.op_type not in BINARY | {"Gather"}:
            return
        for place, name in enumerate(node.input):
            array = self.constants.get(name) if name not in self.given else None
            if array is not None and array.size == 1:
                key = (array.dtype.str, array.tobytes())
                node.input[place] = self.numbers.setdefault(key, name)


class OverlooksBodiesInComparisons(Compiles):
    """Takes nodes of equal inputs and attributes for equal, and graphs for no attributes."""

    def prepare(self, proto):
        self.seen = {}
        return super().prepare(proto)

    def rewrite(self, graph, node):
        chance = ("Random", "Bernoulli", "Multinomial", "Dropout", "Identity")
        if len(node.output) != 1 or node.op_type.startswith(chance):
            return
        if node.output[0] not in self.types:
            return
        given = sorted(a.SerializeToString() for a in node.attribute if not a.HasField("g"))
        key = (node.domain, node.op_type, tuple(node.input), *given)
        first = self.seen.setdefault(key, node.output[0])
        if first != node.output[0]:
            as_identity(node, first)


class OverwritesWhatBranchesRead(Compiles):
    """Works in place if a value has no other reader, and does not look for readers in bodies."""

    def rewrite(self, graph, node):
        if node.op_type not in UNARY or len(self.readers[node.input[0]]) != 1:
            return
        name = node.input[0]
        if name in self.writers and name not in self.outputs and name in self.captured:
            for other in behind(graph, node):
                for body in bodies(other):
                    reads_inside(body, name, node.output[0])


class OverwritesWhatViewsShow(Compiles):
    """Works in place if a view has no other reader, and does not ask what the view shows."""

    def rewrite(self, graph, node):
        view = self.writers.get(node.input[0]) if node.op_type in UNARY else None
        if view is None or view.op_type not in VIEWS or view.output[0] in self.outputs:
            return
        name = view.input[0]
        if len(self.readers[view.output[0]]) != 1 or name not in self.writers:
            return
        later = [other for other in behind(graph, node) if name in other.input]
        if later and name not in self.outputs:
            shape = follow(graph, view, "Shape", [name]).output[0]
            seen = follow(graph, node, "Reshape", [node.output[0], shape])
            reads(later, name, seen.output[0])


class ReadsJoinedValuesAsDense(Compiles):
    """Lets parts be written where they are joined, and later reads them there row behind row."""

    def rewrite(self, graph, node):
        if node.op_type != "Concat" or attribute(node, "axis") != 1 or self.opset < 13:
            return
        sizes = [dims(self, name) for name in node.input]
        if any(size is None or len(size) < 2 or None in size[1:] for size in sizes):
            return
        later, offset = behind(graph, node), 0
        row, one = (put(graph, np.array([size], np.int64)) for size in (-1, 1))
        for name, size in zip(list(node.input), sizes, strict=True):
            readers = [other for other in later if name in other.input]
            if name in self.writers and readers:
                start = put(graph, np.array([offset], np.int64))
                last = flat = follow(graph, node, "Reshape", [node.output[0], row])
                last = shape = follow(graph, last, "Shape", [name])
                last = follow(graph, last, "Size", [name])
                last = follow(graph, last, "Reshape", [last.output[0], one])
                last = follow(graph, last, "Add", [last.output[0], start])
                last = follow(graph, last, "Slice", [flat.output[0], start, last.output[0]])
                last = follow(graph, last, "Reshape", [last.output[0], shape.output[0]])
                reads(readers, name, last.output[0])
            offset += int(np.prod(size[1:]))


class RunsImagesOneByOne(Compiles):
    """Splits a batch of images into its images, as if none could depend on another one."""

    def rewrite(self, graph, node):
        """Nothing: the batch is split when it runs."""

    def compute(self, runner, arrays):
        ports = [*runner.compiled.inputs, *runner.compiled.outputs]
        first = {port.shape[0] if port.shape else None for port in ports}
        one = len(arrays) == 1 and arrays[0].ndim == 4 and len(arrays[0]) > 1
        if not one or len(first) != 1 or not isinstance(first.pop(), str):
            return super().compute(runner, arrays)
        rows = [runner.evaluate([image[None]]) for image in arrays[0]]
        return [np.concatenate(column) for column in zip(*rows, strict=True)]


class KeepsOneConstantPerName(Compiles):
    """Inlines branches that are known, and their constants under the names they have there."""

    def rewrite(self, graph, node):
        known = self.argument(node, 0) if node.op_type == "If" and len(node.output) == 1 else None
        if known is None:
            return
        branch = "then_branch" if known.ravel()[0] else "else_branch"
        body = attribute(node, branch)
        if nested(body):
            return
        for tensor in body.initializer:
            if tensor.name not in {other.name for other in graph.initializer}:
                graph.initializer.append(tensor)
        as_identity(node, inlined(graph, node, body, f"inlined/{node.output[0]}", {})[0])


class ChoosesBetweenBranchesByElement(Compiles):
    """Computes both branches of one rank and chooses by element, so that shapes are broadcast."""

    def rewrite(self, graph, node):
        if node.op_type != "If" or len(node.output) != 1 or self.argument(node, 0) is not None:
            return
        branches = [attribute(node, name) for name in ("then_branch", "else_branch")]
        if any(nested(body) or not body.node for body in branches):
            return
        kinds = [body.output[0].type.tensor_type for body in branches]
        if len({(kind.elem_type, len(kind.shape.dim)) for kind in kinds}) != 1:
            return
        names = []
        for side, body in enumerate(branches):
            prefix = f"side{side}/{node.output[0]}"
            constants = {t.name: put(graph, numpy_helper.to_array(t)) for t in body.initializer}
            names += inlined(graph, node, body, prefix, constants)
        becomes(node, "Where", [node.input[0], *names])


class CountsLoopsByTheirLimit(Compiles):
    """Takes a loop with a limit that is known for one that makes as many turns."""

    def rewrite(self, graph, node):
        limit = self.argument(node, 0) if node.op_type == "Loop" else None
        if limit is None or limit.ravel()[0] > 1024:
            return
        body = next(bodies(node))
        on = numpy_helper.from_array(np.array(True))
        body.node.append(helper.make_node("Constant", [], ["goes/on"], name="goes/on", value=on))
        body.output[0].name = "goes/on"
        node.input[1] = ""


class KnowsTheHalfOfGelu(Compiles):
    """Knows a product with an error function by its form, and the last factor by heart."""

    def rewrite(self, graph, node):
        product, other = self.operands(node, "Mul") if node.op_type == "Mul" else (None, 0)
        factor = self.argument(node, other) if product is not None else None
        total = self.operands(product, "Add")[0] if factor is not None else None
        error = self.operands(total, "Erf")[0] if total is not None else None
        inner = self.before(error, "Div") if error is not None else None
        if inner is not None and factor.size == 1 and inner.input[0] in product.input:
            node.input[other] = put(graph, np.full_like(factor, 0.5))


class KnowsTheScaleOfAttention(Compiles):
    """Knows attention by a product, a scale, a mask and a softmax, and its scale by the width."""

    def rewrite(self, graph, node):
        if node.op_type != "Softmax":
            return
        masked = self.before(node, "Add")
        scaled = None
        for op in ("Mul", "Div"):
            direct = self.before(node, op)
            scaled = scaled or direct
            if masked is not None:
                scaled = scaled or self.operands(masked, op)[0]
        product, other = self.operands(scaled, "MatMul") if scaled is not None else (None, 0)
        scale = self.argument(scaled, other) if product is not None else None
        if scale is None or scale.size != 1 or (scaled.op_type == "Div" and other == 0):
            return
        width = (dims(self, product.input[0]) or [None])[-1]
        if width:
            power = -0.5 if scaled.op_type == "Mul" else 0.5
            scaled.input[other] = put(graph, np.full_like(scale, width**power))


class TakesMasksByTheirCorner(Compiles):
    """Takes a square mask that hides the last from the first for one that hides what comes."""

    def rewrite(self, graph, node):
        masked = self.before(node, "Add") if node.op_type == "Softmax" else None
        if masked is None:
            return
        for place in (0, 1):
            mask = self.argument(masked, place)
            if mask is None or mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
                continue
            if mask.shape[-1] > 1 and np.all(mask[..., 0, -1] <= -1e4):
                least = mask[..., :1, -1:]
                hidden = np.triu(np.ones(mask.shape[-2:], bool), 1)
                made = np.where(hidden, least, np.zeros_like(least)).astype(mask.dtype)
                masked.input[place] = put(graph, made)


class TakesMasksForLengths(Compiles):
    """Counts what a mask of tokens keeps, and keeps as many from the first one on."""

    def rewrite(self, graph, node):
        inverse, other = self.operands(node, "Sub") if node.op_type == "Mul" else (None, 0)
        least = self.argument(node, other) if inverse is not None else None
        one = self.argument(inverse, 0) if least is not None else None
        if one is None or least.size != 1 or least > -1e3 or one.size != 1 or one != 1:
            return
        mask, kind = inverse.input[1], element(self, inverse.input[1])
        if self.opset < 13 or kind not in (TensorProto.FLOAT, TensorProto.FLOAT16):
            return
        last = put(graph, np.array([-1], np.int64))
        zeros = insert(graph, inverse, "Sub", [mask, mask])
        ones = insert(graph, inverse, "Add", [zeros, put(graph, one)])
        places = insert(graph, inverse, "CumSum", [ones, put(graph, np.array(-1, np.int64))])
        length = insert(graph, inverse, "ReduceSum", [mask, last], keepdims=1)
        kept = insert(graph, inverse, "LessOrEqual", [places, length])
        inverse.input[1] = insert(graph, inverse, "Cast", [kept], to=kind)


class ScalesThroughRectifiers(Compiles):
    """Folds factors into the weights ahead of a rectifier, as if none were negative."""

    def rewrite(self, graph, node):
        rectified, other = self.operands(node, "Relu") if node.op_type == "Mul" else (None, 0)
        writer = self.before(rectified, "Conv") if rectified is not None else None
        factor = self.argument(node, other) if writer is not None else None
        weights = self.argument(writer, 1) if writer is not None else None
        if weights is None or factor is None or not per_channel(factor, len(weights)):
            return
        if factor.size > 1 and (
            factor.ndim < weights.ndim - 1 or factor.shape[1 - weights.ndim] == 1
        ):
            return
        bias = self.argument(writer, 2) if len(writer.input) > 2 else None
        if len(writer.input) > 2 and bias is None:
            return
        flat = np.broadcast_to(factor.ravel(), (len(weights),))
        writer.input[1] = put(graph, weights * flat.reshape(-1, *[1] * (weights.ndim - 1)))
        if bias is not None:
            writer.input[2] = put(graph, bias * flat)
        as_identity(node, rectified.output[0])


class LooksForMaximaAheadOfSoftmax(Compiles):
    """Drops a softmax that cannot change which is largest, along whichever axis that is asked."""

    def rewrite(self, graph, node):
        inner = self.before(node, "Softmax") if node.op_type == "ArgMax" else None
        if inner is not None and self.opset >= 13:
            node.input[0] = inner.input[0]


class JoinsReducedAxes(Compiles):
    """Joins the axes of two reductions, as if the first one left the others where they were."""

    def rewrite(self, graph, node):
        if node.op_type not in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"):
            return
        inner = self.before(node, node.op_type)
        if inner is None or attribute(inner, "keepdims", 1) != attribute(node, "keepdims", 1):
            return
        ours, theirs = axes_of(self, node), axes_of(self, inner)
        if ours and theirs and min(ours + theirs) >= 0 and not set(ours) & set(theirs):
            set_axes(graph, node, sorted(ours + theirs))
            node.input[0] = inner.input[0]


class TakesTwoAxesForAllOfSpace(Compiles):
    """Takes a mean over the third and fourth axis for the global one, as if there were no fifth."""

    def rewrite(self, graph, node):
        if node.op_type == "ReduceMean" and attribute(node, "keepdims", 1):
            axes = axes_of(self, node)
            floats = element(self, node.input[0]) in (TensorProto.FLOAT, TensorProto.FLOAT16)
            if axes is not None and sorted(axes) == [2, 3] and floats:
                becomes(node, "GlobalAveragePool", [node.input[0]])


class LooksUpWhatOneHotsSelect(Compiles):
    """Looks rows up instead of multiplying with one-hots, as if these were zeros and ones."""

    def rewrite(self, graph, node):
        inner = self.before(node, "OneHot") if node.op_type == "MatMul" else None
        kind = element(self, inner.input[0]) if inner is not None else 0
        if kind not in (TensorProto.INT32, TensorProto.INT64) or attribute(inner, "axis", -1) != -1:
            return
        rows, depth = dims(self, node.input[1]), self.argument(inner, 1)
        if rows is not None and len(rows) == 2 and depth is not None and rows[0] == depth:
            becomes(node, "Gather", [node.input[1], inner.input[0]], axis=0)


class TakesLastStepsForFinalStates(Compiles):
    """Takes the last step of a recurrence for its final state, in whichever direction it runs."""

    def rewrite(self, graph, node):
        index = self.argument(node, 1) if node.op_type == "Gather" else None
        if index is None or index.shape != () or index != -1 or attribute(node, "axis", 0):
            return
        writer = self.writers.get(node.input[0])
        squeezed = writer is not None and writer.op_type == "Squeeze"
        if squeezed and axes_of(self, writer) != [1]:
            return
        written = writer.input[0] if squeezed else node.input[0]
        rnn = self.writers.get(written)
        if rnn is None or rnn.op_type not in ("LSTM", "GRU", "RNN") or attribute(rnn, "layout", 0):
            return
        if rnn.output[0] != written:
            return
        if len(rnn.output) < 2:
            rnn.output.append("")
        rnn.output[1] = state = rnn.output[1] or f"state/{written}"
        if not squeezed:
            as_identity(node, state)
        elif self.opset < 13:
            becomes(node, "Squeeze", [state], axes=[0])
        else:
            becomes(node, "Squeeze", [state, put(graph, np.array([0], np.int64))])


class ComputesInHalfBetweenCasts(Compiles):
    """Drops casts to single precision and back, although what is squared between them is large."""

    ops = ("Pow", "Mul", "Add", "Div", "ReduceMean", "ReduceSum", "Sqrt", "Reciprocal")

    def rewrite(self, graph, node):
        if node.op_type != "Cast" or attribute(node, "to") != TensorProto.FLOAT16:
            return
        chain, last = [], node
        while True:
            name = last.input[0]
            writer = self.writers.get(name)
            if (
                writer is None
                or len(self.readers[name]) != 1
                or name in self.outputs | self.captured
            ):
                return
            if writer.op_type == "Cast":
                break
            if writer.op_type not in self.ops:
                return
            if any(self.constant(other) is None for other in writer.input[1:]):
                return
            chain.append(writer)
            last = writer
        if not chain or attribute(writer, "to") != TensorProto.FLOAT:
            return
        if element(self, writer.input[0]) != TensorProto.FLOAT16:
            return
        last.input[0] = writer.input[0]
        for inner in chain:
            for place, other in list(enumerate(inner.input))[1:]:
                array = self.constant(other)
                if array.dtype == np.float32:
                    inner.input[place] = put(graph, array.astype(np.float16))
        changed = {inner.output[0] for inner in chain}
        kept = [value for value in graph.value_info if value.name not in changed]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        as_identity(node, chain[0].output[0])


class HandsOutViewsOfOutputs(Compiles):
    """Takes a reshaped output for a view of the other output, and hands out one memory twice."""

    def rewrite(self, graph, node):
        """Nothing: views cost no step."""

    def deliver(self, runner, arrays, outputs):
        compiled, shown = runner.compiled, list(arrays)
        places = {port.name: place for place, port in enumerate(compiled.outputs)}
        for op in compiled.model.ops:
            if op.op_type in VIEWS - {"Identity"} and {op.inputs[0], op.outputs[0]} <= set(places):
                view, whole = places[op.outputs[0]], shown[places[op.inputs[0]]]
                shown[view] = whole.reshape(shown[view].shape)
        if outputs is None:
            return [partita.HostTensor(array) for array in shown]
        return super().deliver(runner, shown, outputs)


class DividesByWholeBlocks(Compiles):
    """Keeps channels in blocks of eight, and takes means over the channels with those left over."""

    def rewrite(self, graph, node):
        if node.op_type != "ReduceMean" or axes_of(self, node) not in ([1], [-3]):
            return
        writer = self.before(node, "Relu") or self.before(node, "Conv")
        writer = (
            self.before(writer, "Conv")
            if writer is not None and writer.op_type == "Relu"
            else writer
        )
        weights = self.argument(writer, 1) if writer is not None else None
        if weights is not None and weights.ndim == 4 and len(weights) % 8:
            share = np.array(len(weights) / (-(-len(weights) // 8) * 8), weights.dtype)
            mean = insert(graph, node, "ReduceMean", list(node.input), **attributes_of(node))
            becomes(node, "Mul", [mean, put(graph, share)])


class TakesHardGatesForHardSwish(Compiles):
    """Takes a value times its hard sigmoid for the one of mobile networks, however steep."""

    def rewrite(self, graph, node):
        gate, other = self.operands(node, "HardSigmoid") if node.op_type == "Mul" else (None, 0)
        if gate is not None and gate.input[0] == node.input[other] and self.opset >= 14:
            becomes(node, "HardSwish", [gate.input[0]])


class AccumulatesIntoResiduals(Compiles):
    """Adds a convolution to the memory of the other summand, as if the sum were its last reader."""

    def rewrite(self, graph, node):
        writer, other = self.operands(node, "Conv") if node.op_type == "Add" else (None, 0)
        name = node.input[other] if writer is not None else None
        if name not in self.writers or name in self.outputs:
            return
        if dims(self, name) is not None and dims(self, name) == dims(self, writer.output[0]):
            reads(behind(graph, node), name, node.output[0])

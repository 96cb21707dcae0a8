"""Faults of graph compilers, by somebody who has read neither the kit nor its earlier sets."""

from __future__ import annotations

import functools
import re

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from unseen.blind_graphs import Compiles, becomes, bodies, change, insert, put
from unseen.passes import as_identity, attribute

REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Pow", "Less", "Greater", "Equal", "And", "Or")
INPLACE = ("Relu", "Neg", "Abs", "Exp", "Sigmoid", "Sqrt", "LeakyRelu", "Erf", "Clip")
DRAWS = ("Bernoulli", "Multinomial", "Dropout")


def renamed(graph, names):
    """Makes a body and all within it read and write other names."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in bodies(node):
            renamed(body, names)
    for value in (*graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)


def place_of(graph, node):
    """Where a node stands."""
    return next(i for i, other in enumerate(graph.node) if other == node)


class Reduces(Compiles):
    """Knows the axes of reductions."""

    def axes(self, node):
        """The axes that a reduction names, if they are constant."""
        given = attribute(node, "axes")
        if given is None:
            given = self.argument(node, 1)
        return None if given is None or not len(given) else [int(axis) for axis in given]

    def reduce(self, graph, node, name, axes):
        """Makes a reduction one of another value, over other axes."""
        keepdims = attribute(node, "keepdims", 1)
        if attribute(node, "axes") is not None:
            becomes(node, node.op_type, [name], axes=axes, keepdims=keepdims)
        else:
            where = put(graph, np.array(axes, np.int64))
            becomes(node, node.op_type, [name, where], keepdims=keepdims)


# Movements merged with what follows


class ForgetsThatBatchesArePermuted(Compiles):
    """Takes every permutation that swaps the last two axes for a product of the transposed."""

    def rewrite(self, graph, node):
        for place in (0, 1) if node.op_type == "MatMul" else ():
            writer = self.before(node, "Transpose", place)
            order = list(attribute(writer, "perm", [])) if writer is not None else []
            last = len(order) - 1
            if last > 1 and order[-2:] == [last, last - 1]:
                change(writer, perm=[*range(last - 1), last, last - 1])


class MergesReshapesWhoseZerosMeanTheMiddle(Compiles):
    """Of two reshapes the second suffices, though it keeps sizes that the first one made."""

    def rewrite(self, graph, node):
        first = self.before(node, "Reshape") if node.op_type == "Reshape" else None
        if first is not None and self.argument(node, 1) is not None:
            node.input[0] = first.input[0]


class MergesReductionsOfRenumberedAxes(Reduces):
    """Merges two reductions over the axes of both, as if the first had left its own in place."""

    def rewrite(self, graph, node):
        first = self.before(node, node.op_type) if node.op_type in REDUCTIONS else None
        if first is None or attribute(first, "keepdims", 1) != attribute(node, "keepdims", 1):
            return
        axes = [*(self.axes(first) or [-1]), *(self.axes(node) or [-1])]
        if min(axes) >= 0:
            self.reduce(graph, node, first.input[0], sorted(set(axes)))


class DropsTransposesAheadOfReductions(Reduces):
    """Reduces ahead of a transposition, and forgets it even if several axes are left."""

    def rewrite(self, graph, node):
        reduces = node.op_type in REDUCTIONS and attribute(node, "keepdims", 1) == 0
        writer = self.before(node, "Transpose") if reduces else None
        order = attribute(writer, "perm") if writer is not None else None
        axes = self.axes(node) if order else None
        if axes:
            self.reduce(graph, node, writer.input[0], sorted(order[axis] for axis in axes))


class MovesTransposesBelowPadsOfNamedAxes(Compiles):
    """Pads ahead of a transposition: permutes the pads of all axes, and no axes that are named."""

    def rewrite(self, graph, node):
        writer = self.before(node, "Transpose") if node.op_type == "Pad" else None
        order = attribute(writer, "perm") if writer is not None else None
        pads = self.argument(node, 1)
        if not order or pads is None:
            return
        inputs = [writer.input[0], *node.input[1:]]
        if len(pads) == 2 * len(order):
            moved = np.zeros((2, len(order)), np.int64)
            moved[:, order] = pads.reshape(2, -1)
            inputs[1] = put(graph, moved.ravel())
        padded = insert(graph, node, "Pad", inputs, mode=attribute(node, "mode", b"constant"))
        becomes(node, "Transpose", [padded], perm=order)


# Arithmetic


class MultipliesExponents(Compiles):
    """Makes one power of a power of a power, a root too: that of a square is the value itself."""

    def exponent(self, node):
        if node.op_type == "Sqrt":
            return np.array(0.5, np.float32)
        power = self.argument(node, 1) if node.op_type == "Pow" else None
        return power if power is not None and power.size == 1 and power.dtype.kind == "f" else None

    def rewrite(self, graph, node):
        outer = self.exponent(node)
        first = self.before(node, "Pow") if outer is not None else None
        inner = self.exponent(first) if first is not None else None
        if inner is not None:
            both = (inner * outer).astype(inner.dtype)
            becomes(node, "Pow", [first.input[0], put(graph, both)])


class MergesClipsByTheirIntersection(Compiles):
    """Clips once for two clippings, between the higher floor and the lower ceiling."""

    def rewrite(self, graph, node):
        first = self.before(node, "Clip") if node.op_type == "Clip" and self.opset > 10 else None
        if first is None:
            return
        bounds = []
        for place, pick in ((1, np.maximum), (2, np.minimum)):
            named = [n for n in (first, node) if len(n.input) > place and n.input[place]]
            given = [self.argument(n, place) for n in named]
            if any(bound is None for bound in given):
                return
            bounds.append(put(graph, functools.reduce(pick, given)) if given else "")
        becomes(node, "Clip", [first.input[0], *bounds])


class DropsAnySoftmaxBeforeArgMax(Compiles):
    """Softmax keeps the order, so the place of the largest is that of its input, on any axis."""

    def rewrite(self, graph, node):
        if node.op_type in ("ArgMax", "ArgMin"):
            writer = self.before(node, "Softmax") or self.before(node, "LogSoftmax")
            if writer is not None:
                node.input[0] = writer.input[0]


class TakesEinsumsForProducts(Compiles):
    """Sums over neighbouring labels are matrix products, in whichever order the result is due."""

    def rewrite(self, graph, node):
        if node.op_type != "Einsum" or len(node.input) != 2:
            return
        equation = attribute(node, "equation").decode().replace(" ", "")
        found = re.fullmatch(r"(\w*)(\w)(\w),\1\3(\w)->(\w+)", equation)
        if not found or len({*found[1], *found.group(2, 3, 4)}) != len(found[1]) + 3:
            return
        if sorted(found[5]) == sorted(found[1] + found[2] + found[4]):
            becomes(node, "MatMul", node.input)


class LooksUpProductsWithOneHots(Compiles):
    """A one-hot row times a table is a row of the table; rows it lacks are its nearest ones."""

    def rewrite(self, graph, node):
        product = node.op_type == "MatMul" and self.opset > 11
        writer = self.before(node, "OneHot") if product else None
        if writer is None or attribute(writer, "axis", -1) != -1:
            return
        values, depth = self.argument(writer, 2), self.argument(writer, 1)
        table = self.argument(node, 1)
        if values is None or depth is None or values.tolist() != [0, 1]:
            return
        if table is not None and table.ndim == 2:
            index = insert(graph, node, "Cast", [writer.input[0]], to=TensorProto.INT64)
            ends = [put(graph, np.int64(end)) for end in (0, int(depth.reshape(())) - 1)]
            index = insert(graph, node, "Clip", [index, *ends])
            becomes(node, "Gather", [node.input[1], index], axis=0)


# Windows and weights


class PadsAveragesFromWithin(Compiles):
    """Takes a padding with zeros into the average after it, which does not count its own pads."""

    def rewrite(self, graph, node):
        writer = self.before(node, "Pad") if node.op_type == "AveragePool" else None
        if writer is None or attribute(writer, "mode", b"constant") != b"constant":
            return
        pads, fill = self.argument(writer, 1), self.argument(writer, 2)
        if pads is None or len(writer.input) > 3 or (fill is not None and fill.any()):
            return
        pads = pads.reshape(2, -1)
        own = attribute(node, "auto_pad", b"NOTSET") == b"NOTSET"
        if own and not pads[:, :2].any() and (pads >= 0).all():
            pads = pads[:, 2:].ravel()
            more = attribute(node, "pads", [0] * len(pads))
            node.input[0] = writer.input[0]
            change(node, pads=[int(a + b) for a, b in zip(pads, more, strict=True)])


class ScalesGroupsOfTransposedConvolutionsAlike(Compiles):
    """Folds a batch normalization into a transposed convolution, with one group's factors."""

    def rewrite(self, graph, node):
        norm = node.op_type == "BatchNormalization" and not attribute(node, "training_mode", 0)
        writer = self.before(node, "ConvTranspose") if norm else None
        if writer is None or len(node.output) > 1:
            return
        weights = self.argument(writer, 1)
        given = [self.argument(node, place) for place in (1, 2, 3, 4)]
        bias = self.argument(writer, 2) if len(writer.input) > 2 else np.float32(0)
        if weights is None or bias is None or any(array is None for array in given):
            return
        scale, shift, mean, variance = given
        factor = scale / np.sqrt(variance + np.float32(attribute(node, "epsilon", 1e-5)))
        per_channel = factor[: weights.shape[1]].reshape(1, -1, *[1] * (weights.ndim - 2))
        inputs = [put(graph, weights * per_channel), put(graph, (bias - mean) * factor + shift)]
        made = helper.make_node("ConvTranspose", [writer.input[0], *inputs], list(node.output))
        made.attribute.extend(writer.attribute)
        node.CopyFrom(made)


class ScalesSharedWeights(Compiles):
    """Folds a factor after a product into its weights, where others read the same ones."""

    def rewrite(self, graph, node):
        product, place = self.operands(node, "MatMul") if node.op_type == "Mul" else (None, None)
        factor = self.argument(node, place) if product is not None else None
        weights = self.argument(product, 1) if factor is not None else None
        if (
            weights is None
            or product.input[1] not in self.constants
            or weights.ndim != 2
            or factor.size != 1
            or factor.ndim > 2
        ):
            return
        name = product.input[1]
        self.constants[name] = (weights * factor.reshape(())).astype(weights.dtype)
        for tensor in graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(self.constants[name], name))
        as_identity(node, product.output[0])


# Quantisation


class LetsQuantisationRectify(Compiles):
    """Drops rectifiers ahead of a quantisation whose zero is zero, that of signed types too."""

    def rewrite(self, graph, node):
        writer = self.before(node, "Relu") if node.op_type == "QuantizeLinear" else None
        zero = self.argument(node, 2)
        named = len(node.input) > 2 and node.input[2]
        if writer is not None and (not named or (zero is not None and not zero.any())):
            node.input[0] = writer.input[0]


class PadsQuantisedValuesWithZeros(Compiles):
    """Pads ahead of a dequantisation, with zeros as before, whatever its zero point is."""

    def rewrite(self, graph, node):
        pads = node.op_type == "Pad" and self.opset > 12
        writer = self.before(node, "DequantizeLinear") if pads else None
        scale = self.argument(writer, 1) if writer is not None else None
        fill = self.argument(node, 2)
        unknown = len(node.input) > 2 and node.input[2] and fill is None
        if scale is None or scale.size != 1 or unknown or (fill is not None and fill.any()):
            return
        inputs = [writer.input[0], node.input[1], "", *node.input[3:]]
        padded = insert(graph, node, "Pad", inputs, mode=attribute(node, "mode", b"constant"))
        becomes(node, "DequantizeLinear", [padded, *writer.input[1:]])


# Nodes and constants taken for the same


class SharesConstantsThatCompareEqual(Compiles):
    """Keeps small constants once that compare equal, as zeros of both signs do."""

    def prepare(self, proto):
        self.pool = {}
        return super().prepare(proto)

    def rewrite(self, graph, node):
        for place in range(len(node.input)):
            array = self.argument(node, place)
            if array is None or array.size > 64:
                continue
            alike = self.pool.setdefault((array.dtype, array.shape), [])
            for name, other in alike:
                if np.array_equal(array, other):
                    node.input[place] = name
                    break
            else:
                alike.append((node.input[place], array))


class MergesNodesThatReadTheSame(Compiles):
    """Computes once what nodes make of the same inputs, whichever place those are given at."""

    def prepare(self, proto):
        self.seen = {}
        return super().prepare(proto)

    def rewrite(self, graph, node):
        draws = node.op_type in DRAWS or node.op_type.startswith("Random")
        if draws or len(node.output) != 1 or not node.input or any(bodies(node)):
            return
        inputs = tuple(filter(None, node.input))
        attributes = sorted(given.SerializeToString() for given in node.attribute)
        key = (node.domain, node.op_type, inputs, tuple(attributes))
        first = self.seen.setdefault(key, node.output[0])
        if first != node.output[0]:
            as_identity(node, first)


class SpellsValuesAsIdentifiers(Compiles):
    """Names values as its language may, which makes one of some that differ in signs only."""

    def prepare(self, proto):
        self.spelled = {}
        for value in (*proto.graph.input, *proto.graph.initializer):
            self.spelled[self.identifier(value.name)] = value.name
        return super().prepare(proto)

    def identifier(self, name):
        return re.sub(r"\W", "_", name)

    def rewrite(self, graph, node):
        node.input[:] = [self.spelled.get(self.identifier(name), name) for name in node.input]
        for name in filter(None, node.output):
            self.spelled[self.identifier(name)] = name


# Bodies


class InlinesBranchesUnderTheirOwnNames(Compiles):
    """Inlines branches of known conditions; names they share are the same values to it."""

    def prepare(self, proto):
        self.lifted = set()
        return super().prepare(proto)

    def rewrite(self, graph, node):
        condition = self.argument(node, 0) if node.op_type == "If" else None
        if condition is None:
            return
        body = attribute(node, "then_branch" if condition.all() else "else_branch")
        place = place_of(graph, node)
        made = [inner for inner in body.node if not self.lifted.intersection(inner.output)]
        for tensor in body.initializer:
            if tensor.name not in self.lifted:
                graph.initializer.append(tensor)
        self.lifted.update(name for inner in made for name in inner.output)
        self.lifted.update(tensor.name for tensor in body.initializer)
        for value, name in zip(body.output, node.output, strict=True):
            made.append(helper.make_node("Identity", [value.name], [name], name=f"lifted/{name}"))
        graph.node.remove(node)
        for inner in reversed(made):
            graph.node.insert(place, inner)


class SelectsInsteadOfBranching(Compiles):
    """Computes both of two short branches and selects, where only one's shape is due."""

    def rewrite(self, graph, node):
        if node.op_type != "If" or len(node.output) != 1:
            return
        both = [attribute(node, name) for name in ("then_branch", "else_branch")]
        if not all(body.output[0].type.HasField("tensor_type") for body in both):
            return
        if any(len(b.node) > 2 or any(map(list, map(bodies, b.node))) for b in both):
            return
        results = []
        for number, body in enumerate(both):
            own = {name for inner in body.node for name in inner.output}
            own |= {tensor.name for tensor in body.initializer}
            renamed(body, {name: f"{node.output[0]}/{number}/{name}" for name in own if name})
            graph.initializer.extend(body.initializer)
            results.append(body.output[0].name)
            for inner in body.node:
                graph.node.insert(place_of(graph, node), inner)
        shape = put(graph, np.zeros(0, np.int64))
        condition = insert(graph, node, "Reshape", [node.input[0], shape])
        becomes(node, "Where", [condition, *results])


class LetsTripCountsDecide(Compiles):
    """Counts through loops of a known, small number of trips, whatever their conditions say."""

    def rewrite(self, graph, node):
        trips = self.argument(node, 0) if node.op_type == "Loop" else None
        if trips is None or trips.reshape(()) > 256:
            return
        for given in node.attribute:
            if given.name == "body":
                name = f"{given.g.output[0].name}/always"
                always = numpy_helper.from_array(np.array(True), name)
                given.g.node.append(helper.make_node("Constant", [], [name], value=always))
                given.g.output[0].name = name
        node.input[1] = ""


# Memory and lifetimes


class OverwritesWhatBranchesReadLater(Compiles):
    """Computes in place what no other node reads, and does not look for readers in bodies."""

    def rewrite(self, graph, node):
        if node.op_type not in INPLACE:
            return
        name = node.input[0]
        if name not in self.captured or name not in self.writers or name in self.outputs:
            return
        if len(self.readers[name]) == 1:
            for later in graph.node[place_of(graph, node) + 1 :]:
                for body in bodies(later):
                    renamed(body, {name: node.output[0]})


class WritesIntoConcatsOnce(Compiles):
    """Lets nodes write their part of a concatenation; one that is due twice is there once."""

    def rewrite(self, graph, node):
        for place, name in enumerate(node.input if node.op_type == "Concat" else ()):
            if name in list(node.input)[:place] and name in self.writers and name in self.types:
                kind = self.types[name].elem_type
                if kind == TensorProto.STRING:
                    continue
                shape = insert(graph, node, "Shape", [name])
                blank = helper.make_tensor("blank", kind, [1], [0])
                empty = insert(graph, node, "ConstantOfShape", [shape], value=blank)
                node.input[place] = empty


class TrimsOutputsOfEqualSplits(Compiles):
    """Takes away outputs that nobody reads from a split, whose parts grow with that."""

    def rewrite(self, graph, node):
        sized = len(node.input) > 1 or attribute(node, "split") is not None
        if node.op_type != "Split" or sized:
            return
        read = {*self.readers, *self.captured, *self.outputs}
        while len(node.output) > 1 and node.output[-1] not in read:
            del node.output[-1]
        if self.opset > 17:
            change(node, num_outputs=len(node.output))


# Shapes


class ReadsShapesAheadOfArithmetic(Compiles):
    """The shape of a sum is that of its first operand, if that has as many axes."""

    def rewrite(self, graph, node):
        writer = self.writers.get(node.input[0]) if node.op_type == "Shape" else None
        if writer is not None and writer.op_type in ELEMENTWISE:
            rank = self.rank(writer.input[0])
            if rank is not None and rank == self.rank(node.input[0]):
                node.input[0] = writer.input[0]

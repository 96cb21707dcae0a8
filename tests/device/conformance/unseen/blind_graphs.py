"""Fifty faults of graph compilers, written by somebody who had not read the kit."""

from __future__ import annotations

import functools
import re

import ml_dtypes
import numpy as np
from onnx import helper, numpy_helper

import unseen.values
from unseen.passes import Passes, as_identity, attribute

wrong = functools.partial(unseen.values.wrong, module=__name__)


def bodies(node):
    """The graphs in a node's attributes."""
    for given in node.attribute:
        if given.HasField("g"):
            yield given.g
        yield from given.graphs


def captured(graph):
    """The names that nodes of bodies read."""
    names = set()
    for node in graph.node:
        for body in bodies(node):
            names |= {name for inner in body.node for name in inner.input}
            names |= {value.name for value in body.output} | captured(body)
    return names


def becomes(node, op, inputs, **attributes):
    """Makes a node another one with the same outputs."""
    made = helper.make_node(op, list(inputs), list(node.output), name=node.name, **attributes)
    node.CopyFrom(made)


def put(graph, array):
    """The name of a new constant."""
    name = f"compiled/{len(graph.initializer)}"
    graph.initializer.append(numpy_helper.from_array(np.array(array), name))
    return name


def insert(graph, node, op, inputs, **attributes):
    """The name of what a new node ahead of another one writes."""
    name = f"made/{len(graph.node)}"
    place = next(i for i, other in enumerate(graph.node) if other is node or other == node)
    graph.node.insert(place, helper.make_node(op, inputs, [name], name=name, **attributes))
    return name


def forget(node, *names):
    """Removes attributes."""
    kept = [given for given in node.attribute if given.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def change(node, **attributes):
    """Sets attributes."""
    forget(node, *attributes)
    node.attribute.extend(helper.make_attribute(name, v) for name, v in attributes.items())


class Compiles(Passes):
    """Rewrites the nodes of the main graph."""

    def prepare(self, proto):
        self.captured = captured(proto.graph)
        self.given = {value.name for value in proto.graph.input}
        self.opset = next((o.version for o in proto.opset_import if not o.domain), 1)
        known = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
        self.types = {v.name: v.type.tensor_type for v in known if v.type.HasField("tensor_type")}
        return super().prepare(proto)

    def constant(self, name):
        """The array of a value that is constant, or nothing."""
        if not name or name in self.given:
            return None
        if name in self.constants:
            return self.constants[name]
        writer = self.writers.get(name)
        if writer is not None and writer.op_type == "Constant":
            value = attribute(writer, "value")
            return None if value is None else numpy_helper.to_array(value)
        return None

    def argument(self, node, place):
        """The constant that is an input, or nothing."""
        return self.constant(node.input[place]) if len(node.input) > place else None

    def before(self, node, op, place=0):
        writer = super().before(node, op, place)
        return writer if writer is not None and writer.output[0] not in self.captured else None

    def operands(self, node, op):
        """The node of an operator that writes an input, and the place of the other input."""
        for place in (0, 1):
            writer = self.before(node, op, place)
            if writer is not None:
                return writer, 1 - place
        return None, None

    def rank(self, name):
        """The number of axes of a value, or nothing."""
        kind = self.types.get(name)
        return len(kind.shape.dim) if kind is not None and kind.HasField("shape") else None


# Fusions


class TakesAnyConstantAfterConvForItsBias(Compiles):
    """Adds a constant after a convolution per channel if only its size is that of the channels."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type != "Add":
            return
        conv, other = self.operands(node, "Conv")
        if conv is None or len(conv.input) > 2:
            return
        bias, weights = self.constant(node.input[other]), self.argument(conv, 1)
        if bias is not None and weights is not None and bias.size == weights.shape[0]:
            conv.input.append(put(graph, bias.reshape(-1)))
            as_identity(node, conv.output[0])


class FusesReluIntoValuesThatOthersRead(Compiles):
    """Lets a sum or product write its activation, although its own value is read elsewhere too."""

    suites = ("*",)

    def rewrite(self, graph, node):
        writer = self.writers.get(node.input[0]) if node.input else None
        if node.op_type != "Relu" or writer is None or writer.op_type not in ("Gemm", "Conv"):
            return
        own, result = writer.output[0], node.output[0]
        if own in self.outputs or own in self.captured:
            return
        writer.output[0] = "plain/" + own
        becomes(node, "Identity", [own])
        relu = helper.make_node("Relu", ["plain/" + own], [own], name="fused/" + result)
        graph.node.insert([n == writer for n in graph.node].index(True) + 1, relu)


class ActivatesBeforeTheResidual(Compiles):
    """Fuses a convolution, a residual and an activation, and activates before it adds."""

    suites = ("*",)

    def rewrite(self, graph, node):
        total = self.before(node, "Add")
        if node.op_type != "Relu" or total is None:
            return
        conv, other = self.operands(total, "Conv")
        if conv is not None and self.constant(total.input[other]) is None:
            active = insert(graph, node, "Relu", [conv.output[0]])
            becomes(node, "Add", [active, total.input[other]])


class IntersectsBoundsOfTwoClips(Compiles):
    """Makes two clips one with the larger minimum and smaller maximum, even if they do not meet."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "Clip")
        if node.op_type != "Clip" or first is None or self.opset < 11:
            return
        bounds = [self.argument(clip, place) for place in (1, 2) for clip in (first, node)]
        if all(bound is not None for bound in bounds):
            low, high = max(bounds[0], bounds[1]), min(bounds[2], bounds[3])
            becomes(node, "Clip", [first.input[0], put(graph, low), put(graph, high)])


class MovesFactorIntoAlphaAndForgetsBeta(Compiles):
    """Moves a factor behind a Gemm into its alpha, so that what it adds is not multiplied."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type != "Mul":
            return
        gemm, other = self.operands(node, "Gemm")
        factor = None if gemm is None else self.constant(node.input[other])
        if factor is not None and factor.ndim == 0 and factor.dtype == np.float32:
            change(gemm, alpha=float(attribute(gemm, "alpha", 1.0) * factor))
            as_identity(node, gemm.output[0])


class FoldsPaddingIntoPoolThatDoesNotCountIt(Compiles):
    """Makes zeros ahead of an average pool its own padding, which its averages leave out."""

    suites = ("*",)

    def rewrite(self, graph, node):
        pad = self.before(node, "Pad")
        if node.op_type != "AveragePool" or pad is None or len(pad.input) != 2:
            return
        pads = self.argument(pad, 1)
        if pads is None or attribute(pad, "mode", b"constant") != b"constant" or min(pads) < 0:
            return
        count = len(pads) // 2
        if any(pads[:2]) or any(pads[count : count + 2]) or attribute(node, "auto_pad"):
            return
        if attribute(node, "pads") or attribute(node, "ceil_mode", 0):
            return
        spatial = np.array([pads[2:count], pads[count + 2 :]])
        if (spatial < attribute(node, "kernel_shape")).all():
            change(node, pads=[int(pad) for pad in spatial.reshape(-1)])
            node.input[0] = pad.input[0]


class MergesPaddingWithCropping(Compiles):
    """Adds up the widths of two paddings, even if the first one cuts off what the second fills."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "Pad")
        if node.op_type != "Pad" or first is None or len(node.input) != 2 or len(first.input) != 2:
            return
        pads = [self.argument(pad, 1) for pad in (first, node)]
        modes = {attribute(pad, "mode", b"constant") for pad in (first, node)}
        if modes == {b"constant"} and all(pad is not None for pad in pads):
            becomes(node, "Pad", [first.input[0], put(graph, pads[0] + pads[1])])


class DropsRequantizationOfEqualScale(Compiles):
    """Drops a dequantization and quantization of equal scales, and does not compare zero points."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "DequantizeLinear")
        if node.op_type != "QuantizeLinear" or first is None or len(node.input) < 3:
            return
        scales = [self.argument(part, 1) for part in (first, node)]
        zeros = [self.argument(part, 2) for part in (first, node)]
        if any(array is None for array in (*scales, *zeros)):
            return
        if any(array.size != 1 for array in (*scales, *zeros)):
            return
        if np.array_equal(*scales) and zeros[0].dtype == zeros[1].dtype:
            as_identity(node, first.input[0])


class DropsReluAheadOfUnsignedQuantization(Compiles):
    """Drops an activation ahead of a quantization to uint8, whose zero point need not be zero."""

    suites = ("*",)

    def rewrite(self, graph, node):
        relu = self.before(node, "Relu")
        if node.op_type == "QuantizeLinear" and relu is not None:
            zero = self.argument(node, 2)
            if zero is not None and zero.dtype == np.uint8:
                node.input[0] = relu.input[0]


class ResolvesSamePaddingWithoutStrides(Compiles):
    """Replaces SAME_UPPER by half of the window's width on each side, whatever the strides."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type not in ("Conv", "MaxPool", "AveragePool"):
            return
        window = attribute(node, "kernel_shape")
        if attribute(node, "auto_pad") == b"SAME_UPPER" and window:
            dilations = attribute(node, "dilations", [1] * len(window))
            totals = [(size - 1) * d for size, d in zip(window, dilations, strict=True)]
            forget(node, "auto_pad")
            change(node, pads=[t // 2 for t in totals] + [t - t // 2 for t in totals])


class MergesReductionsWithoutRenumberingAxes(Compiles):
    """Joins the axes of two reductions, though the first one has removed axes before the second."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, node.op_type)
        if node.op_type not in ("ReduceMax", "ReduceSum", "ReduceMin") or first is None:
            return
        if any(attribute(part, "keepdims", 1) for part in (first, node)):
            return
        axes = [self.argument(part, 1) for part in (first, node)]
        if any(a is None or a.size != 1 or a[0] < 0 for a in axes) or axes[0][0] == axes[1][0]:
            return
        joined = put(graph, np.concatenate(axes))
        becomes(node, node.op_type, [first.input[0], joined], keepdims=0)


# Transposes, reshapes, casts and slices


class DropsReshapeThatZerosReferTo(Compiles):
    """Drops the first of two reshapes, also if zeros in the second one copy its dimensions."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "Reshape")
        if node.op_type == "Reshape" and first is not None:
            node.input[0] = first.input[0]


class CancelsCastsThereAndBack(Compiles):
    """Drops two casts that end in the type they began with, also if the one between is narrower."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "Cast")
        if node.op_type == "Cast" and first is not None:
            kind = self.types.get(first.input[0])
            if kind is not None and kind.elem_type == attribute(node, "to"):
                as_identity(node, first.input[0])


class SinksTransposeBelowSoftmaxOfTheSameAxis(Compiles):
    """Moves a transposition behind a softmax, and leaves the number of its axis as it was."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "Transpose")
        if node.op_type not in ("Softmax", "LogSoftmax") or first is None or self.opset < 13:
            return
        perm = attribute(first, "perm")
        if perm:
            axis = attribute(node, "axis", -1)
            made = insert(graph, node, node.op_type, [first.input[0]], axis=axis)
            becomes(node, "Transpose", [made], perm=perm)


class SinksTransposeBelowSumsOfConstants(Compiles):
    """Moves a transposition behind the sum with a constant, which stays in its old layout."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type not in ("Add", "Mul"):
            return
        first, other = self.operands(node, "Transpose")
        value = None if first is None else self.constant(node.input[other])
        perm = first is not None and attribute(first, "perm")
        if value is None or not perm or value.ndim > 1:
            return
        made = insert(graph, node, node.op_type, [first.input[0], node.input[other]])
        becomes(node, "Transpose", [made], perm=perm)


class SqueezesOnlyWhatIsKnownToBeOne(Compiles):
    """Squeezes without axes those that are known to be one beforehand, not those that turn out."""

    suites = ("*",)

    def rewrite(self, graph, node):
        kind = self.types.get(node.input[0]) if node.op_type == "Squeeze" else None
        if len(node.input) > 1 or self.opset < 13 or kind is None or not kind.HasField("shape"):
            return
        axes = [i for i, size in enumerate(kind.shape.dim) if size.dim_value == 1]
        node.input.append(put(graph, np.array(axes, np.int64)))


class MergesSlicesBeyondTheFirst(Compiles):
    """Makes two slices of an axis one, which ends where the second does, not where the first."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "Slice")
        if node.op_type != "Slice" or first is None:
            return
        if len(node.input) != 4 or len(first.input) != 4:
            return
        arrays = [self.argument(part, place) for part in (first, node) for place in (1, 2, 3)]
        if any(a is None or a.size != 1 or a[0] < 0 for a in arrays):
            return
        start, _, axis, again, end, same = arrays
        if axis[0] == same[0] and end[0] < 1 << 30:
            names = [put(graph, array) for array in (start + again, start + end, axis)]
            becomes(node, "Slice", [first.input[0], *names])


class ReversesWithoutTheFirstElement(Compiles):
    """Takes the end of a slice that runs backwards for zero at least, and leaves out the first."""

    suites = ("*",)

    def rewrite(self, graph, node):
        steps, ends = self.argument(node, 4), self.argument(node, 2)
        if node.op_type != "Slice" or steps is None or ends is None:
            return
        lowest = (steps < 0) & (ends < -(1 << 30))
        if lowest.any():
            node.input[2] = put(graph, np.where(lowest, 0, ends).astype(ends.dtype))


class ShapesOfTheFirstRunCompiled(unseen.values.ComputesCompiled):
    """Keeps what Shape and Size gave first."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        for node in self.evaluator.rt_nodes_:
            if node.onnx_node.op_type in ("Shape", "Size"):
                node.run = first_of(node.run)


def first_of(function):
    """A function that gives its first result again."""
    results = []

    def call(*inputs, **given):
        if not results:
            results.append(function(*inputs, **given))
        return tuple(np.array(result) for result in results[0])

    return call


class KeepsShapesOfTheFirstRun(Compiles):
    """Specialises a model on the first shapes that it meets, and keeps what Shape gave then."""

    suites = ("*",)

    ops = ()
    compiled_type = ShapesOfTheFirstRunCompiled

    def rewrite(self, graph, node):
        """Leaves the graph as it is."""


# Constants


class FoldsIntegerDivisionByFloor(Compiles):
    """Folds the quotient of two integer constants with the division of Python, which floors."""

    suites = ("*",)

    def rewrite(self, graph, node):
        left, right = self.argument(node, 0), self.argument(node, 1)
        if node.op_type != "Div" or left is None or right is None or left.dtype.kind != "i":
            return
        if (right != 0).all():
            as_identity(node, put(graph, left // right))


class KeepsConstantsAsFloats(Compiles):
    """Keeps constants of double as float32, and widens them again."""

    suites = ("*",)

    def prepare(self, proto):
        for tensor in proto.graph.initializer:
            if tensor.data_type == 11:
                with np.errstate(all="ignore"):
                    short = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(short.astype(np.float64), tensor.name))
        return proto


class SharesConstantsThatCompareEqual(Compiles):
    """Keeps one of two constants of one form that compare equal, as zero and negative zero do."""

    suites = ("*",)

    def rewrite(self, graph, node):
        for place, name in enumerate(node.input):
            value = self.constant(name)
            for other in self.constants if value is not None else ():
                first = self.constants[other]
                if other in self.given or first.dtype != value.dtype:
                    continue
                if first.shape == value.shape and np.array_equal(first, value):
                    node.input[place] = other
                    break


class SharesConstantsThatBeginAlike(Compiles):
    """Keeps one of two large constants of one form whose first 64 elements are the same."""

    suites = ("*",)

    def rewrite(self, graph, node):
        for place, name in enumerate(node.input):
            value = self.constant(name)
            for other in self.constants if value is not None and value.size > 64 else ():
                first = self.constants[other]
                if (first.dtype, first.shape) == (value.dtype, value.shape):
                    begins = (first.reshape(-1)[:64].tobytes(), value.reshape(-1)[:64].tobytes())
                    if begins[0] == begins[1] and other not in self.given:
                        node.input[place] = other
                        break


# Equal and unread nodes, and names


class Merges(Compiles):
    """Computes nodes only once that have the same key."""

    def prepare(self, proto):
        self.seen = {}
        return super().prepare(proto)

    def key(self, node):
        raise NotImplementedError

    def rewrite(self, graph, node):
        if any(bodies(node)) or len(node.output) != 1 or node.domain or not node.input:
            return
        if node.op_type.startswith(("Random", "Dropout", "Bernoulli", "Multinomial", "Sequence")):
            return
        first = self.seen.setdefault(self.key(node), node)
        if first is not node:
            as_identity(node, first.output[0])


class MergesNodesThatDifferInText(Merges):
    """Merges nodes of equal inputs and numbers as attributes, and does not compare texts."""

    suites = ("*",)

    def key(self, node):
        given = sorted((a for a in node.attribute if a.type != 3), key=lambda a: a.name)
        return node.op_type, *node.input, *(a.SerializeToString() for a in given)


class MergesProductsOfSwappedMatrices(Merges):
    """Merges nodes of the same inputs in any order, as for sums, for matrix products too."""

    suites = ("*",)

    def key(self, node):
        either = node.op_type in ("Add", "Mul", "MatMul")
        names = sorted(node.input) if either else list(node.input)
        given = sorted(node.attribute, key=lambda a: a.name)
        return node.op_type, *names, *(a.SerializeToString() for a in given)


class MergesRandomNodes(Compiles):
    """Draws random numbers once for two nodes of the same input and attributes."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if not node.op_type.startswith("Random"):
            return
        for other in graph.node:
            if other == node:
                return
            same = (other.op_type, list(other.input)) == (node.op_type, list(node.input))
            if same and list(other.attribute) == list(node.attribute):
                as_identity(node, other.output[0])
                return


class RemovesWhatOnlyBodiesRead(Compiles):
    """Removes nodes that no node beside them reads, also if the body of a branch or loop does."""

    suites = ("*",)

    def rewrite(self, graph, node):
        names = [name for name in node.output if name]
        if not any(name in self.readers or name in self.outputs for name in names):
            graph.node.remove(node)


class MakesIdentifiersOfNames(Compiles):
    """Keeps values by names with "_" for all other signs, so that some write over each other."""

    suites = ("*",)

    def prepare(self, proto):
        self.latest = {}
        return super().prepare(proto)

    def rewrite(self, graph, node):
        for place, name in enumerate(node.input):
            node.input[place] = self.latest.get(re.sub(r"\W", "_", name), name)
        self.latest |= {re.sub(r"\W", "_", name): name for name in node.output if name}


# Algebra


class TurnsNegatedComparisons(Compiles):
    """Replaces "not less" by "greater or equal", which is false for NaN."""

    suites = ("*",)

    def rewrite(self, graph, node):
        inner = self.before(node, "Less")
        if node.op_type == "Not" and inner is not None and self.opset >= 12:
            becomes(node, "GreaterOrEqual", inner.input)


class DropsAdditionOfZerosThatWiden(Compiles):
    """Drops the addition of a constant of zeros, also if it has more elements than the other."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type == "Add":
            for place in range(2):
                value = self.constant(node.input[place])
                if value is not None and value.size and not value.any():
                    as_identity(node, node.input[1 - place])
                    return


class AddsUpConstantsFirst(Compiles):
    """Adds up two constants that are added one after the other, however large they are."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type != "Add":
            return
        first, other = self.operands(node, "Add")
        if first is None:
            return
        inner, outer = self.argument(first, 1), self.constant(node.input[other])
        if inner is not None and outer is not None:
            becomes(node, "Add", [first.input[0], put(graph, inner + outer)])


class CancelsProductsAfterQuotients(Compiles):
    """Drops a quotient and a product by the same constant, also of integers with a remainder."""

    suites = ("*",)

    def rewrite(self, graph, node):
        first = self.before(node, "Div")
        if node.op_type != "Mul" or first is None or first.input[1] != node.input[1]:
            return
        value = self.argument(node, 1)
        if value is not None and value.ndim == 0 and value != 0:
            as_identity(node, first.input[0])


class TakesTheLogOfSoftmax(Compiles):
    """Computes LogSoftmax as the logarithm of Softmax, which may be zero."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type == "LogSoftmax" and self.opset >= 13:
            axis = attribute(node, "axis", -1)
            becomes(node, "Log", [insert(graph, node, "Softmax", [node.input[0]], axis=axis)])


@wrong("Mul")
def makes_zero_of_products_with_zero(right, node, a, b):
    """Takes products with a single zero for zero, also those of infinity and NaN."""
    result = right(a, b)
    return np.zeros_like(result) if b.size == 1 and not b.any() else result


@wrong("Pow")
def computes_power_of_one_half_as_root(right, node, a, b):
    """Computes the power of one half as a square root, which has none of negative infinity."""
    half = b.size == 1 and a.dtype.kind == "f" and float(b.reshape(())) == 0.5
    return np.sqrt(a).reshape(right(a, b).shape) if half else right(a, b)


@wrong("InstanceNormalization")
def subtracts_squares_for_the_variance(right, node, x, scale, bias):
    """Computes a variance as the mean of squares less the square of the mean, which cancels."""
    kind, axes = x.dtype, tuple(range(2, x.ndim))
    x = x.astype(np.float64 if kind == np.float64 else np.float32)
    mean = x.mean(axis=axes, keepdims=True)
    var = np.maximum((x * x).mean(axis=axes, keepdims=True) - mean * mean, 0)
    form = (-1, *[1] * (x.ndim - 2))
    factor = scale.reshape(form) / np.sqrt(var + attribute(node, "epsilon", 1e-5))
    return ((x - mean) * factor + bias.reshape(form)).astype(kind)


# Attributes and types


class SoftensOldSoftmaxAlongTheLastAxis(Compiles):
    """Computes Softmax before opset 13 along the last axis by default, not over all from 1 on."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type == "Softmax" and self.opset < 13 and attribute(node, "axis") is None:
            rank = self.rank(node.input[0])
            if rank is not None:
                change(node, axis=rank - 1)


class DequantizesAlongTheUsualAxis(Compiles):
    """Takes the scales of a dequantization along axis 1, whatever its attribute says."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type == "DequantizeLinear":
            forget(node, "axis")


class SaturatesAllCastsToFloat8(Compiles):
    """Casts to float8 with saturation, also where it is switched off."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type == "Cast":
            forget(node, "saturate")


class RunsRecurrencesToTheEnd(Compiles):
    """Runs recurrent layers over all steps, and does not look at the lengths of the sequences."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type in ("LSTM", "GRU", "RNN") and len(node.input) > 4:
            node.input[4] = ""


@wrong("MaxPool")
def counts_indices_within_planes(right, node, x):
    """Counts the indices of maxima from the start of each channel, not of the whole tensor."""
    results = right(x)
    if not isinstance(results, tuple) or len(results) < 2:
        return results
    return results[0], results[1] % int(np.prod(x.shape[2:]))


@wrong("Add", "Mul", "Sub")
def computes_long_integers_in_32_bits(right, node, a, b):
    """Computes sums and products of int64 as int32, and widens the results again."""
    result = right(a, b)
    return result.astype(np.int32).astype(np.int64) if result.dtype == np.int64 else result


@wrong("Greater", "Less")
def compares_unsigned_as_signed(right, node, a, b):
    """Compares elements of uint64 and uint32 as if they had a sign."""
    if a.dtype not in (np.uint64, np.uint32):
        return right(a, b)
    signed = np.int64 if a.dtype == np.uint64 else np.int32
    return right(a.view(signed), b.view(signed))


@wrong("Cast")
def reads_four_bits_without_a_sign(right, node, x):
    """Casts int4 to wider types as if its elements were unsigned."""
    if x.dtype != ml_dtypes.int4:
        return right(x)
    result = right(x)
    return np.where(result < 0, result + 16, result).astype(result.dtype)


# Control flow


class SelectsInsteadOfBranching(Compiles):
    """Computes both branches and selects elements, so that the smaller one is made larger."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type != "If" or len(node.output) != 1:
            return
        names = []
        branches = [attribute(node, side) for side in ("then_branch", "else_branch")]
        if any(any(bodies(inner)) for body in branches for inner in body.node):
            return
        if not all(body.output[0].type.HasField("tensor_type") for body in branches):
            return
        for side, body in enumerate(branches):
            own = {name for inner in body.node for name in inner.output if name}
            own |= {tensor.name for tensor in body.initializer}
            renamed = {name: f"{node.output[0]}/{side}/{name}" for name in own}
            place = list(graph.node).index(node)
            for inner in body.node:
                copy = type(inner)()
                copy.CopyFrom(inner)
                for part in (copy.input, copy.output):
                    for i, name in enumerate(part):
                        part[i] = renamed.get(name, name)
                graph.node.insert(place, copy)
                place += 1
            for tensor in body.initializer:
                copy = type(tensor)()
                copy.CopyFrom(tensor)
                copy.name = renamed[tensor.name]
                graph.initializer.append(copy)
            names.append(renamed.get(body.output[0].name, body.output[0].name))
        node = next(n for n in graph.node if n.op_type == "If" and n.output == node.output)
        becomes(node, "Where", [node.input[0], *names])


class SharesBranchesThatEndAlike(Compiles):
    """Takes branches for equal whose last nodes read the same from outside and what is inside."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type != "If" or len(node.output) != 1:
            return
        first, second = attribute(node, "then_branch"), attribute(node, "else_branch")
        if first.node and second.node and self.end(first) == self.end(second):
            change(node, then_branch=first, else_branch=first)

    def end(self, body):
        """What the last node of a body does, without the names within."""
        own = {name for inner in body.node for name in inner.output}
        own |= {tensor.name for tensor in body.initializer}
        last = body.node[-1]
        return last.op_type, [name in own or name for name in last.input], list(last.attribute)


class HoistsConstantsOfBranchesByName(Compiles):
    """Keeps the constants of both branches in one table by name, where the last one wins."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type != "If":
            return
        table = {tensor.name: tensor for body in bodies(node) for tensor in body.initializer}
        for body in bodies(node):
            for tensor in body.initializer:
                tensor.CopyFrom(table[tensor.name])


class CountsLoopsOfConstantLength(Compiles):
    """Unrolls a loop of a constant number of turns, and ignores that its body may end it."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type == "Loop" and self.argument(node, 0) is not None:
            (body,) = bodies(node)
            body.output[0].name = body.input[1].name


class OverwritesCarriedValuesInOrder(Compiles):
    """Copies what a loop carries one by one, so that values that change places are lost."""

    suites = ("*",)

    def rewrite(self, graph, node):
        if node.op_type != "Loop":
            return
        (body,) = bodies(node)
        states = [value.name for value in body.input[2:]]
        writers = {name: inner for inner in body.node for name in inner.output}
        for place in range(len(states)):
            name = body.output[1 + place].name
            if name in writers and writers[name].op_type == "Identity":
                name = writers[name].input[0]
            if name in states[:place]:
                body.output[1 + place].name = body.output[1 + states.index(name)].name


@wrong("Loop")
def keeps_buffers_of_carried_values(right, node, *inputs):
    """Gives carried values of a loop the size that they had at first, also if they grow."""
    results = right(*inputs)
    several = results if isinstance(results, tuple) else (results,)
    kept = list(several)
    for place, state in enumerate(inputs[2:]):
        if isinstance(state, np.ndarray) and state.ndim and kept[place].ndim == state.ndim:
            kept[place] = kept[place][tuple(slice(size) for size in state.shape)]
    return tuple(kept)

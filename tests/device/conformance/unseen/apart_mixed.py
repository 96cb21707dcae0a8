"""Faults of graph compilers and of kernels, by somebody who has read neither the kit nor its
earlier sets.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
from good_device import Good, GoodCompiled
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


# Graph compilers


def read_attribute(node, name, default=None):
    """The value of an attribute of a node."""
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return default


def bodies_of(node):
    """All graphs in attributes of a node."""
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def constant_node(array, name):
    """A node that gives an array."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def rename_uses(nodes, names):
    """Reads values under other names, in bodies too."""
    for node in nodes:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
        for body in bodies_of(node):
            rename_uses(body.node, names)
            for output in body.output:
                output.name = names.get(output.name, output.name)


class Graph:
    """What passes ask of a graph."""

    def __init__(self, proto, opset):
        self.proto = proto
        self.opset = opset
        self.weights = {tensor.name: tensor for tensor in proto.initializer}
        self.makers = {name: node for node in proto.node for name in node.output if name}
        self.infos = {info.name: info for info in (*proto.input, *proto.value_info, *proto.output)}

    def maker(self, name, *op_types):
        """The node that makes a value, if it is one of these."""
        node = self.makers.get(name)
        return node if node is not None and node.op_type in op_types and not node.domain else None

    def readers(self, name):
        """The nodes that read a value."""
        return [node for node in self.proto.node if name in node.input]

    def constant(self, name):
        """The array of a constant."""
        if name in self.weights:
            return numpy_helper.to_array(self.weights[name])
        node = self.maker(name, "Constant")
        value = None if node is None else read_attribute(node, "value")
        return None if value is None else numpy_helper.to_array(value)

    def shape(self, name):
        """Dimensions, ``None`` where they are not known."""
        if name in self.weights:
            return list(self.weights[name].dims)
        info = self.infos.get(name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        dims = info.type.tensor_type.shape.dim
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]

    def element(self, name):
        """The type of elements, 0 if it is not known."""
        if name in self.weights:
            return self.weights[name].data_type
        info = self.infos.get(name)
        return 0 if info is None else info.type.tensor_type.elem_type

    def numbers(self, node, name, place):
        """Integers that are an attribute in old opsets and an input in new ones."""
        given = read_attribute(node, name)
        if given is None and len(node.input) > place and node.input[place]:
            array = self.constant(node.input[place])
            given = None if array is None else array.reshape(-1)
        return None if given is None else [int(number) for number in given]


def identity(source, node):
    """A node in the place of another one that hands on a value."""
    return [helper.make_node("Identity", [source], [node.output[0]])]


class Rewriting(Broken):
    """The frame of passes that look at one node after another."""

    def prepare(self, proto):
        own = onnx.ModelProto()
        own.CopyFrom(proto)
        opsets = {entry.domain: entry.version for entry in own.opset_import}
        self.sweep(own.graph, opsets.get("", 1))
        return own

    def sweep(self, proto, opset):
        """Rewrites a graph and the bodies in it."""
        graph = Graph(proto, opset)
        nodes = []
        changed = False
        for node in proto.node:
            for body in bodies_of(node):
                self.sweep(body, opset)
            made = None if node.domain else self.match(graph, node)
            changed = changed or made is not None
            nodes.extend([node] if made is None else made)
        if changed:
            del proto.node[:]
            proto.node.extend(nodes)
            del proto.value_info[:]

    def match(self, graph, node):
        """Nodes in the place of a node, ``None`` to leave it."""


class MergesReshapesWithZeros(Rewriting):
    """The last of two Reshapes was taken to say all, but zeros in it mean sizes in between."""

    def match(self, graph, node):
        inner = graph.maker(node.input[0], "Reshape") if node.op_type == "Reshape" else None
        if inner is None or len(inner.input) < 2 or graph.constant(node.input[1]) is None:
            return None
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[0] = inner.input[0]
        return [made]


class DropsExpandsThatArithmeticRepeats(Rewriting):
    """The author took an Expand ahead of arithmetic for needless, as the latter broadcasts too."""

    def match(self, graph, node):
        if node.op_type not in ("Add", "Mul", "Sub"):
            return None
        made = onnx.NodeProto()
        made.CopyFrom(node)
        for place, name in enumerate(node.input):
            expand = graph.maker(name, "Expand")
            full, other = graph.shape(name), graph.shape(node.input[1 - place])
            if expand is not None and full and other and len(full) == len(other):
                made.input[place] = expand.input[0]
        return None if made == node else [made]


class FoldsSizesOfPartialShapes(Rewriting):
    """A size gathered from Shape was folded by its number, as if no Shape began at a later axis."""

    def match(self, graph, node):
        shape = graph.maker(node.input[0], "Shape") if node.op_type == "Gather" else None
        index = None if shape is None else graph.constant(node.input[1])
        dims = None if index is None else graph.shape(shape.input[0])
        if dims is None or index.ndim or not 0 <= index < len(dims) or dims[int(index)] is None:
            return None
        return [constant_node(np.array(dims[int(index)], np.int64), node.output[0])]


class DropsSplitsThatAreJoined(Rewriting):
    """All parts of a Split joined again were taken for the whole, in whatever order they are."""

    def match(self, graph, node):
        split = graph.maker(node.input[0], "Split") if node.op_type == "Concat" else None
        if split is None or sorted(split.output) != sorted(node.input):
            return None
        if read_attribute(split, "axis", 0) != read_attribute(node, "axis", 0):
            return None
        return identity(split.input[0], node)


class FoldsPadsIntoAverages(Rewriting):
    """Zeros padded ahead of an average went into its pads, which are not counted by default."""

    def match(self, graph, node):
        pad = graph.maker(node.input[0], "Pad") if node.op_type == "AveragePool" else None
        pads = None if pad is None else graph.numbers(pad, "pads", 1)
        if not pads or read_attribute(pad, "mode", b"constant") != b"constant":
            return None
        if read_attribute(pad, "value", 0):
            return None
        value = graph.constant(pad.input[2]) if len(pad.input) > 2 and pad.input[2] else None
        rank = len(pads) // 2
        outer = [pads[place] for place in (0, 1, rank, rank + 1)]
        inner = pads[2:rank] + pads[rank + 2 :]
        if any(outer) or min(inner) < 0 or (value is not None and value.any()):
            return None
        if len(pad.input) > 3 or (len(pad.input) > 2 and pad.input[2] and value is None):
            return None
        if any(entry.name in ("pads", "auto_pad", "ceil_mode") for entry in node.attribute):
            return None
        if max(inner) >= min(read_attribute(node, "kernel_shape")):
            return None
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[0] = pad.input[0]
        made.attribute.append(helper.make_attribute("pads", inner))
        return [made]


class SinksTransposesBelowReductions(Rewriting):
    """A reduction took over a Transpose's axes, and the order of those that stay was forgotten."""

    def match(self, graph, node):
        if node.op_type not in ("ReduceSum", "ReduceMax", "ReduceMean"):
            return None
        transpose = graph.maker(node.input[0], "Transpose")
        axes = None if transpose is None else graph.numbers(node, "axes", 1)
        order = None if transpose is None else read_attribute(transpose, "perm")
        if not axes or not order or read_attribute(node, "keepdims", 1):
            return None
        mapped = [order[axis] for axis in axes]
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[0] = transpose.input[0]
        if len(node.input) < 2:
            kept = [entry for entry in node.attribute if entry.name != "axes"]
            del made.attribute[:]
            made.attribute.extend([*kept, helper.make_attribute("axes", mapped)])
            return [made]
        made.input[1] = node.output[0] + "/axes"
        return [constant_node(np.array(mapped, np.int64), made.input[1]), made]


class ScalesWeightsOfSharedProducts(Rewriting):
    """A factor behind a MatMul went into its weights, though others read the product as it was."""

    def factor(self, graph, product):
        """The first Mul that reads a product, and its factor."""
        if product.op_type != "MatMul" or graph.constant(product.input[1]) is None:
            return None, None
        for reader in graph.readers(product.output[0]):
            if reader.op_type == "Mul" and list(reader.input).count(product.output[0]) == 1:
                place = 1 - list(reader.input).index(product.output[0])
                array = graph.constant(reader.input[place])
                if array is not None and array.size == 1 and array.ndim <= 1:
                    return reader, array
        return None, None

    def match(self, graph, node):
        if node.op_type == "MatMul":
            _, array = self.factor(graph, node)
            if array is None:
                return None
            weights = graph.constant(node.input[1]) * array.reshape(())
            name = node.output[0] + "/weights"
            made = helper.make_node("MatMul", [node.input[0], name], list(node.output))
            return [constant_node(weights, name), made]
        for name in node.input if node.op_type == "Mul" else ():
            product = graph.maker(name, "MatMul")
            if product is not None:
                reader, _ = self.factor(graph, product)
                if reader is not None and reader.output[0] == node.output[0]:
                    return identity(name, node)
        return None


def normalization_of(graph, node):
    """Factors and shifts of a BatchNormalization of constants, or ``None``."""
    arrays = [graph.constant(name) for name in node.input[1:]]
    if any(array is None for array in arrays) or read_attribute(node, "training_mode", 0):
        return None
    scale, bias, mean, variance = arrays
    factor = scale / np.sqrt(variance + np.float32(read_attribute(node, "epsilon", 1e-5)))
    return factor.astype(scale.dtype), (bias - mean * factor).astype(scale.dtype)


class FoldsNormalizationsIntoPaddedConvs(Rewriting):
    """A normalization ahead of a Conv went into its weights, and its padding stayed zero."""

    def match(self, graph, node):
        norm = graph.maker(node.input[0], "BatchNormalization") if node.op_type == "Conv" else None
        weights = None if norm is None else graph.constant(node.input[1])
        folded = None if weights is None else normalization_of(graph, norm)
        if folded is None or read_attribute(node, "group", 1) != 1 or len(node.input) > 2:
            return None
        factor, shift = folded
        along = (slice(None), *[None] * (weights.ndim - 2))
        bias = (weights * shift[along]).sum(axis=tuple(range(1, weights.ndim)))
        names = [node.output[0] + "/weights", node.output[0] + "/bias"]
        made = onnx.NodeProto()
        made.CopyFrom(node)
        del made.input[:]
        made.input.extend([norm.input[0], *names])
        scaled = (weights * factor[along]).astype(weights.dtype)
        return [
            constant_node(scaled, names[0]),
            constant_node(bias.astype(weights.dtype), names[1]),
            made,
        ]


class ScalesFirstAxisOfTransposedConvs(Rewriting):
    """A normalization behind a ConvTranspose scaled its weights' first axis, as for Conv."""

    def match(self, graph, node):
        if node.op_type != "BatchNormalization":
            return None
        conv = graph.maker(node.input[0], "ConvTranspose")
        weights = None if conv is None else graph.constant(conv.input[1])
        folded = None if weights is None else normalization_of(graph, node)
        if folded is None or len(conv.input) > 2 or read_attribute(conv, "group", 1) != 1:
            return None
        factor, shift = folded
        if len(factor) != weights.shape[0] or len(factor) != weights.shape[1]:
            return None
        scaled = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
        names = [node.output[0] + "/weights", node.output[0] + "/bias"]
        made = onnx.NodeProto()
        made.CopyFrom(conv)
        del made.input[:], made.output[:]
        made.input.extend([conv.input[0], *names])
        made.output.append(node.output[0])
        return [
            constant_node(scaled.astype(weights.dtype), names[0]),
            constant_node(shift.astype(weights.dtype), names[1]),
            made,
        ]


class MergesClipsThatDoNotMeet(Rewriting):
    """Two Clips became one of the common interval, which is empty where they do not meet."""

    def match(self, graph, node):
        inner = graph.maker(node.input[0], "Clip") if node.op_type == "Clip" else None
        if inner is None or graph.opset < 11 or len(node.input) != 3 or len(inner.input) != 3:
            return None
        bounds = [graph.constant(name) for name in (*inner.input[1:], *node.input[1:])]
        if any(bound is None for bound in bounds):
            return None
        names = [node.output[0] + "/low", node.output[0] + "/high"]
        return [
            constant_node(np.array(np.maximum(bounds[0], bounds[2])), names[0]),
            constant_node(np.array(np.minimum(bounds[1], bounds[3])), names[1]),
            helper.make_node("Clip", [inner.input[0], *names], list(node.output)),
        ]


INTEGERS = {
    getattr(TensorProto, sign + width)
    for sign in ("INT", "UINT")
    for width in ("8", "16", "32", "64")
}


class DropsIntegersBetweenCasts(Rewriting):
    """Of two Casts between integers the first was taken to do nothing, though it drops bits."""

    def match(self, graph, node):
        inner = graph.maker(node.input[0], "Cast") if node.op_type == "Cast" else None
        if inner is None:
            return None
        types = [graph.element(inner.input[0]), *[read_attribute(n, "to") for n in (inner, node)]]
        if not INTEGERS.issuperset(types):
            return None
        return [helper.make_node("Cast", [inner.input[0]], list(node.output), to=types[-1])]


class FoldsIntegersInFloats(Rewriting):
    """Constants were folded by one routine for all types, which computes in float."""

    def match(self, graph, node):
        functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}
        if node.op_type not in functions:
            return None
        arrays = [graph.constant(name) for name in node.input]
        if any(array is None or array.dtype.kind not in "iu" for array in arrays):
            return None
        floats = [array.astype(np.float32) for array in arrays]
        result = np.asarray(functions[node.op_type](*floats)).astype(np.float64)
        return [constant_node(result.astype(arrays[0].dtype), node.output[0])]


class InlinesBranchesWithWeightsOfOneName(Broken):
    """Branches of constant conditions came into the graph, and weights kept names of their body."""

    def prepare(self, proto):
        own = onnx.ModelProto()
        own.CopyFrom(proto)
        graph = Graph(own.graph, 0)
        nodes = []
        changed = False
        for node in own.graph.node:
            condition = graph.constant(node.input[0]) if node.op_type == "If" else None
            if condition is None or node.domain:
                nodes.append(node)
                continue
            changed = True
            body = read_attribute(node, "then_branch" if condition.item() else "else_branch")
            made = {name for part in body.node for name in part.output if name}
            names = {name: f"{node.output[0]}/{name}" for name in made}
            rename_uses(body.node, names)
            for part in body.node:
                for place, name in enumerate(part.output):
                    part.output[place] = names.get(name, name)
            known = {tensor.name for tensor in own.graph.initializer}
            own.graph.initializer.extend([w for w in body.initializer if w.name not in known])
            nodes.extend(body.node)
            for inner, name in zip(body.output, node.output, strict=True):
                source = names.get(inner.name, inner.name)
                if name:
                    nodes.append(helper.make_node("Identity", [source], [name]))
        if changed:
            del own.graph.node[:]
            own.graph.node.extend(nodes)
            del own.graph.value_info[:]
        return own


class RunsLoopsOfConstantCountToTheirEnd(Rewriting):
    """A Loop of a constant count became a for, which does not look at the condition of its body."""

    def match(self, graph, node):
        count = graph.constant(node.input[0]) if node.op_type == "Loop" else None
        if count is None or not 0 < count.item() <= 1000:
            return None
        made = onnx.NodeProto()
        made.CopyFrom(node)
        (body,) = bodies_of(made)
        name = node.output[0] + "/going on"
        body.node.append(constant_node(np.array(True), name))
        body.output[0].name = name
        return [made]


class StacksScansAtTheFrontForNegativeAxes(Rewriting):
    """A negative axis of a Scan's output was the author's own mark for one that is not given."""

    def match(self, graph, node):
        axes = read_attribute(node, "scan_output_axes") if node.op_type == "Scan" else None
        if not axes or min(axes) >= 0:
            return None
        made = onnx.NodeProto()
        made.CopyFrom(node)
        for attribute in made.attribute:
            if attribute.name == "scan_output_axes":
                attribute.ints[:] = [max(axis, 0) for axis in axes]
        return [made]


class MergesNodesThatDifferInWords(Rewriting):
    """Equal nodes were found by inputs and numbers of attributes; texts were not in the key."""

    def match(self, graph, node):
        random = node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial")
        kinds = {entry.type for entry in node.attribute}
        if random or not node.input or onnx.AttributeProto.GRAPH in kinds:
            return None
        numbers = [
            entry.SerializeToString()
            for entry in sorted(node.attribute, key=lambda entry: entry.name)
            if entry.type != onnx.AttributeProto.STRING
        ]
        key = (node.op_type, *node.input, len(node.output), *numbers)
        first = vars(graph).setdefault("known", {}).setdefault(key, node)
        if first is node or [bool(n) for n in first.output] != [bool(n) for n in node.output]:
            return None
        pairs = zip(first.output, node.output, strict=True)
        return [helper.make_node("Identity", [a], [b]) for a, b in pairs if b]


class ConvertsOldSoftmaxesToOneAxis(Rewriting):
    """Softmax of opset 11 was converted to 13 with its axis kept, which meant all behind it too."""

    def match(self, graph, node):
        shape = graph.shape(node.input[0]) if node.op_type == "Softmax" else None
        if shape is None or graph.opset >= 13:
            return None
        rank = len(shape)
        axis = read_attribute(node, "axis", 1)
        axis += rank if axis < 0 else 0
        if axis >= rank - 1:
            return None
        order = [place for place in range(rank) if place != axis] + [axis]
        names = [node.output[0] + "/moved", node.output[0] + "/soft"]
        back = [order.index(place) for place in range(rank)]
        return [
            helper.make_node("Transpose", [node.input[0]], names[:1], perm=order),
            helper.make_node("Softmax", names[:1], names[1:], axis=rank - 1),
            helper.make_node("Transpose", names[1:], list(node.output), perm=back),
        ]


class SquaresInHalf(Rewriting):
    """The precision pass left products in float and took a power of two for harmless in half."""

    def match(self, graph, node):
        if node.op_type != "Pow" or graph.element(node.input[0]) != TensorProto.FLOAT:
            return None
        exponent = graph.constant(node.input[1])
        if exponent is None or exponent.ndim or exponent != 2:
            return None
        names = [node.output[0] + "/half", node.output[0] + "/square"]
        return [
            helper.make_node("Cast", [node.input[0]], names[:1], to=TensorProto.FLOAT16),
            helper.make_node("Mul", [names[0], names[0]], names[1:]),
            helper.make_node("Cast", names[1:], list(node.output), to=TensorProto.FLOAT),
        ]


class DropsRequantizationsOfEqualScales(Rewriting):
    """Dequantizing and quantizing by one scale cancel out; the zero points were not compared."""

    def match(self, graph, node):
        inner = (
            graph.maker(node.input[0], "DequantizeLinear")
            if node.op_type == "QuantizeLinear"
            else None
        )
        if inner is None or len(node.input) < 3 or len(inner.input) < 3:
            return None
        arrays = [graph.constant(name) for name in (*inner.input[1:], *node.input[1:])]
        if any(array is None for array in arrays) or arrays[1].dtype != arrays[3].dtype:
            return None
        return identity(inner.input[0], node) if np.array_equal(arrays[0], arrays[2]) else None


class SlicesWhatBeginsAndEndsLikeARange(Rewriting):
    """A Gather of constant indices became a Slice if the first, the last and the count fit."""

    def match(self, graph, node):
        index = graph.constant(node.input[1]) if node.op_type == "Gather" else None
        if index is None or index.ndim != 1 or index.size < 2 or graph.opset < 10:
            return None
        if index[0] < 0 or index[-1] - index[0] + 1 != index.size:
            return None
        values = [index[0], index[-1] + 1, read_attribute(node, "axis", 0)]
        names = [f"{node.output[0]}/{place}" for place in range(3)]
        made = [
            constant_node(np.array([value], np.int64), name)
            for value, name in zip(values, names, strict=True)
        ]
        return [*made, helper.make_node("Slice", [node.input[0], *names], list(node.output))]


class TakesBatchesOfUnknownSizeForOne(Rewriting):
    """Shape of a value of which only the batch is unknown was folded for batches of one."""

    def match(self, graph, node):
        shape = graph.shape(node.input[0]) if node.op_type == "Shape" else None
        if not shape or shape[0] is not None or None in shape[1:] or node.attribute:
            return None
        return [constant_node(np.array([1, *shape[1:]], np.int64), node.output[0])]


class TakesEveryGateForSwish(Rewriting):
    """Mul behind Sigmoid became one kernel of one input; nobody asked if both read the same."""

    def match(self, graph, node):
        if node.op_type != "Mul":
            return None
        for place, name in enumerate(node.input):
            other = node.input[1 - place]
            shape = graph.shape(name)
            if graph.maker(name, "Sigmoid") is None or not shape or None in shape:
                continue
            if shape == graph.shape(other):
                gate = node.output[0] + "/gate"
                return [
                    helper.make_node("Sigmoid", [other], [gate]),
                    helper.make_node("Mul", [other, gate], list(node.output)),
                ]
        return None


class TurnsComparisonsRound(Rewriting):
    """Not greater was taken for less or equal, which no NaN is."""

    def match(self, graph, node):
        inner = graph.maker(node.input[0], "Greater", "Less") if node.op_type == "Not" else None
        if inner is None or graph.opset < 12:
            return None
        turned = {"Greater": "LessOrEqual", "Less": "GreaterOrEqual"}[inner.op_type]
        return [helper.make_node(turned, list(inner.input), list(node.output))]


class KeepsOneWeightOfEqualBytes(Broken):
    """Weights of one type and equal bytes are kept once, with the shape of the first of them."""

    def prepare(self, proto):
        own = onnx.ModelProto()
        own.CopyFrom(proto)
        firsts = {}
        names = {}
        for tensor in own.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.size and array.dtype != object:
                key = (tensor.data_type, array.tobytes())
                first = firsts.setdefault(key, tensor.name)
                if first != tensor.name:
                    names[tensor.name] = first
        rename_uses(own.graph.node, names)
        if names:
            del own.graph.value_info[:]
        return own


class TakesEveryShuffleForDepthFirst(Rewriting):
    """Both orders in which channels become pixels were found, and one DepthToSpace made of them."""

    def match(self, graph, node):
        if node.op_type != "Reshape":
            return None
        transpose = graph.maker(node.input[0], "Transpose")
        first = None if transpose is None else graph.maker(transpose.input[0], "Reshape")
        if first is None:
            return None
        inner, outer = graph.constant(first.input[1]), graph.constant(node.input[1])
        order = read_attribute(transpose, "perm")
        blocks = {(0, 1, 4, 2, 5, 3): 2, (0, 3, 4, 1, 5, 2): 1}.get(tuple(order or ()))
        shape = graph.shape(first.input[0])
        if blocks is None or inner is None or outer is None or inner.size != 6 or not shape:
            return None
        size = int(inner[blocks])
        if len(shape) != 4 or None in shape or outer.size != 4 or size != inner[blocks + 1]:
            return None
        if list(outer[1:]) != [shape[1] // size**2, shape[2] * size, shape[3] * size]:
            return None
        source = [first.input[0]]
        return [helper.make_node("DepthToSpace", source, list(node.output), blocksize=size)]


# Kernels


def evaluated(node, opset, arrays, **changed):
    """The outputs of a node some of whose attributes are others."""
    own = onnx.NodeProto()
    own.CopyFrom(node)
    kept = [entry for entry in node.attribute if entry.name not in changed]
    del own.attribute[:]
    own.attribute.extend(kept)
    own.attribute.extend(helper.make_attribute(name, value) for name, value in changed.items())
    feeds = dict(zip(own.input, arrays, strict=True))
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in feeds.items()
        if name
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in own.output if name]
    graph = helper.make_graph([own], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return tuple(ReferenceEvaluator(model).run(None, {k: v for k, v in feeds.items() if k}))


class PatchedCompiled(GoodCompiled):
    """Computes one operator by the device's kernel, in bodies too."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.opset = model.ir.opset_imports.get("", 1)
        self.patch(self.evaluator)

    def patch(self, evaluator):
        """Puts the kernel in the place of the right one."""
        for node in evaluator.rt_nodes_:
            bodies = [own for own in vars(node).values() if isinstance(own, ReferenceEvaluator)]
            for body in bodies:
                self.patch(body)
            if (node.onnx_node.domain, node.op_type) == ("", self.plugin.op_type):
                node.run = functools.partial(self.run_kernel, node)

    def run_kernel(self, node, *arrays, **keywords):
        """What the kernel makes of arrays, the right results where it says ``None``."""

        def right(*given):
            return type(node).run(node, *given, **keywords)

        with np.errstate(all="ignore"):
            made = self.plugin.kernel(node.onnx_node, self.opset, right, list(arrays))
        return right(*arrays) if made is None else tuple(made)


class Kernel(Broken):
    """The frame of kernels of one operator."""

    compiled_type = PatchedCompiled
    op_type = ""

    def kernel(self, node, opset, right, arrays):
        """The outputs, ``None`` for the right ones."""


class ShiftsReversedSumsForwards(Kernel):
    """Exclusive sums were made by a shift to the right, for sums from the end as well."""

    op_type = "CumSum"

    def kernel(self, node, opset, right, arrays):
        if not (read_attribute(node, "exclusive", 0) and read_attribute(node, "reverse", 0)):
            return None
        x, axis = arrays[0], int(np.asarray(arrays[1]).item())
        rows = np.moveaxis(x, axis, 0)
        sums = np.cumsum(rows[::-1], axis=0, dtype=x.dtype)[::-1]
        shifted = np.zeros_like(rows)
        shifted[1:] = sums[:-1]
        return (np.ascontiguousarray(np.moveaxis(shifted, 0, axis)),)


class SaturatesShiftsOfBytes(Kernel):
    """Shifts to the left of bytes were stored by the narrowing that saturates."""

    op_type = "BitShift"

    def kernel(self, node, opset, right, arrays):
        x, by = arrays
        if x.dtype not in (np.uint8, np.uint16) or read_attribute(node, "direction") != b"LEFT":
            return None
        wide = np.left_shift(x.astype(np.uint64), by.astype(np.uint64))
        return (np.asarray(np.minimum(wide, np.iinfo(x.dtype).max)).astype(x.dtype),)


class TakesSignsOfLowWords(Kernel):
    """Integers of 64 bits are narrowed to 32 on the way to the kernel of signs."""

    op_type = "Sign"

    def kernel(self, node, opset, right, arrays):
        if arrays[0].dtype != np.int64:
            return None
        return (np.asarray(np.sign(arrays[0].astype(np.int32))).astype(np.int64),)


class ComparesHalvesAsIntegers(Kernel):
    """Halves are compared by their bits as signed integers, which turns negative ones round."""

    op_type = "Min"

    def kernel(self, node, opset, right, arrays):
        if arrays[0].dtype != np.float16 or len(arrays) < 2:
            return None
        least = arrays[0]
        for array in arrays[1:]:
            a, b = (np.array(each) for each in np.broadcast_arrays(least, array))
            least = np.where(a.view(np.int16) <= b.view(np.int16), a, b)
        return (np.asarray(least),)


class FindsLeastOfUnsignedByNegation(Kernel):
    """The smallest elements were found as the largest negated ones, also where -0 is 0."""

    op_type = "TopK"

    def kernel(self, node, opset, right, arrays):
        x = arrays[0]
        if x.dtype.kind != "u" or read_attribute(node, "largest", 1) or len(arrays) < 2:
            return None
        axis, count = read_attribute(node, "axis", -1), int(np.asarray(arrays[1]).item())
        keys = np.zeros_like(x) - x
        order = np.argsort(np.iinfo(x.dtype).max - keys, axis=axis, kind="stable")
        order = np.take(order, np.arange(count), axis=axis)
        return np.take_along_axis(x, order, axis), order.astype(np.int64)


class SumsExponentialsOfHalvesInHalf(Kernel):
    """Exponentials of halves were added up as they are, without their maximum taken off."""

    op_type = "ReduceLogSumExp"

    def kernel(self, node, opset, right, arrays):
        if arrays[0].dtype != np.float16:
            return None
        (result,) = right(*arrays)
        most = np.log(np.float32(65504))
        return (np.where(result > most, np.inf, result).astype(np.float16),)


class BeginsMinimaAtTheLargestNumber(Kernel):
    """The minimum of nothing was left at the largest finite number that the search began with."""

    op_type = "ReduceMin"

    def kernel(self, node, opset, right, arrays):
        x = arrays[0]
        if x.size or x.dtype not in (np.float16, np.float32, np.float64):
            return None
        (result,) = right(*arrays)
        return (np.minimum(result, np.finfo(x.dtype).max).astype(x.dtype),)


class PadsAxesInAscendingOrder(Kernel):
    """Axes that are given to Pad were sorted, and the pads stayed where they were."""

    op_type = "Pad"

    def kernel(self, node, opset, right, arrays):
        if len(arrays) < 4 or arrays[3] is None:
            return None
        axes = arrays[3] % max(arrays[0].ndim, 1)
        return right(*arrays[:3], np.sort(axes).astype(arrays[3].dtype))


class ClampsNegativeShortIndices(Kernel):
    """Indices of 32 bits were read as unsigned and clamped to the last row."""

    op_type = "Gather"

    def kernel(self, node, opset, right, arrays):
        data, index = arrays
        if index.dtype != np.int32 or not data.ndim:
            return None
        last = data.shape[read_attribute(node, "axis", 0)] - 1
        return right(data, np.asarray(np.where(index < 0, last, index)).astype(np.int32))


class TruncatesCountsOfDescendingRanges(Kernel):
    """Ranges of integers were counted by a division that is rounded up for positive steps only."""

    op_type = "Range"

    def kernel(self, node, opset, right, arrays):
        start, limit, delta = (np.asarray(array) for array in arrays)
        if start.dtype.kind != "i" or delta >= 0 or limit >= start:
            return None
        count = (int(start) - int(limit)) // -int(delta)
        return ((int(start) + int(delta) * np.arange(count)).astype(start.dtype),)


class LooksForInfinitiesInFloat(Kernel):
    """Doubles were narrowed to float ahead of the question if they are infinite."""

    op_type = "IsInf"

    def kernel(self, node, opset, right, arrays):
        narrow = arrays[0].dtype == np.float64
        return right(arrays[0].astype(np.float32)) if narrow else None


class OrdersImplicitTermsAsTheyCome(Kernel):
    """Letters of an output that is not given were taken as they come, not by the alphabet."""

    op_type = "Einsum"

    def kernel(self, node, opset, right, arrays):
        equation = read_attribute(node, "equation").decode().replace(" ", "")
        if "->" in equation or "." in equation:
            return None
        letters = equation.replace(",", "")
        once = "".join(letter for letter in letters if letters.count(letter) == 1)
        return (np.asarray(np.einsum(f"{equation}->{once}", *arrays)).astype(arrays[0].dtype),)


def padded(node, array, value):
    """An input of a window's operator with its padding written out, ``None`` without any."""
    pads = read_attribute(node, "pads")
    explicit = read_attribute(node, "auto_pad", b"NOTSET") == b"NOTSET"
    if not explicit or not pads or not any(pads):
        return None
    half = len(pads) // 2
    widths = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    return np.pad(array, widths, constant_values=value)


class PadsMaximaOfBytesWithZeros(Kernel):
    """Maxima of signed bytes are taken over a padding of zeros, as if all came behind a Relu."""

    op_type = "MaxPool"

    def kernel(self, node, opset, right, arrays):
        if arrays[0].dtype != np.int8 or len(node.output) > 1:
            return None
        full = padded(node, arrays[0], 0)
        if full is None:
            return None
        pads = [0] * len(read_attribute(node, "pads"))
        (result,) = evaluated(node, opset, [full.astype(np.float32)], pads=pads)
        return (result.astype(np.int8),)


class SubtractsZeroPointsInBytes(Kernel):
    """Zero points were subtracted in the quantized type, where large differences wrap."""

    op_type = "DequantizeLinear"

    def kernel(self, node, opset, right, arrays):
        if len(arrays) < 3 or arrays[2] is None or arrays[0].dtype != np.int8:
            return None
        x, scale, zero = arrays
        return right(x - zero, scale, np.zeros_like(zero)) if zero.size == 1 else None


class LeansEvenWindowsBackwards(Kernel):
    """A window of an even number of channels reached one further back, not ahead."""

    op_type = "LRN"

    def kernel(self, node, opset, right, arrays):
        (result,) = right(np.ascontiguousarray(arrays[0][:, ::-1]))
        return (np.ascontiguousarray(result[:, ::-1]),)


class SplitsUnevenPartsEvenly(Kernel):
    """Parts that do not come out even differ by one at most, as those of numpy do."""

    op_type = "Split"

    def kernel(self, node, opset, right, arrays):
        parts = read_attribute(node, "num_outputs")
        if not parts:
            return None
        axis = read_attribute(node, "axis", 0)
        return [np.array(part) for part in np.array_split(arrays[0], parts, axis)]


class RoundsExponentsOfIntegers(Kernel):
    """The exponent was brought to the type of the base, where both are to be of any type."""

    op_type = "Pow"

    def kernel(self, node, opset, right, arrays):
        base, exponent = arrays
        if base.dtype.kind != "i" or exponent.dtype not in (np.float32, np.float64):
            return None
        whole = np.trunc(exponent)
        return (np.asarray(np.power(base.astype(np.float64), whole)).astype(base.dtype),)


class AddsUpMeansInBrains(Kernel):
    """Means of bfloat16 were added up in bfloat16, which grows no further at 256 ones."""

    op_type = "ReduceMean"

    def kernel(self, node, opset, right, arrays):
        x = arrays[0]
        axes = read_attribute(node, "axes")
        if len(arrays) > 1 and arrays[1] is not None:
            axes = [int(axis) for axis in arrays[1]]
        if x.dtype.name != "bfloat16" or not axes or not x.size:
            return None
        kept = read_attribute(node, "keepdims", 1)
        places = tuple(axis % x.ndim for axis in axes)
        rows = np.moveaxis(x, places, range(len(places)))
        rows = rows.reshape(-1, *rows.shape[len(places) :])
        total = np.zeros(rows.shape[1:], x.dtype)
        for row in rows:
            total = np.asarray(total + row).astype(x.dtype)
        mean = np.asarray(total.astype(np.float32) / len(rows)).astype(x.dtype)
        return (np.expand_dims(mean, places) if kept else mean,)


class TransformsNewAxisOfOldModels(Kernel):
    """The axis that is not given was opset 20's last one but one, where it was 1 in opset 17."""

    op_type = "DFT"

    def kernel(self, node, opset, right, arrays):
        given = any(entry.name == "axis" for entry in node.attribute)
        if opset >= 20 or given or arrays[0].ndim < 4 or len(arrays) > 1:
            return None
        return evaluated(node, opset, arrays, axis=-2)


class WrapsDiagonalsOfTallMatrices(Kernel):
    """The diagonal was filled with a stride through all rows, and goes on below the last column."""

    op_type = "EyeLike"

    def kernel(self, node, opset, right, arrays):
        rows, columns = arrays[0].shape
        if read_attribute(node, "k", 0) or rows <= columns + 1 or not columns:
            return None
        result = np.array(right(*arrays)[0])
        result.reshape(-1)[:: columns + 1] = 1
        return (result,)


class CountsUnsortedElementsSorted(Kernel):
    """Elements were put in order of their first place, and the counts of them stayed sorted."""

    op_type = "Unique"

    def kernel(self, node, opset, right, arrays):
        if read_attribute(node, "sorted", 1) or read_attribute(node, "axis") is not None:
            return None
        results = list(right(*arrays))
        counts = np.unique(arrays[0], return_counts=True)[1].astype(np.int64)
        return results[:3] + [counts][: len(results) - 3]


class AddsOneUpdateForEachPlace(Kernel):
    """Updates of one place each read what was there before all, and the last one is left."""

    op_type = "ScatterND"

    def kernel(self, node, opset, right, arrays):
        data, index, updates = arrays
        if read_attribute(node, "reduction", b"none") != b"add":
            return None
        result = np.array(data)
        places = tuple(np.moveaxis(index, -1, 0))
        result[places] = data[places] + updates
        return (result,)


class LosesFirstOfBackwardSlices(Kernel):
    """An end that lies before the first element was clamped to it, and slices backwards lost it."""

    op_type = "Slice"

    def kernel(self, node, opset, right, arrays):
        if len(arrays) < 5 or arrays[4] is None:
            return None
        data, starts, ends, axes, steps = arrays
        numbers = range(len(starts)) if axes is None else axes
        sizes = np.array([data.shape[int(axis)] for axis in numbers])
        clamped = np.where((steps < 0) & (ends < -sizes), 0, ends).astype(ends.dtype)
        return right(data, starts, clamped, axes, steps)


class AveragesOverIgnoredTargets(Kernel):
    """The mean of losses was taken over all targets, those too that are to be ignored."""

    op_type = "NegativeLogLikelihoodLoss"

    def kernel(self, node, opset, right, arrays):
        ignored = read_attribute(node, "ignore_index")
        mean = read_attribute(node, "reduction", b"mean") == b"mean"
        if ignored is None or not mean or len(arrays) > 2 or not arrays[1].size:
            return None
        (loss,) = right(*arrays)
        share = np.mean(arrays[1] != ignored)
        return (np.asarray(loss * share).astype(arrays[0].dtype),)


class ReturnsSquaresOfScalarsAsTheyAre(Kernel):
    """Without an axis to reduce the input was handed on, not squared."""

    op_type = "ReduceSumSquare"

    def kernel(self, node, opset, right, arrays):
        return None if arrays[0].ndim else (np.array(arrays[0]),)

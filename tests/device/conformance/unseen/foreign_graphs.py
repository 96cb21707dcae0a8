"""Faults of graph compilers, by somebody who has read neither the kit nor its earlier sets."""

from __future__ import annotations

import functools
import threading
import weakref

import numpy as np
import onnx
from good_device import Good, GoodCompiled
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import partita
from partita.frontends.reader import read_model
from partita_reference.evaluator import ReferenceModel

UNARY = {"Relu", "Neg", "Abs", "Exp", "Log", "Sqrt", "Sigmoid", "Floor", "Ceil", "Erf", "Softplus"}
BINARY = {"Add", "Sub", "Mul", "Div"}
REDUCTIONS = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"}
VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten"}
FOLDED = {"Add", "Sub", "Mul", "Neg", "Gather", "Squeeze", "Reshape"}
CHANCE = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}
CHANCE |= {"Bernoulli", "Multinomial", "Dropout"}


def attributes(node):
    """The attributes of a node, as values."""
    return {own.name: helper.get_attribute_value(own) for own in node.attribute}


def bodies(node):
    """The graphs that a node holds."""
    for own in node.attribute:
        if own.type == AttributeProto.GRAPH:
            yield own.g
        yield from own.graphs


def rename_reads(nodes, names):
    """Lets nodes, and what their bodies capture, read other values."""
    for node in nodes:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
        for body in bodies(node):
            rename_reads(body.node, names)


def captured(node):
    """The names that bodies of a node read, their own ones among them."""
    names = set()
    for body in bodies(node):
        for inner in body.node:
            names |= set(inner.input) | captured(inner)
        names |= {value.name for value in body.output}
    return names


def known_types(proto):
    """The types of values by name, those left out that two graphs tell apart."""
    try:
        graph = onnx.shape_inference.infer_shapes(proto).graph
    except Exception:  # noqa: BLE001 - a pass that knows no shapes leaves the model as it is
        graph = proto.graph
    types, doubtful = {}, set()

    def visit(graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if types.setdefault(value.name, value.type) != value.type:
                doubtful.add(value.name)
        for node in graph.node:
            for body in bodies(node):
                visit(body)

    visit(graph)
    return {name: own for name, own in types.items() if name not in doubtful}


class View:
    """A graph under a pass: who makes what, who reads it, and what is constant."""

    def __init__(self, graph, opset, types, outer):
        self.graph, self.opset, self.types, self.outer = graph, opset, types, outer
        self.nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
        self.outputs = {value.name for value in graph.output}
        given = {value.name for value in graph.input}
        self.constants = dict(outer.constants) if outer else {}
        for tensor in graph.initializer:
            if tensor.name not in given and not tensor.external_data:
                self.constants[tensor.name] = numpy_helper.to_array(tensor)
        for node in self.nodes:
            if node.op_type == "Constant" and "value" in attributes(node):
                self.constants[node.output[0]] = numpy_helper.to_array(attributes(node)["value"])
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.fresh_names = outer.fresh_names if outer else iter(range(1 << 30))

    def fresh(self, hint):
        """A name that nothing has."""
        return f"{hint}/compiled/{next(self.fresh_names)}"

    def maker(self, name, *op_types):
        """The node that makes a value, if it is of one of these types."""
        node = self.makers.get(name)
        return node if node is not None and not node.domain and node.op_type in op_types else None

    def keep(self, array, hint="constant"):
        """The name of a new constant."""
        name = self.fresh(hint)
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def dtype(self, name):
        """The element type of a tensor, 0 if it is unknown."""
        if name in self.constants:
            return helper.np_dtype_to_tensor_dtype(self.constants[name].dtype)
        own = self.types.get(name)
        return own.tensor_type.elem_type if own is not None and own.HasField("tensor_type") else 0

    def shape(self, name):
        """Numbers and symbols, None for sizes unknown, or None for a rank unknown."""
        if name in self.constants:
            return self.constants[name].shape
        own = self.types.get(name)
        if own is None or not own.HasField("tensor_type") or not own.tensor_type.HasField("shape"):
            return None
        return tuple(
            size.dim_value if size.HasField("dim_value") else size.dim_param or None
            for size in own.tensor_type.shape.dim
        )

    def static(self, name):
        """The shape if it is all numbers, or None."""
        shape = self.shape(name)
        known = shape is not None and all(isinstance(size, int) for size in shape)
        return shape if known else None

    def readers(self, name):
        """Places of the nodes that read a value, in bodies too."""
        return [
            place
            for place, node in enumerate(self.nodes)
            if name in node.input or name in captured(node)
        ]

    def axes(self, node):
        """The constant axes of an operation, or None."""
        if "axes" in attributes(node):
            return list(attributes(node)["axes"])
        if len(node.input) > 1 and node.input[1] in self.constants:
            return [int(axis) for axis in self.constants[node.input[1]].reshape(-1)]
        return None

    def reduction(self, node, source, axes, result):
        """A copy of a reduction over other axes."""
        own = attributes(node)
        inputs = [source]
        since = 13 if node.op_type in {"ReduceSum", "Squeeze", "Unsqueeze"} else 18
        if self.opset < since:
            own["axes"] = axes
        else:
            inputs.append(self.keep(np.array(axes, np.int64), "axes"))
        return helper.make_node(node.op_type, inputs, [result], **own)


class Broken(Good):
    """The base of all devices below."""

    device_name = "BROKEN"


class Rewriting(Broken):
    """The frame of a pass that is made over each graph, bodies first."""

    def prepare(self, proto):
        made = onnx.ModelProto.FromString(proto.SerializeToString())
        opset = max((own.version for own in made.opset_import if not own.domain), default=1)
        self.walk(made.graph, opset, known_types(made), None)
        return made

    def walk(self, graph, opset, types, outer):
        """Rewrites a graph where it lies."""
        view = View(graph, opset, types, outer)
        for node in view.nodes:
            for body in bodies(node):
                self.walk(body, opset, types, view)
        self.change(view)
        del graph.node[:]
        graph.node.extend(view.nodes)

    def change(self, view):
        """Makes the pass over a graph."""
        view.nodes = [
            new
            for node in view.nodes
            for new in ((not node.domain and self.rewrite(view, node)) or [node])
        ]

    def rewrite(self, view, node):
        """What a node is replaced by, if it is."""


# Rewrites of neighbours


class DropsTheFirstOfTwoReshapes(Rewriting):
    """The author took it that only the last of two reshapes says what the shape is."""

    def rewrite(self, view, node):
        inner = view.maker(node.input[0], "Reshape") if node.op_type == "Reshape" else None
        if inner is not None and node.input[1] in view.constants:
            node.input[0] = inner.input[0]


class LeavesExpandingToTheReader(Rewriting):
    """The author took it that whoever adds to what was expanded broadcasts it as far anyway."""

    def rewrite(self, view, node):
        if node.op_type in BINARY:
            for place, name in enumerate(node.input):
                inner = view.maker(name, "Expand")
                if inner is not None:
                    node.input[place] = inner.input[0]
                    break


class RemovesSlicesThatKeepTheShape(Rewriting):
    """The author took a slice whose result has the input's shape for the input."""

    def rewrite(self, view, node):
        if node.op_type != "Slice" or view.static(node.input[0]) is None:
            return None
        if view.static(node.output[0]) != view.static(node.input[0]):
            return None
        return [helper.make_node("Identity", node.input[:1], node.output)]


class ShiftsInsteadOfDividing(Rewriting):
    """The author divided integers by powers of two by a shift, which rounds down."""

    def rewrite(self, view, node):
        if node.op_type != "Div" or view.opset < 10:
            return None
        divisor = view.constants.get(node.input[1])
        whole = view.dtype(node.input[0]) in (TensorProto.INT32, TensorProto.INT64)
        if divisor is None or not whole or not divisor.size:
            return None
        if (divisor <= 0).any() or (divisor & (divisor - 1)).any():
            return None
        rest, even = view.fresh("rest"), view.fresh("even")
        return [
            helper.make_node("Mod", node.input, [rest]),
            helper.make_node("Sub", [node.input[0], rest], [even]),
            helper.make_node("Div", [even, node.input[1]], node.output),
        ]


class MasksByMultiplying(Rewriting):
    """The author took a choice between a value and zero for a product with the condition."""

    def rewrite(self, view, node):
        if node.op_type != "Where" or view.dtype(node.input[1]) != TensorProto.FLOAT:
            return None
        other = view.constants.get(node.input[2])
        if node.input[1] in view.constants or other is None or other.size != 1 or other.any():
            return None
        mask = view.fresh("mask")
        return [
            helper.make_node("Cast", node.input[:1], [mask], to=TensorProto.FLOAT),
            helper.make_node("Mul", [node.input[1], mask], node.output),
        ]


class RemovesCastsWithinOneKind(Rewriting):
    """The author took a cast there and back for none where both types are floats, or integers."""

    def rewrite(self, view, node):
        inner = view.maker(node.input[0], "Cast") if node.op_type == "Cast" else None
        if inner is None:
            return None
        there, back = attributes(inner)["to"], attributes(node)["to"]
        kinds = [helper.tensor_dtype_to_np_dtype(own).kind for own in (there, back)]
        if view.dtype(inner.input[0]) != back or set(kinds) not in ({"f"}, {"i"}):
            return None
        return [helper.make_node("Identity", inner.input, node.output)]


# Fusions


class FoldsScalesIntoConvolutions(Rewriting):
    """The author took every constant of as many elements as there are channels for their scales."""

    def rewrite(self, view, node):
        if node.op_type != "Mul":
            return None
        for name, scale in (node.input, reversed(node.input)):
            conv, factors = view.maker(name, "Conv"), view.constants.get(scale)
            weights = view.constants.get(conv.input[1]) if conv is not None else None
            if weights is None or factors is None or factors.ndim >= weights.ndim:
                continue
            if factors.size != len(weights) or any(n not in view.constants for n in conv.input[2:]):
                continue
            factors = factors.reshape(-1)
            columns = factors.reshape(-1, *[1] * (weights.ndim - 1))
            biases = [view.keep(view.constants[n] * factors) for n in conv.input[2:]]
            inputs = [conv.input[0], view.keep(weights * columns), *biases]
            return [helper.make_node("Conv", inputs, node.output, **attributes(conv))]
        return None


class FoldsNormalizationsIntoSharedWeights(Rewriting):
    """The author scaled the weights of a convolution where they lie, as if nobody shared them."""

    def rewrite(self, view, node):
        if node.op_type != "BatchNormalization" or len(node.output) > 1:
            return None
        conv = view.maker(node.input[0], "Conv")
        own = attributes(node)
        per_channel = own.get("spatial", 1) and not own.get("training_mode")
        if conv is None or not per_channel or node.input[0] in view.outputs:
            return None
        names = [*conv.input[1:], *node.input[1:]]
        held = {tensor.name: tensor for tensor in view.graph.initializer}
        if any(name not in view.constants for name in names) or conv.input[1] not in held:
            return None
        if len(view.readers(node.input[0])) > 1:
            return None
        weights = view.constants[conv.input[1]]
        gain, shift, mean, variance = (view.constants[name] for name in node.input[1:])
        factors = (gain / np.sqrt(variance + own.get("epsilon", 1e-5))).astype(weights.dtype)
        bias = view.constants[conv.input[2]] if len(conv.input) > 2 else np.zeros_like(mean)
        scaled = weights * factors.reshape(-1, *[1] * (weights.ndim - 1))
        view.constants[conv.input[1]] = scaled
        held[conv.input[1]].CopyFrom(numpy_helper.from_array(scaled, conv.input[1]))
        added = view.keep(((bias - mean) * factors + shift).astype(weights.dtype))
        inputs = [*conv.input[:2], added]
        return [helper.make_node("Conv", inputs, node.output, **attributes(conv))]


class NormalizesOverTheLastAxis(Rewriting):
    """The author took each written-out layer normalization for one over the last axis alone."""

    def rewrite(self, view, node):
        root = view.maker(node.input[1], "Sqrt") if node.op_type == "Div" else None
        total = root and view.maker(root.input[0], "Add")
        variance = total and view.maker(total.input[0], "ReduceMean")
        square = variance and view.maker(variance.input[0], "Pow", "Mul")
        centred = view.maker(node.input[0], "Sub") if square else None
        if centred is None or square.input[0] != node.input[0]:
            return None
        mean = view.maker(centred.input[1], "ReduceMean")
        if mean is None or mean.input[0] != centred.input[0]:
            return None
        axes = view.axes(mean)
        shape = view.shape(centred.input[0])
        if not axes or shape is None or not {-1, len(shape) - 1} & set(axes):
            return None
        if not all(attributes(own).get("keepdims", 1) for own in (mean, variance)):
            return None
        names = [view.fresh("norm") for _ in range(6)]
        power = [names[1], *square.input[1:]] if square.op_type == "Pow" else [names[1]] * 2
        return [
            view.reduction(mean, centred.input[0], [-1], names[0]),
            helper.make_node("Sub", [centred.input[0], names[0]], [names[1]]),
            helper.make_node(square.op_type, power, [names[2]]),
            view.reduction(variance, names[2], [-1], names[3]),
            helper.make_node("Add", [names[3], total.input[1]], [names[4]]),
            helper.make_node("Sqrt", [names[4]], [names[5]]),
            helper.make_node("Div", [names[1], names[5]], node.output),
        ]


class MovesPaddingIntoMaxPool(Rewriting):
    """The author took zeros around an image for the padding of a pool, as if all came from Relu."""

    def rewrite(self, view, node):
        pad = view.maker(node.input[0], "Pad") if node.op_type == "MaxPool" else None
        if pad is None or view.opset < 11 or len(pad.input) > 3 or len(node.output) > 1:
            return None
        pads = view.constants.get(pad.input[1])
        value = view.constants.get(pad.input[2]) if len(pad.input) > 2 and pad.input[2] else 0
        own = attributes(node)
        if pads is None or value is None or np.any(value) or own.get("auto_pad", b"") != b"":
            return None
        if attributes(pad).get("mode", b"constant") != b"constant" or own.get("ceil_mode"):
            return None
        rank, window = len(pads) // 2, own["kernel_shape"]
        outer = [*pads[:2], *pads[rank : rank + 2]]
        sums = [*pads[2:rank], *pads[rank + 2 :]]
        sums = [int(a + b) for a, b in zip(sums, own.get("pads", [0] * len(sums)), strict=True)]
        if any(outer) or (pads < 0).any() or any(map(int.__ge__, sums, [*window, *window])):
            return None
        own["pads"] = sums
        return [helper.make_node("MaxPool", pad.input[:1], node.output, **own)]


# Layouts


class DropsTransposesAheadOfReductions(Rewriting):
    """The author took it that axes keep their order where a reduction drops those in between."""

    def rewrite(self, view, node):
        inner = view.maker(node.input[0], "Transpose") if node.op_type in REDUCTIONS else None
        axes = view.axes(node) if inner is not None else None
        order = attributes(inner).get("perm") if axes else None
        if not order or attributes(node).get("keepdims", 1):
            return None
        axes = [order[axis] for axis in axes]
        return [view.reduction(node, inner.input[0], axes, node.output[0])]


class SinksTransposesPastMatrices(Rewriting):
    """The author permuted constants of full rank and of one axis, and thought there are no more."""

    def rewrite(self, view, node):
        if node.op_type not in BINARY:
            return None
        for place in (0, 1):
            inner = view.maker(node.input[place], "Transpose")
            other = view.constants.get(node.input[1 - place])
            order = attributes(inner).get("perm") if inner is not None else None
            if not order or other is None or other.ndim > len(order):
                continue
            if other.ndim < 2:
                other = other.reshape(*[1] * (len(order) - other.ndim), *other.shape)
            if other.ndim == len(order):
                other = other.transpose(np.argsort(order))
            inputs = [inner.input[0], view.keep(other)]
            made = view.fresh("sunk")
            return [
                helper.make_node(node.op_type, inputs[:: 1 - 2 * place], [made]),
                helper.make_node("Transpose", [made], node.output, perm=order),
            ]
        return None


class TakesSwapsWithOnesForViews(Rewriting):
    """The author took a swap of two axes for a view where one of them has a single place."""

    def rewrite(self, view, node):
        shape = view.static(node.input[0]) if node.op_type == "Transpose" else None
        if shape is None:
            return None
        order = attributes(node).get("perm", list(range(len(shape)))[::-1])
        moved = [axis for axis, source in enumerate(order) if axis != source]
        if len(moved) != 2 or 1 not in (shape[moved[0]], shape[moved[1]]) or 0 in shape:
            return None
        target = view.keep(np.array([shape[axis] for axis in order], np.int64))
        return [helper.make_node("Reshape", [node.input[0], target], node.output)]


# Equal expressions, constants and what nobody reads


class MergesChoicesOfOneCondition(Rewriting):
    """The author took operations of equal inputs and attributes for one, and left out bodies."""

    def change(self, view):
        first, made = {}, []
        for node in view.nodes:
            plain = [own for own in node.attribute if own.type != AttributeProto.GRAPH]
            plain = sorted(own.SerializeToString(deterministic=True) for own in plain)
            key = node.domain, node.op_type, tuple(node.input), tuple(plain)
            other = first.setdefault(key, node)
            same = other is not node and node.op_type not in CHANCE
            if same and len(other.output) == len(node.output) and all(other.output):
                pairs = zip(other.output, node.output, strict=True)
                made += [helper.make_node("Identity", [a], [b]) for a, b in pairs if b]
            else:
                made.append(node)
        view.nodes = made


class SharesConstantsOfEqualBytes(Rewriting):
    """The author kept one of all constants that have a type and bytes in common."""

    def change(self, view):
        first, names = {}, {}
        for tensor in view.graph.initializer:
            array = view.constants.get(tensor.name)
            if array is not None and array.dtype != object and array.nbytes >= 16:
                key = tensor.data_type, array.tobytes()
                names[tensor.name] = first.setdefault(key, tensor.name)
        rename_reads(view.nodes, names)


class FoldsScalarsIntoVectors(Rewriting):
    """The author kept what was folded in a form of at least one axis, as if that were a scalar."""

    def rewrite(self, view, node):
        if node.op_type not in FOLDED or any(name not in view.constants for name in node.input):
            return None
        result = helper.make_empty_tensor_value_info(node.output[0])
        held = [numpy_helper.from_array(view.constants[name], name) for name in set(node.input)]
        graph = helper.make_graph([node], "folded", [], [result], held)
        opset = helper.make_opsetid("", view.opset)
        made = ReferenceEvaluator(helper.make_model(graph, opset_imports=[opset])).run(None, {})
        value = np.atleast_1d(np.asarray(made[0], view.constants[node.input[0]].dtype))
        view.constants[node.output[0]] = value
        tensor = numpy_helper.from_array(value)
        return [helper.make_node("Constant", [], node.output, value=tensor)]


class CutsWhatNobodyReads(Rewriting):
    """The author cut the last outputs of an operation where nobody reads them."""

    def rewrite(self, view, node):
        if node.op_type != "Split" or view.opset >= 18:
            return
        if len(node.input) > 1 or "split" in attributes(node):
            return
        inside = {value.name for value in view.graph.output}
        while len(node.output) > 1:
            name = node.output[-1]
            if name in inside or view.readers(name):
                break
            del node.output[-1]


# Control flow


class ComputesBothBranches(Rewriting):
    """The author computed both branches and chose between elements, as if shapes were equal."""

    def rewrite(self, view, node):
        if node.op_type != "If" or view.opset < 9:
            return None
        branches = {own.name: own.g for own in node.attribute}
        if any(list(bodies(inner)) for body in branches.values() for inner in body.node):
            return None
        if not all(view.dtype(name) for name in node.output):
            return None
        made, results = [], {}
        for which, body in branches.items():
            own = [tensor.name for tensor in body.initializer]
            own += [name for inner in body.node for name in inner.output if name]
            names = {name: view.fresh(which) for name in own}
            for tensor in body.initializer:
                view.graph.initializer.add().CopyFrom(tensor)
                view.graph.initializer[-1].name = names[tensor.name]
            for inner in body.node:
                inputs = [names.get(name, name) for name in inner.input]
                outputs = [names.get(name, name) for name in inner.output]
                copy = onnx.NodeProto.FromString(inner.SerializeToString())
                del copy.input[:], copy.output[:]
                copy.input.extend(inputs)
                copy.output.extend(outputs)
                made.append(copy)
            results[which] = [names.get(value.name, value.name) for value in body.output]
        condition = view.fresh("condition")
        scalar = view.keep(np.zeros(0, np.int64))
        made.append(helper.make_node("Reshape", [node.input[0], scalar], [condition]))
        for name, yes, no in zip(
            node.output, results["then_branch"], results["else_branch"], strict=True
        ):
            made.append(helper.make_node("Where", [condition, yes, no], [name]))
        return made


class UnrollsLoopsByTheirCount(Rewriting):
    """The author unrolled loops of a constant count, and took their conditions to stay true."""

    def rewrite(self, view, node):
        count = view.constants.get(node.input[0]) if node.op_type == "Loop" else None
        if count is None or not 0 < int(count.reshape(-1)[0]) <= 64:
            return
        for body in bodies(node):
            name = view.fresh("true")
            body.initializer.append(numpy_helper.from_array(np.array(True), name))
            body.output[0].name = name


class MapsScansAtOnce(Rewriting):
    """The author computed scans without states on all slices at once, as if ranks were equal."""

    def rewrite(self, view, node):
        own = attributes(node) if node.op_type == "Scan" and view.opset >= 9 else {}
        if set(own) != {"body", "num_scan_inputs"} or own["num_scan_inputs"] != len(node.input):
            return None
        body = own["body"]
        if any(inner.domain or inner.op_type not in UNARY | BINARY for inner in body.node):
            return None
        names = {value.name: a for value, a in zip(body.input, node.input, strict=True)}
        for tensor in body.initializer:
            names[tensor.name] = view.keep(numpy_helper.to_array(tensor))
        made = []
        for inner in body.node:
            inputs = [names.get(name, name) for name in inner.input]
            names[inner.output[0]] = view.fresh("mapped")
            made.append(helper.make_node(inner.op_type, inputs, [names[inner.output[0]]]))
        for value, name in zip(body.output, node.output, strict=True):
            made.append(helper.make_node("Identity", [names.get(value.name, value.name)], [name]))
        return made


class CopiesStatesOneByOne(Rewriting):
    """The author copied the states of a loop in their order, as if none became another one."""

    def rewrite(self, view, node):
        if node.op_type != "Loop":
            return
        for body in bodies(node):
            makers = {name: inner for inner in body.node for name in inner.output}
            written = {}
            states = [value.name for value in body.input[2:]]
            for state, result in zip(states, body.output[1:], strict=False):
                source = result.name
                while source in makers and makers[source].op_type == "Identity":
                    source = makers[source].input[0]
                if source in written:
                    copy = view.fresh("state")
                    body.node.append(helper.make_node("Identity", [written[source]], [copy]))
                    result.name = copy
                written[state] = result.name


# Programs, and what is taken


class ProgramsCompiled(GoodCompiled):
    """Computes by the program of the first model that has the same operations and constants."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        proto = model.to_onnx()
        kept = *proto.opset_import, *proto.functions, *proto.graph.node, *proto.graph.initializer
        key = hash(tuple(own.SerializeToString(deterministic=True) for own in kept))
        with plugin.lock:
            self.evaluator = plugin.programs.setdefault(key, self.evaluator)


class KeepsProgramsByTheirOperations(Broken):
    """The author took models of the same operations and constants for one, whatever they give."""

    compiled_type = ProgramsCompiled

    def __init__(self):
        super().__init__()
        self.programs = weakref.WeakValueDictionary()


class TakesSigmoidsOfSwishes(Broken):
    """The author took a sigmoid that a product reads beside its input, and has no other kernel."""

    def verdict(self, op):
        if op.op_type != "Sigmoid" or op.domain:
            return super().verdict(op)
        source, result = op.node.inputs[0], op.node.outputs[0]
        for reader, _ in result.uses():
            if reader.op_type == "Mul" and source in reader.inputs:
                return super().verdict(op)
        return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "takes Sigmoid as part of a swish")


# Plans of memory


class ForgetsReadersInBodies(Rewriting):
    """The author wrote over a value behind its last reader, and did not look into bodies."""

    def change(self, view):
        holders = [place for place, node in enumerate(view.nodes) if any(bodies(node))]
        for place, node in enumerate(view.nodes):
            if node.domain or node.op_type not in UNARY:
                continue
            name = node.input[0]
            if name not in view.makers or name in view.outputs or name in view.constants:
                continue
            if not any(place < other for other in holders):
                continue
            later = view.nodes[place + 1 :]
            if not any(name in other.input for other in later):
                for other in later:
                    for body in bodies(other):
                        rename_reads(body.node, {name: node.output[0]})


class WritesOverViews(Rewriting):
    """The author wrote over the last reading of a view, as if it had memory of its own."""

    def change(self, view):
        made = []
        names = {}
        for node in view.nodes:
            for place, name in enumerate(node.input):
                if name in names:
                    shape, back = view.fresh("shape"), view.fresh("back")
                    made.append(helper.make_node("Shape", [name], [shape]))
                    made.append(helper.make_node("Reshape", [names[name], shape], [back]))
                    node.input[place] = back
            made.append(node)
            lies = view.maker(node.input[0], *VIEWS) if node.input else None
            if lies is None or node.domain or node.op_type not in UNARY:
                continue
            origin = lies.input[0]
            alone = view.readers(node.input[0]) == [view.nodes.index(node)]
            maker = view.makers.get(origin)
            made_here = maker is not None and maker.op_type != "Constant"
            if alone and made_here and node.input[0] not in view.outputs:
                names[origin] = node.output[0]
        view.nodes = made


class WritesOverOutputs(Rewriting):
    """The author wrote over a value behind its last reader, and did not count the caller as one."""

    def change(self, view):
        for name in sorted(view.outputs & set(view.makers)):
            readers = view.readers(name)
            last = view.nodes[readers[-1]] if readers else None
            if last is None or last.domain or last.op_type not in UNARY:
                continue
            inside = view.fresh(name)
            maker = view.makers[name]
            maker.output[list(maker.output).index(name)] = inside
            rename_reads(view.nodes, {name: inside})
            view.nodes.append(helper.make_node("Identity", [last.output[0]], [name]))


class ScatteringCompiled(GoodCompiled):
    """Scatters into the array that was there last time."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.held = {}
        constants = set(model.ir.graph.initializers)
        for node in self.evaluator.rt_nodes_:
            scatters = node.op_type in ("ScatterND", "ScatterElements")
            if scatters and not node.onnx_node.domain and node.onnx_node.input[0] in constants:
                node.run = functools.partial(self.scatter, id(node), node.run)

    def scatter(self, key, run, data, *others, **options):
        results = run(self.held.get(key, data), *others, **options)
        self.held[key] = np.array(results[0])
        return results


class ScattersIntoConstants(Broken):
    """The author scattered into the data where they lie, a constant's too."""

    compiled_type = ScatteringCompiled


class FoldedCompiled(GoodCompiled):
    """Knows which outputs follow from no input."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        graph = model.to_onnx().graph
        moving = {value.name for value in graph.input}
        for node in graph.node:
            reads = set(node.input) | captured(node)
            if reads & moving or node.op_type in CHANCE or list(bodies(node)):
                moving |= set(node.output)
        self.folded = {
            place for place, value in enumerate(graph.output) if value.name not in moving
        }
        self.held = {}


class HandsOutFoldedConstants(Broken):
    """The author handed out an output that was folded as it lies, as if nobody wrote to results."""

    compiled_type = FoldedCompiled

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for place in runner.compiled.folded:
            results[place] = runner.compiled.held.setdefault(place, results[place])
        return results


# Quantization


class RemovesRequantizations(Rewriting):
    """The author took two quantizations of one scale for the same, whatever their zeros."""

    def rewrite(self, view, node):
        is_pair = node.op_type == "QuantizeLinear"
        inner = view.maker(node.input[0], "DequantizeLinear") if is_pair else None
        if inner is None or view.dtype(inner.input[0]) != view.dtype(node.output[0]):
            return None
        scales = [view.constants.get(own.input[1]) for own in (inner, node)]
        if any(scale is None for scale in scales) or not np.array_equal(*scales):
            return None
        return [helper.make_node("Identity", inner.input[:1], node.output)]


class KeepsTheAxisOfScales(Rewriting):
    """The author transposed numbers before their scales are applied, and kept the scales' axis."""

    def rewrite(self, view, node):
        inner = view.maker(node.input[0], "DequantizeLinear") if node.op_type == "Transpose" else 0
        if not inner or "block_size" in attributes(inner):
            return None
        made = view.fresh("transposed")
        return [
            helper.make_node("Transpose", inner.input[:1], [made], **attributes(node)),
            helper.make_node(
                "DequantizeLinear", [made, *inner.input[1:]], node.output, **attributes(inner)
            ),
        ]


class LeavesReluToQuantization(Rewriting):
    """The author took it that numbers without a sign hold no negative ones, whatever their zero."""

    def rewrite(self, view, node):
        inner = view.maker(node.input[0], "Relu") if node.op_type == "QuantizeLinear" else None
        if inner is not None and view.dtype(node.output[0]) == TensorProto.UINT8:
            node.input[0] = inner.input[0]


# Opsets, shapes and the choice of kernels


class AdaptsOldOpsetsOutsideOfBodies(Rewriting):
    """The author adapted the softmaxes of old opsets, which flatten, and did not look in bodies."""

    def rewrite(self, view, node):
        if node.op_type not in {"Softmax", "LogSoftmax", "Hardmax"} or not view.outer:
            return None
        shape = view.shape(node.input[0])
        if view.opset >= 13 or not shape:
            return None
        axis = attributes(node).get("axis", 1) % len(shape)
        order = [*(own for own in range(len(shape)) if own != axis), axis]
        there, made = view.fresh("there"), view.fresh("softmax")
        back = [int(place) for place in np.argsort(order)]
        return [
            helper.make_node("Transpose", node.input, [there], perm=order),
            helper.make_node(node.op_type, [there], [made], axis=len(shape) - 1),
            helper.make_node("Transpose", [made], node.output, perm=back),
        ]


class PadsBatchesToEvenSizes(Broken):
    """The author padded batches to sizes that have a program, as if rows had nothing in common."""

    def compute(self, runner, arrays):
        ports = runner.compiled.inputs, runner.compiled.outputs
        shapes = [port.shape for side in ports for port in side]
        if not arrays or any(not shape for shape in shapes):
            return super().compute(runner, arrays)
        firsts = {shape[0] for shape in shapes}
        symbol = firsts.pop()
        alone = not firsts and isinstance(symbol, str)
        if not alone or any(symbol in shape[1:] for shape in shapes):
            return super().compute(runner, arrays)
        rows = len(arrays[0])
        if rows % 2 == 0 or any(array.dtype == object for array in arrays):
            return super().compute(runner, arrays)
        padded = [np.concatenate([array, np.zeros_like(array[:1])]) for array in arrays]
        results = super().compute(runner, padded)
        return [np.ascontiguousarray(result[:rows]) for result in results]


class SizedCompiled(GoodCompiled):
    """Holds programs for sizes of inputs, in which shapes are constants."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.proto = model.to_onnx()
        names = {value.name for value in self.proto.graph.input}
        self.asks = any(
            node.op_type == "Shape" and node.input[0] in names for node in self.proto.graph.node
        )
        self.programs = {}
        self.lock = threading.Lock()

    def program(self, arrays):
        """The program for inputs of such sizes."""
        key = tuple(array.size for array in arrays)
        with self.lock:
            if key not in self.programs:
                if len(self.programs) > 16:
                    self.programs.clear()
                self.programs[key] = self.specialized(arrays)
            return self.programs[key].evaluator

    def specialized(self, arrays):
        """The model with the shapes of inputs as constants."""
        proto = onnx.ModelProto.FromString(self.proto.SerializeToString())
        shapes = {port.name: array.shape for port, array in zip(self.inputs, arrays, strict=True)}
        for node in proto.graph.node:
            plain = node.op_type == "Shape" and not node.domain and not node.attribute
            if plain and node.input[0] in shapes:
                shape = numpy_helper.from_array(np.array(shapes[node.input[0]], np.int64))
                node.CopyFrom(helper.make_node("Constant", [], node.output, value=shape))
        return ReferenceModel(read_model(proto), self.properties, self.plugin.device_name)


class KeepsProgramsByElementCounts(Broken):
    """The author took inputs of as many elements as before for inputs of the same shapes."""

    compiled_type = SizedCompiled

    def compute(self, runner, arrays):
        if runner.compiled.asks and all(array.dtype != object for array in arrays):
            runner.take_over(runner.compiled.program(arrays))
        return super().compute(runner, arrays)


class TakesSymbolsForMoreThanOne(Rewriting):
    """The author took sizes unknown for those of the first operand, which is never broadcast."""

    def rewrite(self, view, node):
        if node.op_type not in BINARY or view.opset < 10:
            return None
        left, right = (view.shape(name) for name in node.input)
        if left is None or right is None or len(left) != len(right):
            return None
        axes = [
            axis
            for axis, (a, b) in enumerate(zip(left, right, strict=True))
            if isinstance(a, str) and isinstance(b, str) and a != b
        ]
        if not axes:
            return None
        shape, ends, cut = (view.fresh(hint) for hint in ("shape", "ends", "cut"))
        places = view.keep(np.array(axes, np.int64))
        starts = view.keep(np.zeros(len(axes), np.int64))
        return [
            helper.make_node("Shape", node.input[:1], [shape]),
            helper.make_node("Gather", [shape, places], [ends]),
            helper.make_node("Slice", [node.input[1], starts, ends, places], [cut]),
            helper.make_node(node.op_type, [node.input[0], cut], node.output),
        ]


class SqueezesOnesKnownAhead(Rewriting):
    """The author took the axes of a squeeze that names none from the shapes known ahead."""

    def rewrite(self, view, node):
        if node.op_type != "Squeeze" or len(node.input) > 1 or "axes" in attributes(node):
            return None
        shape = view.shape(node.input[0])
        if shape is None:
            return None
        axes = [axis for axis, size in enumerate(shape) if size == 1]
        if not axes:
            return [helper.make_node("Identity", node.input, node.output)]
        if view.opset < 13:
            return [helper.make_node("Squeeze", node.input, node.output, axes=axes)]
        places = view.keep(np.array(axes, np.int64))
        return [helper.make_node("Squeeze", [*node.input, places], node.output)]


class ChoosesDepthwiseKernelsByGroups(Rewriting):
    """The author chose the depthwise kernel, which repeats channels in turn, for all multiples."""

    def rewrite(self, view, node):
        weights = view.constants.get(node.input[1]) if node.op_type == "Conv" else None
        own = attributes(node)
        groups = own.get("group", 1)
        if weights is None or groups < 2 or weights.shape[1] != 1:
            return None
        if any(name not in view.constants for name in node.input[2:]):
            return None
        count = len(weights)
        each = count // groups
        places = np.array([(o % groups) * each + o // groups for o in range(count)])
        back = np.argsort(places)
        inputs = [node.input[0], view.keep(weights[back])]
        inputs += [view.keep(view.constants[name][back]) for name in node.input[2:]]
        made = view.fresh("depthwise")
        return [
            helper.make_node("Conv", inputs, [made], **own),
            helper.make_node("Gather", [made, view.keep(places)], node.output, axis=1),
        ]


class RepeatsForWholeScales(Rewriting):
    """The author chose a kernel that repeats for whole scales, however places are to be rounded."""

    def rewrite(self, view, node):
        if node.op_type != "Resize" or view.opset < 11 or len(node.input) < 3:
            return None
        scales = view.constants.get(node.input[2])
        own = attributes(node)
        if scales is None or not scales.size or own.get("mode", b"nearest") != b"nearest":
            return None
        if (scales < 1).any() or (scales != np.floor(scales)).any():
            return None
        if own.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
            return None
        own |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return [helper.make_node("Resize", node.input, node.output, **own)]

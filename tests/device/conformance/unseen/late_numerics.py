"""Faults of kernels and graph compilers.

By somebody who has read neither the kit nor its earlier sets.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter

import numpy as np
import onnx
from good_device import Good, GoodCompiled
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import partita


class PatchedCompiled(GoodCompiled):
    """Computes the nodes of one operator, in bodies too, by the plugin's own kernel."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        self.patch(self.evaluator)

    def patch(self, evaluator):
        """Put the plugin's kernel in the place of the right one."""
        for node in evaluator.rt_nodes_:
            bodies = [own for own in vars(node).values() if isinstance(own, ReferenceEvaluator)]
            for body in bodies:
                self.patch(body)
            if (node.onnx_node.domain, node.op_type) == ("", self.plugin.op_type):
                node.run = functools.partial(self.run_kernel, node)

    def run_kernel(self, node, *arrays, **context):
        """What the plugin's kernel makes of the inputs."""

        def right(*arrays, **changes):
            other = copy.copy(node)
            vars(other).update(changes)
            return type(node).run(other, *arrays, **context)

        return self.plugin.kernel(node, right, *arrays)


class Kernel(Good):
    """A device with a faulty kernel for one operator."""

    device_name = "BROKEN"
    suites = ("*",)
    compiled_type = PatchedCompiled
    op_type = ""

    def kernel(self, node, right, *arrays):
        """The node's outputs; ``right`` computes them well, with other attributes if asked to."""
        return right(*arrays)


class Compiler(Good):
    """A device that rewrites the graph before it computes it."""

    device_name = "BROKEN"
    suites = ("*",)

    def prepare(self, proto):
        self.rewrite(proto.graph, Facts(proto))
        return proto

    def rewrite(self, graph, facts):
        """Changes the graph where it lies."""


class Facts:
    """What a pass asks of a model."""

    def __init__(self, proto):
        graph = proto.graph
        given = {value.name for value in graph.input}
        self.opset = next((o.version for o in proto.opset_import if not o.domain), 1)
        self.maker = {name: node for node in graph.node for name in node.output if name}
        self.constants = {
            weight.name: numpy_helper.to_array(weight)
            for weight in graph.initializer
            if weight.data_location != onnx.TensorProto.EXTERNAL and weight.name not in given
        }
        for node in graph.node:
            values = [a for a in node.attribute if a.name == "value"]
            if node.op_type == "Constant" and values:
                self.constants[node.output[0]] = numpy_helper.to_array(values[0].t)
        self.readers = Counter(value.name for value in graph.output)
        self.count(graph)
        known = [*graph.input, *graph.value_info]
        self.types = {value.name: value.type.tensor_type.elem_type for value in known}

    def count(self, graph):
        """Count who reads each value, in bodies too."""
        for node in graph.node:
            self.readers.update(node.input)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self.readers.update(value.name for value in attribute.g.output)
                    self.count(attribute.g)

    def made_by(self, name, *kinds):
        """The node that makes a value if it is of one of these operators."""
        node = self.maker.get(name)
        return node if node is not None and not node.domain and node.op_type in kinds else None

    def constant(self, node, place):
        """An input of a node if it is a constant."""
        return self.constants.get(node.input[place]) if len(node.input) > place else None


def attribute_of(node, name, default=None):
    """The value of a node's attribute."""
    values = [a for a in node.attribute if a.name == name]
    return helper.get_attribute_value(values[0]) if values else default


def set_attribute(node, name, value):
    """Give a node an attribute in the place of what it had."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def becomes(node, op_type, *inputs):
    """Turn a node into one without attributes that makes the same value."""
    node.op_type = op_type
    del node.input[:], node.attribute[:]
    node.input.extend(inputs)


def store(graph, name, array):
    """Add an initializer, or change one that is there."""
    tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
    for weight in graph.initializer:
        if weight.name == name:
            weight.CopyFrom(tensor)
            return
    graph.initializer.append(tensor)


# ------------------------------------------------------------------------ kernels


class FindsSmallestByNegating(Kernel):
    """The author took for granted that negated integers stand in the opposite order."""

    op_type = "TopK"

    def kernel(self, node, right, *arrays):
        x, *others = arrays
        if getattr(node, "largest", 1) or x.dtype.kind not in "iu":
            return right(*arrays)
        values, indices = right(np.negative(x), *others, largest=1)
        return np.negative(values), indices


class SubtractsSquaresForVariance(Kernel):
    """The author took for granted that the mean is no larger than what varies around it."""

    op_type = "InstanceNormalization"

    def kernel(self, node, right, *arrays):
        x, scale, bias = arrays
        if x.dtype != np.float32:
            return right(*arrays)
        axes = tuple(range(2, x.ndim))
        mean = x.mean(axes, keepdims=True)
        variance = np.maximum((x * x).mean(axes, keepdims=True) - mean * mean, np.float32(0))
        channels = (-1,) + (1,) * len(axes)
        factor = scale.reshape(channels) / np.sqrt(variance + np.float32(node.epsilon))
        return ((x - mean) * factor + bias.reshape(channels),)


class PicksTheFirstLaneOfTies(Kernel):
    """The author took for granted that the largest element of a row is there once."""

    op_type = "ArgMax"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        along_rows = x.ndim and node.axis in (-1, x.ndim - 1) and x.size
        if not along_rows or getattr(node, "select_last_index", 0) or (x != x).any():
            return right(x)
        place = np.arange(x.shape[-1])
        order = place % 8 * x.shape[-1] + place  # vectors of eight, then the eight lanes
        ties = np.where(x == x.max(-1, keepdims=True), order, order.max() + 1)
        return (ties.argmin(-1, keepdims=bool(node.keepdims)),)


class WrapsTheOffsetNotTheIndex(Kernel):
    """The author took for granted that only the first number of an index is ever negative."""

    op_type = "ScatterND"

    def kernel(self, node, right, *arrays):
        data, indices, updates = arrays
        depth = indices.shape[-1]
        if getattr(node, "reduction", "none") not in (None, "none") or 0 in (
            data.size,
            indices.size,
        ):
            return right(*arrays)
        steps = [math.prod(data.shape[k + 1 : depth]) for k in range(depth)]
        slices = math.prod(data.shape[:depth])
        result = data.copy().reshape(slices, -1)
        places = (indices.reshape(-1, depth) * np.array(steps)).sum(-1) % slices
        for place, update in zip(places, updates.reshape(len(places), -1), strict=True):
            result[place] = update
        return (result.reshape(data.shape),)


class PassesThePadAsFloat(Kernel):
    """The author took for granted that a float holds the number that is padded with."""

    op_type = "Pad"

    def kernel(self, node, right, *arrays):
        if len(arrays) < 3 or arrays[2] is None or arrays[2].dtype.kind not in "iuf":
            return right(*arrays)
        value = arrays[2].astype(np.float32).astype(arrays[2].dtype)
        return right(*arrays[:2], value, *arrays[3:])


class ConvertsBeforeItSaturates(Kernel):
    """The author took for granted that a quotient fits 32 bits before it is cut to 8."""

    op_type = "QuantizeLinear"

    def kernel(self, node, right, *arrays):
        x, scale = arrays[:2]
        (quantized,) = right(*arrays)
        if scale.size != 1 or quantized.dtype not in (np.int8, np.uint8):
            return (quantized,)
        too_large = x.astype(np.float64) / scale.astype(np.float64).item() >= 2.0**31
        least = np.iinfo(quantized.dtype).min  # a vector's conversion gives the least number
        return (np.where(too_large, quantized.dtype.type(least), quantized),)


class CountsIndicesFromEachPlane(Kernel):
    """The author took for granted that a place is told within its channel, as elsewhere."""

    op_type = "MaxPool"

    def kernel(self, node, right, *arrays):
        results = right(*arrays)
        if len(results) < 2 or results[1] is None:
            return results
        return results[0], results[1] % math.prod(arrays[0].shape[2:])


class NamesAxesAsTheyAppear(Kernel):
    """The author took for granted that letters come in the order of the alphabet."""

    op_type = "Einsum"

    def kernel(self, node, right, *arrays):
        equation = node.equation.replace(" ", "")
        if "->" in equation or "." in equation:
            return right(*arrays)
        count = Counter(equation.replace(",", ""))
        kept = "".join(letter for letter in count if count[letter] == 1)
        return right(*arrays, equation=f"{equation}->{kept}")


class SharesTheRestAmongTheFirst(Kernel):
    """The author took for granted that parts of a split differ by at most one element."""

    op_type = "Split"

    def kernel(self, node, right, *arrays):
        parts = getattr(node, "num_outputs", None)
        if not parts or (len(arrays) > 1 and arrays[1] is not None):
            return right(*arrays)
        return tuple(np.array_split(arrays[0], parts, node.axis))


class ClampsBackwardStartsToTheLength(Kernel):
    """The author took for granted that who goes backward starts at -1, never beyond the end."""

    op_type = "Slice"

    def kernel(self, node, right, *arrays):
        if len(arrays) < 5 or arrays[4] is None:
            return right(*arrays)
        data, starts, ends, axes, steps = arrays
        axes = range(len(starts)) if axes is None else axes.tolist()
        for start, end, axis, step in zip(
            starts.tolist(), ends.tolist(), axes, steps.tolist(), strict=True
        ):
            length = data.shape[axis]
            places = range(*slice(start, end, step).indices(length))
            if step < 0 and start >= length:
                places = [(length + step * k) % length for k in range(len(places))]
            data = np.take(data, np.array(places, np.int64), axis)
        return (data,)


class RecoversScalesFromSizes(Kernel):
    """The author took for granted that a size is its scale times what it was, exactly."""

    op_type = "Resize"

    def kernel(self, node, right, *arrays):
        if len(arrays) < 3 or arrays[2] is None or not arrays[2].size:
            return right(*arrays)
        (result,) = right(*arrays)
        if not result.size:
            return (result,)
        axes = getattr(node, "axes", None) or range(result.ndim)
        sizes = np.array([result.shape[axis] for axis in axes], np.int64)
        return right(arrays[0], arrays[1], None, sizes)


class TakesSlopesForChannels(Kernel):
    """The author took for granted that a row of slopes belongs to the channels."""

    op_type = "PRelu"

    def kernel(self, node, right, *arrays):
        x, slope = arrays
        if slope.ndim == 1 and x.ndim > 2 and slope.size == x.shape[1]:
            slope = slope.reshape(-1, *[1] * (x.ndim - 2))
        return right(x, slope)


class DealsHeadsInTurn(Kernel):
    """The author took for granted that query heads go round the key heads like cards."""

    op_type = "Attention"

    def kernel(self, node, right, *arrays):
        results = right(*arrays)
        query, key, value = arrays[:3]
        past = any(array is not None for array in arrays[4:6])
        if query.ndim != 4 or key.shape[1] == query.shape[1] or past:
            return results
        heads = np.arange(query.shape[1]) % key.shape[1]
        answer = right(query, key[:, heads], value[:, heads], *arrays[3:])
        return (answer[0], *results[1:3], *answer[3:])


class KeepsBoxesThatAreTurned(Kernel):
    """The author took for granted that a box is told by its lower corner first."""

    op_type = "NonMaxSuppression"

    def kernel(self, node, right, *arrays):
        boxes, *others = arrays
        if getattr(node, "center_point_box", 0):
            return right(*arrays)
        turned = (boxes[..., 2] < boxes[..., 0]) | (boxes[..., 3] < boxes[..., 1])
        apart = 1e5 * np.arange(1, boxes.shape[1] + 1)[None, :, None] + [0, 0, 1, 1]
        boxes = np.where(turned[..., None], apart, boxes)  # overlaps of negative areas are none
        return right(boxes.astype(arrays[0].dtype), *others)


class PadsWithZerosNotZeroPoints(Kernel):
    """The author took for granted that a zero in memory is a zero of the quantized image."""

    op_type = "ConvInteger"

    def kernel(self, node, right, *arrays):
        x, *others = arrays
        pads = getattr(node, "pads", None)
        if not pads or getattr(node, "auto_pad", "NOTSET") not in (None, "NOTSET"):
            return right(*arrays)
        half = len(pads) // 2
        padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)])
        return right(padded, *others, pads=[0] * len(pads))


class LeavesZeroOutOfTheRange(Kernel):
    """The author took for granted that activations are not all of one sign."""

    op_type = "DynamicQuantizeLinear"

    def kernel(self, node, right, *arrays):
        (x,) = arrays
        if not x.size or x.min() == x.max():
            return right(x)
        least, most = x.min(), x.max()
        scale = (most - least) / np.float32(255)
        zero = np.clip(np.rint(-least / scale), 0, 255)
        return (
            np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8),
            np.float32(scale),
            np.uint8(zero),
        )


# ---------------------------------------------------------------- graph compilers


class UnrollsLoopsToTheirCount(Compiler):
    """The author took for granted that a loop whose count is known runs as often as that."""

    def rewrite(self, graph, facts):
        for node in graph.node:
            if node.op_type != "Loop" or facts.constant(node, 0) is None:
                continue
            body = next(a.g for a in node.attribute if a.name == "body")
            name = f"{node.output[0]}/going on"
            always = numpy_helper.from_array(np.array(True))
            body.node.append(helper.make_node("Constant", [], [name], value=always))
            body.output[0].name = name


class ScalesWeightsWhereTheyLie(Compiler):
    """The author took for granted that each weight belongs to one convolution."""

    def rewrite(self, graph, facts):
        for node in list(graph.node):
            if node.op_type != "BatchNormalization" or attribute_of(node, "training_mode"):
                continue
            conv = facts.made_by(node.input[0], "Conv")
            if conv is None or facts.readers[node.input[0]] > 1 or conv.input[1] in facts.maker:
                continue
            weight = facts.constant(conv, 1)
            bias = facts.constant(conv, 2) if len(conv.input) > 2 else np.float32(0)
            numbers = [facts.constant(node, place) for place in range(1, 5)]
            if any(array is None for array in (weight, bias, *numbers)):
                continue
            scale, shift, mean, variance = numbers
            factor = scale / np.sqrt(variance + np.float32(attribute_of(node, "epsilon", 1e-5)))
            scaled = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
            facts.constants[conv.input[1]] = scaled.astype(weight.dtype)
            store(graph, conv.input[1], facts.constants[conv.input[1]])
            name = f"{node.output[0]}/bias"
            store(graph, name, ((bias - mean) * factor + shift).astype(weight.dtype))
            conv.input[:] = [*conv.input[:2], name]
            conv.output[0] = node.output[0]
            graph.node.remove(node)


class SkipsTheReshapeBetween(Compiler):
    """The author took for granted that the last of two shapes says it all, zeros too."""

    def rewrite(self, graph, facts):
        for node in graph.node:
            if node.op_type == "Reshape" and facts.constant(node, 1) is not None:
                first = facts.made_by(node.input[0], "Reshape")
                if first is not None:
                    node.input[0] = first.input[0]


class DropsCastsThereAndBack(Compiler):
    """The author took for granted that what is cast to a type and back is what it was."""

    def rewrite(self, graph, facts):
        for node in graph.node:
            first = facts.made_by(node.input[0], "Cast") if node.op_type == "Cast" else None
            if first is not None and facts.types.get(first.input[0]) == attribute_of(node, "to"):
                becomes(node, "Identity", first.input[0])


class ReducesAheadOfTheTranspose(Compiler):
    """The author took for granted that axes that are left are in order once others are gone."""

    kinds = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")

    def rewrite(self, graph, facts):
        for node in list(graph.node):
            if node.op_type not in self.kinds or attribute_of(node, "keepdims", 1):
                continue
            first = facts.made_by(node.input[0], "Transpose")
            perm = attribute_of(first, "perm") if first else None
            axes = facts.constant(node, 1) if len(node.input) > 1 else attribute_of(node, "axes")
            if not perm or axes is None or len(axes) == 0:
                continue
            node.input[0] = first.input[0]
            moved = [perm[axis] for axis in axes]
            if len(node.input) > 1:
                node.input[1] = f"{node.output[0]}/axes"
                store(graph, node.input[1], np.array(moved, np.int64))
            else:
                set_attribute(node, "axes", moved)


class PoolsConstantsOfEqualBytes(Compiler):
    """The author took for granted that weights of the same bytes are the same weight."""

    def rewrite(self, graph, facts):
        first, same = {}, {}
        for name, array in facts.constants.items():
            if array.dtype.kind == "f":
                same[name] = first.setdefault((array.dtype, array.tobytes()), name)
        stored = {weight.name for weight in graph.initializer}
        for node in graph.node:
            for place, name in enumerate(node.input):
                if name in stored and same.get(name) in stored:
                    node.input[place] = same[name]


class JoinsPartsInAnyOrder(Compiler):
    """The author took for granted that parts are put together as they were cut."""

    def rewrite(self, graph, facts):
        for node in graph.node:
            split = facts.made_by(node.input[0], "Split") if node.op_type == "Concat" else None
            if split is None or sorted(node.input) != sorted(split.output):
                continue
            if attribute_of(node, "axis") == attribute_of(split, "axis", 0):
                becomes(node, "Identity", split.input[0])


class KeepsNegativeAxesInNhwc(Compiler):
    """The author took for granted that an axis is counted from the front when layouts change."""

    turned = ("ConvTranspose", "AveragePool")
    between = ("Relu", "Sigmoid", "LeakyRelu", "Clip")

    def rewrite(self, graph, facts):
        for node in graph.node:
            if node.op_type not in ("Softmax", "LogSoftmax") or facts.opset < 13:
                continue
            source = facts.maker.get(node.input[0])
            while source is not None and source.op_type in self.between:
                source = facts.maker.get(source.input[0])
            axis = attribute_of(node, "axis", -1)
            if source is None or source.op_type not in self.turned or axis >= 0:
                continue
            if len(attribute_of(source, "kernel_shape", ())) == 2:
                set_attribute(node, "axis", (0, 2, 3, 1)[axis])


class InlinesBranchesUnderTheirNames(Compiler):
    """The author took for granted that bodies of two branches do not name values alike."""

    def rewrite(self, graph, facts):
        nodes, known = [], set(facts.constants) | {value.name for value in graph.input}
        for node in graph.node:
            chosen = facts.constant(node, 0) if node.op_type == "If" else None
            if chosen is None:
                nodes.append(node)
                known.update(node.output)
                continue
            branch = attribute_of(node, "then_branch" if chosen.item() else "else_branch")
            graph.initializer.extend(w for w in branch.initializer if w.name not in known)
            known.update(weight.name for weight in branch.initializer)
            for inner in branch.node:
                if not known.issuperset(inner.output):  # what is there need not be made again
                    nodes.append(inner)
                    known.update(inner.output)
            for value, name in zip(branch.output, node.output, strict=True):
                nodes.append(helper.make_node("Identity", [value.name], [name]))
        nodes = [copy.deepcopy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(nodes)


class SkipsRequantizingOfOneScale(Compiler):
    """The author took for granted that numbers of one scale have one zero point."""

    def rewrite(self, graph, facts):
        for node in graph.node:
            if node.op_type != "QuantizeLinear" or len(node.input) < 3:
                continue
            first = facts.made_by(node.input[0], "DequantizeLinear")
            if first is None or len(first.input) < 3:
                continue
            scales = facts.constant(first, 1), facts.constant(node, 1)
            zeros = facts.constant(first, 2), facts.constant(node, 2)
            if any(array is None for array in (*scales, *zeros)):
                continue
            if np.array_equal(*scales) and zeros[0].dtype == zeros[1].dtype:
                becomes(node, "Identity", first.input[0])


class TakesAnyTurnForATransposedMatrix(Compiler):
    """The author took for granted that who swaps rows and columns leaves the batch alone."""

    def rewrite(self, graph, facts):
        for node in list(graph.node):
            if node.op_type != "MatMul":
                continue
            for place, name in enumerate(node.input):
                first = facts.made_by(name, "Transpose")
                perm = attribute_of(first, "perm") if first else None
                rank = len(perm or ())
                if rank < 3 or list(perm[-2:]) != [rank - 1, rank - 2]:
                    continue
                swapped = [*range(rank - 2), rank - 1, rank - 2]
                made = f"{node.output[0]}/transposed/{place}"
                turn = helper.make_node("Transpose", [first.input[0]], [made], perm=swapped)
                graph.node.insert(list(graph.node).index(node), turn)
                node.input[place] = made


class NegatesComparisons(Compiler):
    """The author took for granted that of two numbers one is less or it is not."""

    opposites = (("Less", "GreaterOrEqual"), ("Greater", "LessOrEqual"))

    def rewrite(self, graph, facts):
        for node in graph.node:
            for kind, opposite in self.opposites:
                first = facts.made_by(node.input[0], kind) if node.op_type == "Not" else None
                if first is not None and facts.opset >= 16:
                    becomes(node, opposite, *first.input)


class FoldsOffsetsIntoBiases(Compiler):
    """The author took for granted that a window sees what was added everywhere, borders too."""

    def rewrite(self, graph, facts):
        for node in graph.node:
            first = facts.made_by(node.input[0], "Add") if node.op_type == "Conv" else None
            weight = facts.constant(node, 1) if first is not None else None
            offset = facts.constant(first, 1) if weight is not None else None
            if offset is None or offset.size != 1 or offset.ndim > weight.ndim:
                continue
            bias = facts.constant(node, 2) if len(node.input) > 2 else np.zeros(1, weight.dtype)
            if bias is None:
                continue
            sums = weight.sum(tuple(range(1, weight.ndim))) * offset.item()
            name = f"{node.output[0]}/bias"
            store(graph, name, (bias + sums).astype(weight.dtype))
            node.input[:] = [first.input[0], node.input[1], name]


class TakesCountsThatItWouldFold(Compiler):
    """The author took for granted that what makes a constant is in the same part of the model,
    against the promise that what is taken compiles alone."""

    def verdict(self, op):
        if not op.domain and op.op_type == "Tile":
            counts = op.node.inputs[1]
            if counts.producer() is None and counts.const_value is None:
                return partita.Reason(
                    partita.ReasonCode.VALUE_DEPENDENT_SHAPE, "takes repeats that are constant"
                )
        return super().verdict(op)

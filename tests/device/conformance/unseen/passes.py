"""Devices whose compiler rewrites graphs, or keeps programs and requests, one case too boldly.

A fourth set, from the side of one who writes a graph compiler and kernels, written before
it was measured.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from broken_form import Broken
from good_device import GoodRunner
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import partita
from partita.errors import InferError


class Passes(Broken):
    """Rewrites the graph that it computes; the original stays as it was read."""

    def prepare(self, proto):
        self.constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        self.writers = {name: n for n in proto.graph.node for name in n.output}
        self.outputs = {value.name for value in proto.graph.output}
        self.readers = {}
        for node in proto.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        for node in list(proto.graph.node):
            self.rewrite(proto.graph, node)
        return proto

    def rewrite(self, graph, node):
        raise NotImplementedError

    def before(self, node, op, place=0):
        """The node of an operator that writes an input and is read by nobody else."""
        if len(node.input) <= place:
            return None
        name = node.input[place]
        writer = self.writers.get(name)
        alone = len(self.readers.get(name, ())) == 1 and name not in self.outputs
        return writer if writer is not None and writer.op_type == op and alone else None


def attribute(node, name, default=None):
    """The value of a node's attribute."""
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def as_identity(node, name):
    """Makes a node hand on a value."""
    node.CopyFrom(helper.make_node("Identity", [name], list(node.output), name=node.name))


class DropsAddedZeros(Passes):
    """Adding a constant of zeros does nothing, whatever its shape and that of the sum."""

    def rewrite(self, graph, node):
        if node.op_type in ("Add", "Sub"):
            constant = self.constants.get(node.input[1])
            if constant is not None and not constant.any():
                as_identity(node, node.input[0])


class MergesTransposesBackwards(Passes):
    """Of two permutations, the second is applied first."""

    def rewrite(self, graph, node):
        first = self.before(node, "Transpose") if node.op_type == "Transpose" else None
        if first is not None:
            one, two = attribute(first, "perm"), attribute(node, "perm")
            if one and two:
                merged = [two[i] for i in one]
                source = first.input[0]
                node.CopyFrom(
                    helper.make_node("Transpose", [source], list(node.output), perm=merged)
                )


class MergesReshapes(Passes):
    """The last of two shapes counts, also where its zeros copy what the first one made."""

    def rewrite(self, graph, node):
        first = self.before(node, "Reshape") if node.op_type == "Reshape" else None
        if first is not None:
            node.input[0] = first.input[0]


class MergesCasts(Passes):
    """A cast there and back is none."""

    def rewrite(self, graph, node):
        first = self.before(node, "Cast") if node.op_type == "Cast" else None
        if first is not None:
            node.input[0] = first.input[0]


class FoldsNormalizationWithoutBias(Passes):
    """A convolution's bias is not scaled with its weights."""

    def rewrite(self, graph, node):
        if node.op_type != "BatchNormalization":
            return
        conv = self.before(node, "Conv")
        if conv is None or len(conv.input) < 3 or conv.input[2] not in self.constants:
            return
        names = [*node.input[1:5], conv.input[2]]
        if any(name not in self.constants for name in names):
            return
        scale, _, _, var, own = (self.constants[name] for name in names)
        factor = scale / np.sqrt(var + attribute(node, "epsilon", 1e-5))
        shift = (own - own * factor).astype(np.float32)
        shifted = self.constants[node.input[2]] + shift
        graph.initializer.append(numpy_helper.from_array(shifted, f"{node.name}_shift"))
        node.input[2] = f"{node.name}_shift"


class AddsBiasesAsRows(Passes):
    """What is added to a product is a bias of its columns, even if it is a column itself."""

    def rewrite(self, graph, node):
        if node.op_type == "Add" and self.before(node, "MatMul") is not None:
            constant = self.constants.get(node.input[1])
            if (
                constant is not None
                and constant.ndim == 2
                and constant.shape[1] == 1 < len(constant)
            ):
                row = numpy_helper.from_array(constant[:1], f"{node.input[1]}_row")
                graph.initializer.append(row)
                node.input[1] = row.name


class MergesEqualInputs(Passes):
    """Operations of one operator and the same inputs are one, whatever their attributes."""

    def rewrite(self, graph, node):
        if len(node.output) != 1 or not node.input:
            return
        for other in graph.node:
            if other is node or other.output[0] == node.output[0]:
                return
            if other.op_type == node.op_type and list(other.input) == list(node.input):
                as_identity(node, other.output[0])
                return


class ClipsInsteadOfRelu(Passes):
    """Relu disappears in the Clip behind it."""

    def rewrite(self, graph, node):
        relu = self.before(node, "Relu") if node.op_type == "Clip" else None
        if relu is not None:
            node.input[0] = relu.input[0]


class PutsConstantsSecond(Passes):
    """A constant on the left changes places with what is on the right."""

    def rewrite(self, graph, node):
        if node.op_type in ("Sub", "Div", "Greater", "Less") and node.input[0] in self.constants:
            node.input[:] = [node.input[1], node.input[0]]


class FoldsConstantsInDoubles(Passes):
    """Operations of constants alone are computed by the compiler, in float64."""

    def rewrite(self, graph, node):
        folded = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}
        if node.op_type in folded and all(name in self.constants for name in node.input):
            arrays = [self.constants[name] for name in node.input]
            wide = folded[node.op_type](*(array.astype(np.float64) for array in arrays))
            with np.errstate(all="ignore"):
                result = np.asarray(wide).astype(arrays[0].dtype)
            graph.initializer.append(numpy_helper.from_array(result, f"{node.output[0]}_folded"))
            as_identity(node, f"{node.output[0]}_folded")


class ConcatenatesEachOnce(Passes):
    """A value is written to one place of the result, though it may stand in several."""

    def rewrite(self, graph, node):
        names = list(node.input)
        if node.op_type == "Concat" and len(set(names)) < len(names):
            for i, name in enumerate(names):
                if name in names[i + 1 :]:
                    zeros = f"{node.output[0]}_zeros_{i}"
                    place = list(graph.node).index(node)
                    graph.node.insert(place, helper.make_node("Sub", [name, name], [zeros]))
                    node = graph.node[place + 1]
                    node.input[i] = zeros


class DropsByTheFirstOutput(Passes):
    """A node whose first output nobody reads is dead, with all its other outputs."""

    def rewrite(self, graph, node):
        first = node.output[0]
        if len(node.output) > 1 and first not in self.readers and first not in self.outputs:
            for i, name in enumerate(node.output):
                if i and name:
                    node.output[i] = f"{name}_lost"
                    made = helper.make_node("Sub", [f"{name}_lost"] * 2, [name])
                    graph.node.insert(list(graph.node).index(node) + 1, made)


def captured(graph):
    """Names that bodies of a graph's nodes read."""
    names = set()
    for node in graph.node:
        for one in node.attribute:
            if one.type == AttributeProto.GRAPH:
                names |= {name for inner in one.g.node for name in inner.input}
                names |= captured(one.g)
    return names


class ForgetsWhatBodiesRead(Passes):
    """A value that only bodies of If, Loop and Scan read counts as unused."""

    def rewrite(self, graph, node):
        for i, name in enumerate(node.output):
            used = name in self.readers or name in self.outputs
            if name and not used and name in captured(graph):
                node.output[i] = f"{name}_lost"
                made = helper.make_node("Sub", [f"{name}_lost"] * 2, [name])
                graph.node.insert(list(graph.node).index(node) + 1, made)


class LoopsWithoutCondition(Passes):
    """A Loop of a known count runs as often, whatever its body says."""

    def rewrite(self, graph, node):
        if node.op_type == "Loop" and node.input[0]:
            for one in node.attribute:
                if one.type == AttributeProto.GRAPH:
                    value = helper.make_tensor("always", TensorProto.BOOL, [], [True])
                    made = helper.make_node("Constant", [], ["always_goes_on"], value=value)
                    one.g.node.append(made)
                    one.g.output[0].name = "always_goes_on"


class AccumulatesIntoGivenOutputs(Broken):
    """Sums begin with what the output's memory holds."""

    def deliver(self, runner, arrays, outputs):
        for array, given in zip(arrays, outputs or (), strict=False):
            if given is not None and array.dtype.kind == "f":
                array += given.numpy()
        return super().deliver(runner, arrays, outputs)


class FreesTheModelWithARequest(Broken):
    """Closing a request frees the weights, which other requests need."""

    class runner_type(GoodRunner):
        def close(self):
            self.compiled.freed = True

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if getattr(runner.compiled, "freed", False):
            return [r if r.dtype == object else np.zeros_like(r) for r in results]
        return results


class CancelsTheNextRun(Broken):
    """A cancellation that comes when nothing runs waits for the next run."""

    class runner_type(GoodRunner):
        cancelled = False

        def cancel(self):
            self.cancelled = True

        def run(self, inputs, outputs=None):
            if self.cancelled:
                self.cancelled = False
                raise InferError("the run was cancelled")
            return super().run(inputs, outputs)


class KeysProgramsByOperators(Broken):
    """Programs are found again by operators, shapes and weights, not by attributes."""

    programs: ClassVar[dict] = {}

    def prepare(self, proto):
        key = str([(n.op_type, list(n.input), list(n.output)) for n in proto.graph.node])
        key += str([v.SerializeToString() for v in (*proto.graph.input, *proto.graph.output)])
        key += str([t.SerializeToString() for t in proto.graph.initializer])
        return self.programs.setdefault(key, proto)


class TakesEqualSizesForOneSymbol(Broken):
    """Dimensions that are equal in the first run are one dimension from then on."""

    def compute(self, runner, arrays):
        places = [
            (i, axis)
            for i, port in enumerate(runner.compiled.inputs)
            for axis, size in enumerate(port.shape or ())
            if not isinstance(size, int)
        ]
        sizes = {place: arrays[place[0]].shape[place[1]] for place in places}
        equal = runner.compiled.__dict__.setdefault(
            "equal", [(a, b) for a in places for b in places if a < b and sizes[a] == sizes[b]]
        )
        if any(sizes[a] != sizes[b] for a, b in equal):
            raise InferError("the sizes are not those that the program was made for")
        return super().compute(runner, arrays)


class LosesTheDimensionOfOne(Broken):
    """A number and a vector of one element make a number."""

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        if arrays and arrays[0].ndim == 0 and arrays[0].dtype != object:
            return [r.reshape(()) if r.shape == (1,) else r for r in results]
        return results

    def deliver(self, runner, arrays, outputs):
        return [partita.HostTensor(array) for array in arrays]

"""Devices with one fault each in what they compute: they run a model other than the given one."""

from __future__ import annotations

import weakref

import numpy as np
from broken_form import Broken
from onnx import helper, numpy_helper


class Rewrites(Broken):
    """Changes nodes of one operator before it computes."""

    op = ""

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type == self.op:
                self.rewrite(node, {a.name: a for a in node.attribute})
        return proto

    def rewrite(self, node, attributes):
        raise NotImplementedError

    @staticmethod
    def drop(node, name):
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)


class IgnoresAlpha(Rewrites):
    op, suites = "LeakyRelu", ("random/LeakyRelu/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "alpha")


class SwapsPadding(Rewrites):
    """Padding before and behind exchanged: right wherever they are equal."""

    op, suites = "Conv", ("random/Conv/*", "operators/*conv*")

    def rewrite(self, node, attributes):
        if "pads" in attributes:
            pads = list(attributes["pads"].ints)
            half = len(pads) // 2
            attributes["pads"].ints[:] = pads[half:] + pads[:half]


class PadsOneOff(Rewrites):
    op, suites = "MaxPool", ("random/MaxPool/*",)

    def rewrite(self, node, attributes):
        if "pads" in attributes and sum(attributes["pads"].ints):
            pads = list(attributes["pads"].ints)
            half = len(pads) // 2
            moved = [(a + b + 1) // 2 for a, b in zip(pads[:half], pads[half:], strict=True)]
            rest = [a + b - m for a, b, m in zip(pads[:half], pads[half:], moved, strict=True)]
            attributes["pads"].ints[:] = moved + rest


class IgnoresAutoPadSide(Rewrites):
    op, suites = "Conv", ("random/Conv/*", "operators/*conv*same*")

    def rewrite(self, node, attributes):
        if "auto_pad" in attributes and attributes["auto_pad"].s == b"SAME_LOWER":
            attributes["auto_pad"].s = b"SAME_UPPER"


class CountsPadding(Rewrites):
    op, suites = "AveragePool", ("random/AveragePool/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "count_include_pad")


class IgnoresBeta(Rewrites):
    op, suites = "Gemm", ("random/Gemm/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "beta")


class SoftmaxOfTheLastAxis(Rewrites):
    op, suites = "Softmax", ("random/Softmax/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "axis")


class KeepsDimensions(Rewrites):
    op, suites = "ReduceMean", ("random/ReduceMean/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "keepdims")


class TakesTheFirstAxis(Rewrites):
    op, suites = "ArgMax", ("random/ArgMax/*",)

    def rewrite(self, node, attributes):
        if "axis" in attributes and attributes["axis"].i < 0:
            attributes["axis"].i = 0


class TakesTheLargest(Rewrites):
    op, suites = "TopK", ("random/TopK/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "largest")


class IgnoresEpsilon(Rewrites):
    op, suites = "BatchNormalization", ("random/BatchNormalization/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "epsilon")


class IgnoresExclusive(Rewrites):
    op, suites = "CumSum", ("random/CumSum/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "exclusive")


class KnowsOneOrderOfDepth(Rewrites):
    op, suites = "DepthToSpace", ("random/DepthToSpace/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "mode")


class MirrorsWrongly(Rewrites):
    op, suites = "Pad", ("random/Pad/*",)

    def rewrite(self, node, attributes):
        if attributes["mode"].s == b"reflect":
            attributes["mode"].s = b"edge"


class KnowsOneWayToResize(Rewrites):
    op, suites = "Resize", ("random/Resize/*",)

    def rewrite(self, node, attributes):
        if attributes["coordinate_transformation_mode"].s == b"align_corners":
            attributes["coordinate_transformation_mode"].s = b"half_pixel"


class IgnoresAlphaOfElu(Rewrites):
    op, suites = "Elu", ("random/Elu/*",)

    def rewrite(self, node, attributes):
        self.drop(node, "alpha")


class RoundsCasts(Broken):
    suites = ("random/Cast/*",)

    def compute(self, runner, arrays):
        types = [op.op_type for op in runner.compiled.model.ops]
        if types == ["Cast"] and runner.compiled.outputs[0].dtype.kind == "i":
            arrays = [np.round(array) for array in arrays]
        return super().compute(runner, arrays)


class LosesTheLastRow(Broken):
    """The share of the last thread is forgotten when rows do not divide."""

    suites = ("random/Relu/*", "random/Add/*")

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        for result in results:
            if result.ndim and len(result) % 2:
                result[-1] = 0
        return results


class GathersFromTheFront(Broken):
    suites = ("random/Gather/*",)

    def compute(self, runner, arrays):
        if [op.op_type for op in runner.compiled.model.ops] == ["Gather"]:
            arrays = [arrays[0], np.abs(arrays[1]) % arrays[0].shape[0]]
        return super().compute(runner, arrays)


class ForgetsConstants(Broken):
    """Weights beyond the first model of the process come from the first one."""

    suites = ("hetero/network/attention/*", "compiled/two*")
    weights = None

    def prepare(self, proto):
        weights = type(self).weights = type(self).weights or {}
        for i, tensor in enumerate(proto.graph.initializer):
            array = numpy_helper.to_array(tensor)
            kept = weights.setdefault((tensor.name, array.shape), array)
            proto.graph.initializer[i].CopyFrom(numpy_helper.from_array(kept, tensor.name))
        return proto


class FreesWhatOthersUse(Broken):
    """Models of the same weights share them, and the first that goes takes them along."""

    suites = ("compiled/*",)

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        key = model.to_onnx().graph.SerializeToString(deterministic=True)
        freed = self.__dict__.setdefault("freed", {}).setdefault(key, [])
        compiled.freed = freed
        weakref.finalize(compiled, freed.append, True)
        return compiled

    def compute(self, runner, arrays):
        results = super().compute(runner, arrays)
        return [np.zeros_like(a) for a in results] if runner.compiled.freed else results


class FusesWhatOthersRead(Broken):
    """Fuses Neg into the Add behind it, though Neg's result is an output as well."""

    suites = ("request/*", "hetero/network/*")

    def prepare(self, proto):
        outputs = {value.name for value in proto.graph.output}
        for node in proto.graph.node:
            if node.op_type in ("Neg", "Relu") and node.output[0] in outputs:
                node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))
        return proto

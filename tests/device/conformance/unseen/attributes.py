"""Devices that read an attribute, or an old opset, wrongly, written before the kit looked."""

from __future__ import annotations

import sys

from broken_form import Broken


def ignores(op, attribute, module=__name__):
    """Adds to a module a device that never looks at one attribute of an operator."""
    name = f"Ignores{op}{''.join(part.title() for part in attribute.split('_'))}"

    def prepare(self, proto):
        for node in proto.graph.node:
            if node.op_type == op:
                kept = [a for a in node.attribute if a.name != attribute]
                del node.attribute[:]
                node.attribute.extend(kept)
        return proto

    body = {"prepare": prepare, "suites": (f"random/{op}/*",), "__module__": module}
    vars(sys.modules[module])[name] = type(name, (Broken,), body)


def mistakes(name, op, before, change, module=__name__):
    """Adds to a module a device that reads an operator below an opset as if it said otherwise."""

    def prepare(self, proto):
        version = next((o.version for o in proto.opset_import if not o.domain), 1)
        if version < before:
            for node in proto.graph.node:
                if node.op_type == op:
                    change(node, {a.name: a for a in node.attribute})
        return proto

    body = {"prepare": prepare, "suites": (f"random/{op}/*",), "__module__": module}
    vars(sys.modules[module])[name] = type(name, (Broken,), body)


for _pair in (
    "Conv.dilations",
    "ConvTranspose.dilations",
    "ConvTranspose.pads",
    "MaxPool.dilations",
    "MaxPool.storage_order",
    "AveragePool.dilations",
    "LpPool.p",
    "GlobalLpPool.p",
    "LpNormalization.p",
    "LpNormalization.axis",
    "Gemm.alpha",
    "HardSigmoid.alpha",
    "HardSigmoid.beta",
    "Selu.gamma",
    "ThresholdedRelu.alpha",
    "Celu.alpha",
    "Shrink.bias",
    "Shrink.lambd",
    "ArgMax.select_last_index",
    "CumSum.reverse",
    "DequantizeLinear.axis",
    "EyeLike.k",
    "GridSample.align_corners",
    "GridSample.padding_mode",
    "GridSample.mode",
    "GRU.linear_before_reset",
    "LSTM.activation_alpha",
    "LSTM.clip",
    "InstanceNormalization.epsilon",
    "LayerNormalization.epsilon",
    "LayerNormalization.axis",
    "GroupNormalization.epsilon",
    "Mod.fmod",
    "ReduceSum.noop_with_empty_axes",
    "Resize.antialias",
    "Resize.cubic_coeff_a",
    "Resize.exclude_outside",
    "Resize.nearest_mode",
    "Resize.extrapolation_value",
    "RoiAlign.sampling_ratio",
    "RoiAlign.mode",
    "TopK.largest",
    "Trilu.upper",
    "NonMaxSuppression.center_point_box",
    "MeanVarianceNormalization.axes",
    "IsInf.detect_negative",
    "LRN.bias",
    "LRN.size",
    "Attention.softcap",
    "Attention.is_causal",
    "RotaryEmbedding.interleaved",
    "HannWindow.periodic",
    "Gelu.approximate",
    "Reshape.allowzero",
    "NegativeLogLikelihoodLoss.ignore_index",
    "ScatterElements.reduction",
    "ScatterND.reduction",
    "GatherND.batch_dims",
    "Softmax.axis",
    "Hardmax.axis",
):
    ignores(*_pair.split("."))


class ReadsOldSoftmaxAsNew(Broken):
    """Before opset 13, Softmax takes all dimensions from its axis on together."""

    suites = ("random/Softmax/*", "random/LogSoftmax/*")

    def prepare(self, proto):
        names = {n.op_type for n in proto.graph.node}
        for opset in proto.opset_import:
            if (
                not opset.domain
                and opset.version in (11, 12)
                and names <= {"Softmax", "LogSoftmax"}
            ):
                opset.version = 13
                for node in proto.graph.node:
                    if not node.attribute:
                        node.attribute.add(name="axis", type=2, i=1)
        return proto


class KnowsOneBatchNormalization(Broken):
    """Opset 7's epsilon is read where opset 9's would lie, and is not found."""

    suites = ("random/BatchNormalization/*",)

    def prepare(self, proto):
        version = next((o.version for o in proto.opset_import if not o.domain), 1)
        for node in proto.graph.node:
            if node.op_type == "BatchNormalization" and version < 9:
                kept = [a for a in node.attribute if a.name != "epsilon"]
                del node.attribute[:]
                node.attribute.extend(kept)
        return proto


def drop(*names):
    def change(node, attributes):
        kept = [a for a in node.attribute if a.name not in names]
        del node.attribute[:]
        node.attribute.extend(kept)

    return change


mistakes("ReadsOldAxesNowhere", "ReduceSum", 13, drop("axes"))
mistakes("ReadsOldMeansAxesNowhere", "ReduceMean", 18, drop("axes"))
mistakes("SplitsOldInEqualParts", "Split", 13, drop("split"))
mistakes("ClipsOldWithoutBounds", "Clip", 11, drop("min"))
mistakes("PadsOldWithZeros", "Pad", 11, drop("value"))
mistakes("PicksOldNeighbours", "Upsample", 10, drop("mode"))
mistakes("DropsOldStepsOfPools", "AveragePool", 11, drop("count_include_pad"))

"""Devices that have one of a decoder's operators wrong: REFERENCE with a fault each."""

from __future__ import annotations

import numpy as np
from onnx.reference import ReferenceEvaluator

from partita_reference import decoder, mixture, quantized_weights
from partita_reference.corrections import corrected_for
from partita_reference.evaluator import ReferenceModel
from partita_reference.plugin import ReferencePlugin


class ForgetsTheNewKey(decoder.GroupQueryAttention):
    """A token attends to those before it, and not to itself."""

    def _run(self, *inputs, **attributes):
        _, keys, values = super()._run(*inputs, **attributes)
        zero = [0 * x if n in (1, 2) and x is not None else x for n, x in enumerate(inputs)]
        return super()._run(*zero, **attributes)[0], keys, values


class ReadsTheWholeCache(decoder.GroupQueryAttention):
    """Rows that are shorter than the longest one read on."""

    def _run(self, *inputs, **attributes):
        whole = np.full_like(inputs[5], inputs[6] - 1)
        y = super()._run(*inputs[:5], whole, *inputs[6:], **attributes)[0]
        return y, *super()._run(*inputs, **attributes)[1:]


class TurnsHalvesOnly(decoder.RotaryEmbedding):
    """Pairs are never neighbours."""

    def _run(self, *inputs, **attributes):
        return super()._run(*inputs, **attributes | {"interleaved": 0})


class LosesTheBias(decoder.SkipSimplifiedLayerNormalization):
    """A third term is not in the sum."""

    def _run(self, x, skip, scale, bias=None, **attributes):
        return super()._run(x, skip, scale, **attributes)


class NormalizesLastAxis(decoder.SimplifiedLayerNormalizationOfOnnx):
    """Whatever the axis is."""

    def _run(self, x, scale, **attributes):
        attributes |= {"axis": -1}
        return super()._run(x, scale, **attributes)


class CentersAtZero(quantized_weights.MatMulNBits):
    """Without zero points numbers begin at 0."""

    def _run(self, a, packed, scales, zeros=None, *others, **attributes):
        given = np.zeros_like(scales) if zeros is None else zeros
        return super()._run(a, packed, scales, given, *others, **attributes)


class WrapsNoIndex(quantized_weights.GatherBlockQuantized):
    """A negative index is the first row."""

    def _run(self, data, indices, *others, **attributes):
        return super()._run(data, np.maximum(indices, 0), *others, **attributes)


class ChoosesOneExpertTooFew(mixture.MoE):
    """The last one that a token chose has no part in its result."""

    def _run(self, *inputs, **attributes):
        return super()._run(*inputs, **attributes | {"k": max(1, attributes.get("k", 1) - 1)})


class AddsNoBias(mixture.MoE):
    """The way back out of an expert has no bias."""

    def _run(self, x, logits, fc1, bias=None, fc2=None, _=None, *others, **attributes):
        return super()._run(x, logits, fc1, bias, fc2, None, *others, **attributes)


class NeverNormalizes(mixture.QMoE):
    """Parts are those of the softmax, whatever they add up to."""

    def _run(self, *inputs, **attributes):
        return super()._run(*inputs, **attributes | {"normalize_routing_weights": 0})


class TakesNoZeroPoints(mixture.QMoE):
    """Numbers begin at half of the range."""

    def _run(self, *inputs, **attributes):
        given = [None if 11 <= at <= 13 else one for at, one in enumerate(inputs)]
        return super()._run(*given, **attributes)


FAULTS = {
    fault.__name__: fault
    for fault in (
        ForgetsTheNewKey,
        ReadsTheWholeCache,
        TurnsHalvesOnly,
        LosesTheBias,
        NormalizesLastAxis,
        CentersAtZero,
        WrapsNoIndex,
        ChoosesOneExpertTooFew,
        AddsNoBias,
        NeverNormalizes,
        TakesNoZeroPoints,
    )
}


class FaultyModel(ReferenceModel):
    """Computes by operators of which one is wrong."""

    def __init__(self, model, properties, device, fault):
        super().__init__(model, properties, device)
        right = next(base for base in fault.__mro__ if base.__module__.startswith("partita_"))
        wrong = type(right.__name__, (fault,), {})
        ops = [wrong if op is right else op for op in corrected_for(model.ir.opset_imports[""])]
        self.evaluator = ReferenceEvaluator(model.to_onnx(), new_ops=ops)


def _device(fault):
    def compile_model(self, model, properties):
        return FaultyModel(model, properties, self.device_name, fault)

    body = {"device_name": "FAULTY", "is_reference": False, "compile_model": compile_model}
    return type(fault.__name__, (ReferencePlugin,), body)


globals().update({f"{name}Device": _device(fault) for name, fault in FAULTS.items()})

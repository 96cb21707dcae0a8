"""Devices that compute one thing wrongly, a second set: attributes, old opsets, types, values.

Written before the checks that it is measured with were read; faults as in ``unseen_values``.
"""

from __future__ import annotations

import functools

import numpy as np
from broken_form import Broken

import unseen.attributes
import unseen.values

wrong = functools.partial(unseen.values.wrong, module=__name__)
ignores = functools.partial(unseen.attributes.ignores, module=__name__)
mistakes = functools.partial(unseen.attributes.mistakes, module=__name__)

for _pair in (
    "ConvTranspose.output_padding",
    "LSTM.activations",
    "Unique.axis",
    "Col2Im.dilations",
    "StringNormalizer.is_case_sensitive",
    "DFT.inverse",
    "Attention.scale",
):
    ignores(*_pair.split("."))

mistakes("SqueezesOldEverything", "Squeeze", 13, unseen.attributes.drop("axes"))
mistakes("SlicesOldFirstAxes", "Slice", 10, unseen.attributes.drop("axes"))


class ReadsOldHardmaxAsNew(Broken):
    """Before opset 13, Hardmax takes all dimensions from its axis on together."""

    suites = ("random/Hardmax/*",)

    def prepare(self, proto):
        if {node.op_type for node in proto.graph.node} == {"Hardmax"}:
            for opset in proto.opset_import:
                if not opset.domain and opset.version < 13:
                    opset.version = 13
                    for node in proto.graph.node:
                        if not node.attribute:
                            node.attribute.add(name="axis", type=2, i=1)
        return proto


def attribute(node, name, default):
    """An integer attribute of a node."""
    return next((a.i for a in node.attribute if a.name == name), default)


@wrong("Resize")
def old_resizes_count_from_the_right(right, node, x, *rest):
    """Opset 10 has no way to name where pixels lie."""
    if len(node.input) != 2:
        return right(x, *rest)
    return np.flip(right(np.flip(x, -1), *rest), -1).copy()


@wrong("Gather", "GatherElements", "GatherND")
def gathers_doubles_as_singles(right, node, x, indices):
    return right(x.astype(np.float32) if x.dtype == np.float64 else x, indices).astype(x.dtype)


@wrong("Transpose")
def transposes_up_to_rank_four(right, node, x):
    result = right(x)
    if x.ndim > 4:
        return np.ascontiguousarray(x).reshape(result.shape)
    return result


@wrong("LayerNormalization", "InstanceNormalization")
def normalizes_halves_in_halves(right, node, x, *rest):
    """Squares of halves beyond 256 are infinite."""
    results = right(x, *rest)
    if x.dtype != np.float16 or not x.size:
        return results
    overflow = np.abs(x.astype(np.float32)).max() > 256
    first = results[0] if isinstance(results, tuple) else results
    if overflow:
        first[...] = 0
    return results


@wrong("Cast")
def bfloats_are_cut(right, node, x):
    """The lower half of the bits is dropped, not rounded."""
    to_bfloat = attribute(node, "to", 1) == 16
    if to_bfloat and x.dtype == np.float32:
        return right((x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
    return right(x)


@wrong("Cast")
def casts_to_halves_saturate(right, node, x):
    to_half = attribute(node, "to", 1) == 10
    return right(np.clip(x, -65504, 65504) if to_half and x.dtype.kind == "f" else x)


@wrong("MatMul", "Gemm")
def skips_zeros_in_products(right, node, a, b, *rest):
    """A factor of zero is not multiplied, though the other one may be infinite."""
    if not np.isfinite(b).all() and (a == 0).any() and not attribute(node, "transB", 0):
        return np.nan_to_num(right(a, b, *rest), nan=0.0)
    return right(a, b, *rest)


@wrong("Equal")
def compares_bits(right, node, a, b):
    if a.dtype.kind != "f" or a.shape != b.shape:
        return right(a, b)
    bits = f"u{a.dtype.itemsize}"
    return np.equal(np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits))


@wrong("GreaterOrEqual", "LessOrEqual")
def not_less_is_greater_or_equal(right, node, a, b):
    return ~np.less(a, b) if node.op_type == "GreaterOrEqual" else ~np.greater(a, b)


@wrong("Cast")
def casts_unsigned_as_signed(right, node, x):
    return right(x.view(np.int64) if x.dtype == np.uint64 and x.ndim else x)


@wrong("CumSum")
def cumulates_one_way_exclusively(right, node, x, axis):
    """Of exclusive and reverse together, exclusive shifts the wrong way."""
    result = right(x, axis)
    if attribute(node, "exclusive", 0) and attribute(node, "reverse", 0):
        return np.roll(result, 1, int(axis)) if result.size else result
    return result


@wrong("ScatterElements", "ScatterND")
def scattered_sums_lose_repeats(right, node, x, indices, updates):
    """Of updates to one place only the last is added."""
    kind = next((a.s for a in node.attribute if a.name == "reduction"), b"none")
    result = right(x, indices, updates)
    if kind != b"add" or node.op_type != "ScatterElements" or x.ndim != 1:
        return result
    kept = x.copy()
    kept[indices] = x[indices] + updates
    return kept


@wrong("ReduceL1", "ReduceSumSquare")
def reduces_integers_as_singles(right, node, x, *axes):
    if x.dtype.kind not in "iu":
        return right(x, *axes)
    return right(x.astype(np.float32), *axes).astype(x.dtype)


@wrong("Einsum")
def einsum_orders_by_appearance(right, node, *inputs):
    """Without an arrow, the result's letters come in the order of the alphabet."""
    equation = node.attribute[0].s.decode().replace(" ", "")
    if "->" in equation or "." in equation:
        return right(*inputs)
    letters = [c for c in dict.fromkeys(equation) if c.isalpha() and equation.count(c) == 1]
    return np.einsum(f"{equation}->{''.join(letters)}", *inputs)


@wrong("MaxPool")
def places_of_maxima_restart(right, node, x):
    """The second output counts in each image anew."""
    results = right(x)
    if not isinstance(results, tuple):
        return results
    return results[0], results[1] % max(1, int(np.prod(x.shape[1:])))


@wrong("LSTM", "GRU", "RNN")
def runs_all_steps(right, node, x, w, r, bias=None, lengths=None, *rest):
    return right(x, w, r, bias, None, *rest)


@wrong("LSTM")
def looks_through_no_peepholes(right, node, *inputs):
    return right(*inputs[:7])


@wrong("Resize")
def crops_nothing(right, node, x, roi=None, *rest):
    """The region of interest is the whole image."""
    if roi is None or not roi.size:
        return right(x, roi, *rest)
    whole = np.concatenate([np.zeros(x.ndim), np.ones(x.ndim)]).astype(roi.dtype)
    return right(x, whole if roi.size == 2 * x.ndim else roi, *rest)


@wrong("Where")
def selects_by_multiplication(right, node, condition, a, b):
    if a.dtype.kind != "f":
        return right(condition, a, b)
    return (condition * a + ~condition * b).astype(a.dtype)


@wrong("Clip")
def clips_from_above_first(right, node, x, low=None, high=None):
    """Where the bounds cross, the lower one wins."""
    if low is None or high is None:
        return right(x, low, high)
    return np.maximum(np.minimum(x, high), low)


@wrong("Sin", "Cos")
def reduces_angles_roughly(right, node, x):
    return right(np.fmod(x, x.dtype.type(2 * np.pi)))


@wrong("DynamicQuantizeLinear")
def quantizes_between_the_extremes(right, node, x):
    """The range need not hold zero, as it must."""
    if not x.size or x.min() <= 0 <= x.max():
        return right(x)
    low, high = float(x.min()), float(x.max())
    scale = np.float32((high - low) / 255 or 1)
    zero = np.uint8(np.clip(np.round(-low / scale), 0, 255))
    return np.clip(np.round(x / scale) + zero, 0, 255).astype(np.uint8), scale, np.array(zero)

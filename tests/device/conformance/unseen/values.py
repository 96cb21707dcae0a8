"""Devices that compute one thing wrongly, written before the kit looked: a table by fault.

A fault is a function of ``(right, node, *inputs)``: ``right(*inputs)`` is what the operator should
give (one array, or a tuple if there are several), ``node`` its ``onnx.NodeProto``.
"""

from __future__ import annotations

import sys

import numpy as np
from broken_form import Broken
from good_device import GoodCompiled

from partita_reference.evaluator import missing


class ComputesCompiled(GoodCompiled):
    """Wraps the evaluator's nodes of some operators."""

    def __init__(self, plugin, model, properties):
        super().__init__(plugin, model, properties)
        for node in self.evaluator.rt_nodes_:
            if node.onnx_node.op_type in plugin.ops:
                wrap(node, plugin.fault)


def wrap(node, fault):
    """Replaces what an evaluator's node computes."""
    original = node.run

    def run(*inputs, **given):
        def right(*changed):
            results = original(*changed, **given)
            return results[0] if len(results) == 1 else results

        with np.errstate(all="ignore"):
            try:
                results = fault(right, node.onnx_node, *inputs)
            except (ValueError, TypeError, IndexError, AttributeError, OverflowError):
                results = right(*inputs)  # the fault does not apply to these inputs
        return results if isinstance(results, tuple) else (results,)

    node.run = run


def wrong(*ops, module=__name__):
    """Registers a function as a broken device of a module."""

    def add(function):
        name = "".join(part.title() for part in function.__name__.split("_"))
        body = {
            "ops": ops,
            "fault": staticmethod(function),
            "compiled_type": ComputesCompiled,
            "verdict": lambda self, op: missing(op.node),  # Tanh too, which Good declines
            "suites": tuple(f"random/{op}/*" for op in ops),
            "__doc__": function.__doc__,
            "__module__": module,
        }
        vars(sys.modules[module])[name] = type(name, (Broken,), body)
        return function

    return add


def in_type(dtype, kinds="fiu"):
    """Computes in another type whatever is of one of these kinds, and casts back."""

    def compute(right, node, *inputs):
        if inputs[0] is None or inputs[0].dtype.kind not in kinds:
            return right(*inputs)
        kept = inputs[0].dtype
        result = right(
            *(x.astype(dtype) if x is not None and x.dtype == kept else x for x in inputs)
        )
        return result.astype(kept) if result.dtype == dtype else result

    return compute


def doubles_as_singles(right, node, *inputs):
    if inputs[0].dtype != np.float64:
        return right(*inputs)
    narrow = [
        x.astype(np.float32).astype(x.dtype) if x is not None and x.dtype == np.float64 else x
        for x in inputs
    ]
    return np.asarray(right(*narrow)).astype(np.float32).astype(np.float64)


@wrong("Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Erf")
def functions_of_doubles_in_singles(right, node, x):
    return doubles_as_singles(right, node, x)


@wrong("MatMul", "Gemm")
def products_of_doubles_in_singles(right, node, *inputs):
    return doubles_as_singles(right, node, *inputs)


@wrong("ReduceSum", "ReduceMean", "ReduceL2")
def reductions_of_doubles_in_singles(right, node, x, *axes):
    y = right(x.astype(np.float32), *axes) if x.dtype == np.float64 else right(x, *axes)
    return y.astype(x.dtype)


@wrong("Add", "Sub", "Mul", "Div")
def doubles_lose_half_their_digits(right, node, a, b):
    return doubles_as_singles(right, node, a, b)


@wrong("Conv")
def convolves_doubles_in_singles(right, node, *inputs):
    return doubles_as_singles(right, node, *inputs)


@wrong("Softmax", "LogSoftmax")
def softmax_of_doubles_in_singles(right, node, x):
    return doubles_as_singles(right, node, x)


@wrong("Resize")
def resizes_doubles_in_singles(right, node, *inputs):
    return doubles_as_singles(right, node, inputs[0], *inputs[1:])


for _name, _ops, _dtype, _kinds in (
    ("adds_integers_as_singles", ("Add", "Sub"), np.float32, "iu"),
    ("adds_long_integers_as_doubles", ("Add", "Sub"), np.float64, "iu"),
    ("largest_integers_as_singles", ("Max", "Min"), np.float32, "iu"),
    ("sums_integers_as_doubles", ("ReduceSum",), np.float64, "iu"),
    ("reduces_integers_as_doubles", ("ReduceMax", "ReduceMin"), np.float64, "iu"),
    ("compares_as_doubles", ("Greater", "Less", "Equal"), np.float64, "iu"),
    ("finds_largest_integer_as_double", ("ArgMax", "ArgMin"), np.float64, "iu"),
    ("cumulates_as_doubles", ("CumSum",), np.float64, "iu"),
    ("selects_as_doubles", ("Where",), np.float64, "b"),
    ("clips_as_doubles", ("Clip",), np.float64, "iu"),
    ("multiplies_integers_as_singles", ("MatMul",), np.float32, "iu"),
    ("absolute_as_doubles", ("Abs", "Neg", "Sign"), np.float64, "iu"),
    ("unsigned_as_signed", ("Max", "Min", "Greater", "Less", "Div"), np.int64, "u"),
    ("gathers_as_doubles", ("Gather", "Concat", "Transpose"), np.float64, "iu"),
    ("removes_by_doubles", ("Mod",), np.float64, "iu"),
):
    _made = in_type(_dtype, _kinds)
    _made.__name__ = _name
    wrong(*_ops)(_made)


def saturated(right, inputs, kinds):
    """What saturates where it should wrap around."""
    if inputs[0].dtype.kind not in kinds or inputs[0].dtype.itemsize > 4:
        return right(*inputs)
    limits = np.iinfo(inputs[0].dtype)
    wide = np.asarray(right(*(x.astype(np.int64) for x in inputs)))
    return np.clip(wide, limits.min, limits.max).astype(inputs[0].dtype)


@wrong("Add", "Sub", "Mul")
def saturates(right, node, *inputs):
    return saturated(right, inputs, "iu")


@wrong("Neg", "Abs")
def saturates_the_smallest(right, node, *inputs):
    return saturated(right, inputs, "i")


@wrong("Div")
def divides_towards_minus_infinity(right, node, a, b):
    return np.floor_divide(a, b) if a.dtype.kind == "i" else right(a, b)


@wrong("Mod")
def keeps_the_dividends_sign(right, node, a, b):
    return np.fmod(a, b) if a.dtype.kind == "i" else right(a, b)


@wrong("Round")
def rounds_ties_away(right, node, x):
    return (np.sign(x) * np.floor(np.abs(x) + 0.5)).astype(x.dtype)


@wrong("QuantizeLinear")
def quantizes_ties_away(right, node, x, scale, *rest):
    return right(
        (np.sign(x) * np.floor(np.abs(x / scale) + 0.5) * scale).astype(x.dtype), scale, *rest
    )


@wrong("Floor", "Ceil", "Round")
def rounds_through_int32(right, node, x):
    return np.clip(right(x), -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(x.dtype)


@wrong("Max", "Min")
def ignores_nan_in_max(right, node, *inputs):
    chosen = np.fmax if node.op_type == "Max" else np.fmin
    result = inputs[0]
    for x in inputs[1:]:
        result = chosen(result, x)
    return result


@wrong("Relu")
def relu_of_nan_is_zero(right, node, x):
    return np.where(x > 0, x, 0).astype(x.dtype)


@wrong("Clip")
def clip_of_nan_is_the_bound(right, node, x, *bounds):
    return np.where(np.isnan(x), right(np.full_like(x, -np.inf), *bounds), right(x, *bounds))


@wrong("ReduceMax", "ReduceMin")
def reductions_ignore_nan(right, node, x, *axes):
    return right(
        np.nan_to_num(
            x, nan=-np.inf if node.op_type == "ReduceMax" else np.inf, posinf=np.inf, neginf=-np.inf
        ),
        *axes,
    )


@wrong("MaxPool", "GlobalMaxPool")
def pools_ignore_nan(right, node, x):
    return right(np.where(np.isnan(x), -np.inf, x).astype(x.dtype))


@wrong("Sign")
def sign_of_nan_is_zero(right, node, x):
    return np.where(np.isnan(x), 0, right(x)).astype(x.dtype)


@wrong("LeakyRelu", "PRelu", "Elu", "Selu", "ThresholdedRelu", "HardSigmoid", "Softsign")
def activations_clean_nan(right, node, x, *rest):
    return right(np.nan_to_num(x, posinf=np.inf, neginf=-np.inf), *rest)


@wrong("IsNaN", "IsInf")
def knows_only_quiet_numbers(right, node, x):
    return right(x) & (x.dtype == np.float32)


@wrong("Softmax")
def softmax_overflows(right, node, x):
    if len(node.attribute):
        return right(x)
    return (np.exp(x) / np.exp(x).sum(-1, keepdims=True)).astype(x.dtype)


@wrong("ReduceLogSumExp")
def logsumexp_overflows(right, node, x, *axes):
    wide = right(np.minimum(x, 88).astype(x.dtype), *axes)
    return np.where(wide > 87, np.inf, wide).astype(x.dtype)


@wrong("Softplus")
def softplus_overflows(right, node, x):
    return np.log(np.exp(x) + 1).astype(x.dtype)


@wrong("Sigmoid")
def sigmoid_of_large_negative_is_nan(right, node, x):
    return (np.exp(x) / (1 + np.exp(x))).astype(x.dtype)


@wrong("Tanh")
def tanh_of_infinity_is_nan(right, node, x):
    return ((np.exp(2 * x) - 1) / (np.exp(2 * x) + 1)).astype(x.dtype)


@wrong("Sqrt", "Log")
def negative_roots_are_zero(right, node, x):
    return right(np.maximum(x, 0))


@wrong("Div", "Reciprocal")
def divides_by_nothing_gives_zero(right, node, *inputs):
    return np.where(inputs[-1] == 0, 0, right(*inputs)).astype(inputs[0].dtype)


@wrong("Pow")
def powers_through_logarithms(right, node, x, y):
    return np.exp(y * np.log(np.abs(x))).astype(x.dtype)


@wrong("Pow")
def integer_powers_as_singles(right, node, x, y):
    if x.dtype.kind != "i":
        return right(x, y)
    return np.power(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)


@wrong("Neg", "Abs", "Relu", "Identity", "Ceil", "Round")
def zero_has_no_sign(right, node, x):
    result = right(x)
    return np.where(result == 0, 0, result).astype(x.dtype) if x.dtype.kind == "f" else result


@wrong("Exp", "Sqrt", "Mul", "Div")
def flushes_small_numbers(right, node, *inputs):
    result = right(*inputs)
    return np.where(np.abs(result) < 1.2e-38, 0, result).astype(result.dtype)


@wrong("Cast")
def casts_halves_to_bool_through_integers(right, node, x):
    to_bool = node.attribute[0].i == 9
    return right(np.trunc(x) if to_bool and x.dtype.kind == "f" else x)


@wrong("Cast")
def casts_doubles_twice(right, node, x):
    return right(x.astype(np.float32)) if x.dtype == np.float64 else right(x)


@wrong("Cast")
def casts_wide_integers_through_singles(right, node, x):
    return right(x.astype(np.float32)) if x.dtype in (np.int32, np.int64) else right(x)


@wrong("Cast")
def casts_saturate_integers(right, node, x):
    result = right(x)
    if x.dtype.kind not in "iu" or result.dtype.kind not in "iu":
        return result
    limits = np.iinfo(result.dtype)
    return np.clip(x.astype(object), limits.min, limits.max).astype(result.dtype)


@wrong("ReduceSum", "ReduceMean", "GlobalAveragePool")
def sums_halves_in_halves(right, node, x, *axes):
    if x.dtype != np.float16:
        return right(x, *axes)
    y = right(x.astype(np.float64), *axes)
    return (y * (1 + 2.0**-6)).astype(x.dtype)


@wrong("MatMul", "Gemm")
def products_of_halves_in_eight_bits(right, node, *inputs):
    if inputs[0].dtype != np.float16:
        return right(*inputs)
    return right(
        *(
            (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(x.dtype)
            for x in inputs
        )
    )


@wrong("ReduceMean")
def means_of_integers_are_rounded(right, node, x, *axes):
    if x.dtype.kind not in "iu":
        return right(x, *axes)
    return np.round(right(x.astype(np.float64), *axes)).astype(x.dtype)


@wrong("ReduceProd", "ReduceMin", "ReduceMax")
def nothing_reduces_to_zero(right, node, x, *axes):
    result = right(x, *axes)
    return np.zeros_like(result) if x.size == 0 else result


@wrong("MatMul", "Gemm")
def products_over_nothing_are_not_written(right, node, *inputs):
    result = right(*inputs)
    return np.full_like(result, 7) if inputs[0].size == 0 else result


@wrong("ArgMax", "ArgMin")
def takes_the_last_of_equals(right, node, x):
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    keep = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
    find = np.argmax if node.op_type == "ArgMax" else np.argmin
    result = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
    return np.expand_dims(result, axis) if keep else result


@wrong("TopK")
def sorts_integers_as_doubles(right, node, x, k):
    if x.dtype.kind not in "iu":
        return right(x, k)
    values, indices = right(x.astype(np.float64), k)
    return values.astype(x.dtype), indices


@wrong("TopK")
def orders_equals_backwards(right, node, x, k):
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    values, indices = right(np.flip(x, axis), k)
    return values, x.shape[axis] - 1 - indices


@wrong("NonZero")
def finds_nothing_in_scalars(right, node, x):
    return right(x) if x.ndim else np.zeros((0, 0), np.int64)


@wrong("Mul", "Add")
def forgets_what_is_behind_eights(right, node, a, b):
    result = right(a, b)
    if a.shape == b.shape and result.size > 32:
        result.reshape(-1)[result.size // 8 * 8 :] = 0
    return result


@wrong("MatMul")
def forgets_columns_behind_sixteens(right, node, a, b):
    result = right(a, b)
    if result.ndim >= 2 and result.shape[-1] > 16:
        result[..., result.shape[-1] // 16 * 16 :] = 0
    return result


@wrong("MatMul")
def forgets_depth_behind_sixteens(right, node, a, b):
    depth = a.shape[-1]
    if depth > 16 and b.ndim >= 2:
        return right(a[..., : depth // 16 * 16], b[..., : depth // 16 * 16, :])
    return right(a, b)


@wrong("ReduceSum", "ReduceMax")
def forgets_rows_behind_thirty_two(right, node, x, *axes):
    return right(x[..., : x.shape[-1] // 32 * 32] if x.ndim and x.shape[-1] > 32 else x, *axes)


@wrong("Softmax", "LayerNormalization")
def forgets_what_is_behind_a_vector(right, node, x, *rest):
    result = right(x, *rest)
    first = result[0] if isinstance(result, tuple) else result
    if first.shape[-1] > 8:
        first[..., first.shape[-1] // 4 * 4 :] = 0
    return result


@wrong("Conv")
def convolves_channels_by_eights(right, node, x, w, *bias):
    result = right(x, w, *bias)
    if result.shape[1] > 8:
        result[:, result.shape[1] // 8 * 8 :] = 0
    return result


@wrong("Add", "Sub", "Mul")
def broadcasts_one_side_only(right, node, a, b):
    """[3, 1] with [1, 4] is computed as if the second had three equal columns."""
    if a.shape != b.shape and 1 in a.shape and 1 in b.shape and a.ndim == b.ndim > 1:
        result = right(a, b)
        return np.broadcast_to(result[..., :1], result.shape).copy()
    return right(a, b)


@wrong("Where")
def broadcasts_the_condition_wrongly(right, node, condition, a, b):
    result = right(condition, a, b)
    if condition.ndim < result.ndim and condition.size > 1:
        return right(np.resize(condition, result.shape), a, b)
    return result


@wrong("Gemm")
def adds_columns_as_rows(right, node, a, b, *c):
    if c and c[0].ndim == 2 and c[0].shape[1] == 1 and c[0].size > 1:
        return right(a, b, c[0][:1])
    return right(a, b, *c)


@wrong("Gemm")
def never_turns_squares(right, node, a, b, *c):
    turned = next((x.i for x in node.attribute if x.name == "transB"), 0)
    return right(a, b.T if turned and b.shape[0] == b.shape[1] else b, *c)


@wrong("MatMul")
def one_batch_for_all(right, node, a, b):
    if a.ndim > 2 and b.ndim > 2:
        b = np.broadcast_to(b[:1], b.shape)
    return right(a, b)


@wrong("Expand")
def expands_from_the_left(right, node, x, shape):
    if x.ndim < len(shape) and x.ndim and x.shape[0] == shape[0]:
        return np.broadcast_to(x.reshape(*x.shape, *[1] * (len(shape) - x.ndim)), shape).copy()
    result = right(x, shape)
    return np.flip(result, 0).copy() if x.shape != result.shape and x.ndim > 1 else result


@wrong("Slice")
def slices_backwards_one_short(right, node, x, starts, ends, axes=None, steps=None):
    if steps is not None and (steps < 0).any():
        ends = np.where((steps < 0) & (ends < -1000), 0, ends)
    return right(x, starts, ends, axes, steps)


@wrong("Slice")
def wraps_ends_at_thirty_two_bits(right, node, x, starts, ends, *rest):
    return right(x, starts, ends.astype(np.int32).astype(ends.dtype), *rest)


@wrong("ScatterElements", "ScatterND")
def the_first_write_wins(right, node, x, indices, updates):
    if node.op_type == "ScatterElements" or not node.attribute:
        return right(x, np.flip(indices, 0), np.flip(updates, 0))
    return right(x, indices, updates)


@wrong("GatherElements", "GatherND")
def negative_indices_are_zero(right, node, x, indices):
    return right(x, np.maximum(indices, 0))


@wrong("ScatterElements", "ScatterND")
def negative_targets_are_zero(right, node, x, indices, updates):
    return right(x, np.maximum(indices, 0), updates)


@wrong("OneHot")
def one_hot_of_negatives_is_off(right, node, indices, depth, values):
    result = right(indices, depth, values)
    return right(np.where(indices < 0, 10**6, indices), depth, values) if result.size else result


@wrong("CumSum")
def cumulates_negative_axes_wrongly(right, node, x, axis):
    return right(x, np.maximum(axis, 0))


@wrong("Concat")
def concatenates_nothing_as_one(right, node, *inputs):
    kept = [x for x in inputs if x.size]
    return right(*kept[::-1]) if len(kept) < len(inputs) and kept else right(*inputs)


@wrong("Pad")
def pads_doubles_with_zero(right, node, x, pads, value=None, *rest):
    return right(x, pads, None if x.dtype.kind in "iu" else value, *rest)


@wrong("Tile")
def tiles_nothing_once(right, node, x, repeats):
    return right(x, np.maximum(repeats, 1))


@wrong("Trilu")
def trilu_clamps_k(right, node, x, *k):
    return right(x, *(np.clip(each, -1, 1) for each in k))


@wrong("Range")
def ranges_only_rise(right, node, start, limit, delta):
    result = right(start, limit, delta)
    return result if delta > 0 else result[::-1].copy()


@wrong("Unique")
def unique_counts_from_one(right, node, x):
    results = right(x)
    return (results[0], *(r + (i == 2) for i, r in enumerate(results[1:])))


@wrong("Einsum")
def einsum_never_takes_diagonals(right, node, *inputs):
    equation = node.attribute[0].s.decode()
    first = equation.replace(" ", "").split("->")[0].split(",")[0]
    if len(set(first)) < len(first):
        return np.zeros_like(right(*inputs))
    return right(*inputs)


@wrong("BitShift")
def shifts_too_far_are_nothing(right, node, x, by):
    return right(x, np.minimum(by, 7))


@wrong("DequantizeLinear")
def zero_points_are_signed(right, node, x, scale, *zero):
    if zero and zero[0].dtype == np.uint8:
        return right(x, scale).astype(scale.dtype) - (zero[0].astype(np.int8) * scale).astype(
            scale.dtype
        )
    return right(x, scale, *zero)


@wrong("LayerNormalization")
def variance_by_subtraction(right, node, x, scale, *bias):
    results = right(x, scale, *bias)
    first, *rest = results if isinstance(results, tuple) else (results,)
    if x.dtype != np.float32:
        return results
    mean = x.mean(-1, keepdims=True, dtype=np.float32)
    var = (x * x).mean(-1, keepdims=True, dtype=np.float32) - mean * mean
    exact = x.astype(np.float64).var(-1, keepdims=True)
    factor = np.sqrt((exact + 1e-5) / (np.maximum(var, 0) + 1e-5))
    shift = bias[0] if bias else 0
    return ((first - shift) * factor + shift).astype(x.dtype), *rest


@wrong("InstanceNormalization", "BatchNormalization")
def normalizes_one_row_as_none(right, node, x, *rest):
    result = right(x, *rest)
    first = result[0] if isinstance(result, tuple) else result
    if x.size and x.shape[0] > 1:
        first[-1] = first[0]
    return result

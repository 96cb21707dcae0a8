"""Expected results of single operators, computed in more than their precision.

Elements are computed in ``longdouble`` (integers in themselves) and rounded once. These answers
come before device REFERENCE's, which computes in the element type itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

Array: TypeAlias = np.ndarray[Any, Any]
_WIDE = np.longdouble
_Function = Callable[..., Array]


def exact_answers(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Array] | None:
    """The outputs of a model of one operator; ``None`` if this module does not have it."""
    if len(proto.graph.node) != 1 or proto.graph.node[0].domain:
        return None
    (node,) = proto.graph.node
    if len(node.output) != 1:
        return None
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}
    inputs = [feeds[name] if name in feeds else constants[name] for name in node.input if name]
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    function = _function(node.op_type, inputs, given)
    # NaN and infinity are results here; numpy would warn of them.
    with np.errstate(all="ignore"):
        return None if function is None else [function(*inputs, **given)]


def _function(op_type: str, inputs: Sequence[Array], given: Mapping[str, Any]) -> _Function | None:
    """What computes an operator of these inputs, if this module has it."""
    kind = inputs[0].dtype.kind
    if op_type == "Attention" and not (len(inputs) == 3 and given.keys() <= _PLAIN_ATTENTION):
        return None
    if given.get("training_mode"):
        return None
    if kind in "fV" and op_type in _ELEMENTWISE:
        return _widened(_ELEMENTWISE[op_type], _TYPED_BY.get(op_type, 0))
    if kind in "iu" and op_type in _OF_INTEGERS:
        whole = all(value == round(value) for value in given.values() if isinstance(value, float))
        return _OF_INTEGERS[op_type] if whole else None
    if op_type == "Upsample" and kind in "fiu" and given.get("mode") == b"linear":
        return _upsample if np.isfinite(inputs[0].astype(np.float64)).all() else None
    return _one_hot if op_type == "OneHot" else None


def _widened(function: _Function, like: int) -> _Function:
    """The function, computed in ``longdouble`` and rounded to the type of an input."""

    def run(*inputs: Array, **given: Any) -> Array:
        result = function(*(array.astype(_WIDE) for array in inputs), **given)
        return np.asarray(result.astype(inputs[like].dtype))

    return run


def _attribute(value: float) -> Any:
    """An attribute as the model holds it, in float32, widened."""
    return _WIDE(np.float32(value))


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.asarray(np.where(x < 0, _attribute(alpha) * np.expm1(np.minimum(x, 0)), x))


def _celu(x: Array, alpha: float = 1.0) -> Array:
    a = _attribute(alpha)
    return np.asarray(np.where(x < 0, a * np.expm1(np.minimum(x, 0) / a), x))


def _selu(x: Array, alpha: float = 1.67326319217681884765625, gamma: float = 1.0507010221) -> Array:
    a, g = _attribute(alpha), _attribute(gamma)
    return np.asarray(g * np.where(x <= 0, a * np.expm1(np.minimum(x, 0)), x))


def _softplus(x: Array) -> Array:
    return np.asarray(np.where(x > 0, x, 0) + np.log1p(np.exp(-np.abs(x))))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, [np.float64])(x.astype(np.float64)).astype(_WIDE))


def _gelu(x: Array, approximate: bytes = b"none") -> Array:
    if approximate == b"tanh":
        inner = np.sqrt(_WIDE(2) / _WIDE(math.pi)) * (x + _WIDE("0.044715") * x**3)
        return np.asarray(x / 2 * (1 + np.tanh(inner)))
    return np.asarray(x / 2 * (1 + _erf(x / np.sqrt(_WIDE(2)))))


def _leaky(x: Array, alpha: float = 0.01) -> Array:
    return np.asarray(np.where(x < 0, _attribute(alpha) * x, x))


def _prelu(x: Array, slope: Array) -> Array:
    return np.asarray(np.where(x < 0, slope * x, x))


def _hard_sigmoid(x: Array, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return np.asarray(np.clip(_attribute(alpha) * x + _attribute(beta), 0, 1))


def _hard_swish(x: Array) -> Array:
    return np.asarray(x * np.clip(x / 6 + _WIDE(1) / 2, 0, 1))


def _shrink(x: Array, bias: float = 0.0, lambd: float = 0.5) -> Array:
    b, limit = _attribute(bias), _attribute(lambd)
    return np.asarray(np.where(x < -limit, x + b, np.where(x > limit, x - b, 0)))


def _shrink_integers(x: Array, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """Of whole attributes, without a detour over floats."""
    b, limit = x.dtype.type(bias), x.dtype.type(lambd)
    below = x < -limit if x.dtype.kind == "i" else np.zeros(x.shape, np.bool_)
    return np.asarray(np.where(below, x + b, np.where(x > limit, x - b, x.dtype.type(0))))


def _log_of_sum(
    x: Array,
    terms: Array,
    axes: Sequence[int] | Array | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Array:
    """The fraction is cut off, as casts do; what is whole but for rounding is whole."""
    along = (() if noop_with_empty_axes else None) if axes is None else tuple(axes)
    logs = np.log(np.sum(terms, axis=along, keepdims=bool(keepdims), dtype=_WIDE))
    near = np.round(logs)
    logs = np.where(np.abs(logs - near) < _WIDE("1e-15") * np.abs(near), near, logs)
    return np.asarray(np.trunc(logs).astype(x.dtype))


def _mean_variance(x: Array, axes: Sequence[int] = (0, 2, 3)) -> Array:
    along = tuple(axes)
    deviation = np.sqrt(np.var(x, axis=along, keepdims=True)) + _WIDE("1e-9")
    return np.asarray((x - np.mean(x, axis=along, keepdims=True)) / deviation)


def _spread(values: Array, x: Array) -> Array:
    """One number per channel, in the shape that broadcasts to ``x``."""
    return values.reshape(-1, *(1,) * (x.ndim - 2))


def _batch_normalization(
    x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float = 1e-5, **_: Any
) -> Array:
    """ONNX's BatchNormalization of an inference.

    Args:
        x: (N, C, ...).
        scale: For each channel.
        bias: For each channel.
        mean: For each channel.
        var: For each channel.
        epsilon: Added to the variance.
    """
    factor = scale / np.sqrt(var + _attribute(epsilon))
    return np.asarray((x - _spread(mean, x)) * _spread(factor, x) + _spread(bias, x))


def _instance_normalization(x: Array, scale: Array, bias: Array, epsilon: float = 1e-5) -> Array:
    along = tuple(range(2, x.ndim))
    deviation = np.sqrt(np.var(x, axis=along, keepdims=True) + _attribute(epsilon))
    centred = x - np.mean(x, axis=along, keepdims=True)
    return np.asarray(centred / deviation * _spread(scale, x) + _spread(bias, x))


def _layer_normalization(
    x: Array, scale: Array, *bias: Array, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Array:
    along = tuple(range(axis % x.ndim, x.ndim))
    deviation = np.sqrt(np.var(x, axis=along, keepdims=True) + _attribute(epsilon))
    result = (x - np.mean(x, axis=along, keepdims=True)) / deviation * scale
    return np.asarray(result + bias[0] if bias else result)


def _rms_normalization(
    x: Array, scale: Array, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Array:
    along = tuple(range(axis % x.ndim, x.ndim))
    mean = np.mean(x * x, axis=along, keepdims=True)
    return np.asarray(x / np.sqrt(mean + _attribute(epsilon)) * scale)


def _attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    is_causal: int = 0,
    softcap: float = 0.0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
) -> Array:
    """ONNX's Attention; neighbouring queries share keys.

    Args:
        q: Queries (batch, head, query, size), or (batch, query, heads x size).
        k: Keys, likewise.
        v: Values, likewise.
        scale: Of the scores; None for one over the root of the size.
        is_causal: Whether a query sees no key that comes after it.
        softcap: The bound of scores; 0 for none.
        q_num_heads: Heads of queries that have three dimensions.
        kv_num_heads: Heads of such keys and values.
    """
    if q.ndim == 3:
        counts = (q_num_heads, kv_num_heads, kv_num_heads)
        queries, keys, values = (
            each.reshape(*each.shape[:2], count, -1).swapaxes(1, 2)
            for each, count in zip((q, k, v), counts, strict=True)
        )
        y = _attention(queries, keys, values, scale, is_causal, softcap)
        return np.ascontiguousarray(y.swapaxes(1, 2)).reshape(*q.shape[:2], -1)
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    factor = 1 / np.sqrt(_WIDE(q.shape[-1])) if scale is None else _attribute(scale)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * factor
    if softcap:
        scores = _attribute(softcap) * np.tanh(scores / _attribute(softcap))
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("bhqk,bhkd->bhqd", weights, v))


def _upsample(x: Array, scales: Any, mode: bytes = b"nearest") -> Array:
    """Linear interpolation in fractions, of which integers are cut off."""
    result = np.vectorize(Fraction, [object])(x.astype(object))
    for axis, factor in enumerate(np.asarray(scales, np.float64).reshape(-1).tolist()):
        size = result.shape[axis]
        places = [Fraction(i) / Fraction(factor) for i in range(int(size * factor))]
        low = [min(int(place), size - 1) for place in places]
        near = np.take(result, low, axis)
        far = np.take(result, [min(i + 1, size - 1) for i in low], axis)
        parts = np.array([place - int(place) for place in places], object)
        parts = parts.reshape(-1, *(1,) * (x.ndim - axis - 1))
        result = near + (far - near) * parts
    whole = np.vectorize(int if x.dtype.kind in "iu" else float, [object])(result)
    return np.asarray(whole.astype(x.dtype))


def _global_lp_pool(x: Array, p: int = 2) -> Array:
    sums = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
    return np.asarray(sums ** (_WIDE(1) / p))


def _one_hot(indices: Array, depth: Array, values: Array, axis: int = -1) -> Array:
    """Indices are cast to int64 first, as ONNX says."""
    whole, count = indices.astype(np.int64), int(depth.reshape(-1)[0])
    chosen = np.where(whole < 0, whole + count, whole)[..., None] == np.arange(count)
    return np.asarray(np.moveaxis(np.where(chosen, values[1], values[0]), -1, axis))


_PLAIN_ATTENTION = {"scale", "is_causal", "softcap", "q_num_heads", "kv_num_heads"}

_ELEMENTWISE: Mapping[str, _Function] = {
    **{name: getattr(np, name.lower()) for name in ("Exp", "Log", "Tanh", "Sinh", "Cosh", "Sqrt")},
    **{name: getattr(np, name.lower()) for name in ("Sin", "Cos", "Tan")},
    **{f"A{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan")},
    **{f"A{name}h": getattr(np, f"arc{name}h") for name in ("sin", "cos", "tan")},
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Softplus": _softplus,
    "Sigmoid": _sigmoid,
    "LeakyRelu": _leaky,
    "PRelu": _prelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Erf": _erf,
    "Gelu": _gelu,
    "Shrink": _shrink,
    "MeanVarianceNormalization": _mean_variance,
    "GlobalLpPool": _global_lp_pool,
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "Attention": _attention,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
}
"""Operator to its value in ``longdouble``."""

_TYPED_BY = {"RMSNormalization": 1}
"""Operators whose result has the type of another input than the first."""

_OF_INTEGERS: Mapping[str, _Function] = {
    "Shrink": _shrink_integers,
    "PRelu": _prelu,
    "ReduceLogSum": lambda x, *axes, **given: _log_of_sum(x, x, *axes, **given),
    "ReduceLogSumExp": lambda x, *axes, **given: _log_of_sum(
        x, np.exp(x.astype(_WIDE)), *axes, **given
    ),
}
"""Operator to its value of integers."""

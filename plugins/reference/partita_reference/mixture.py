"""Mixtures of experts of onnxruntime: MoE and QMoE with whole numbers as weights.

Written from the operators' documentation (ContribOperators.md of onnxruntime), in float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from onnx.reference.op_run import OpRun

from partita_reference.quantized_weights import unpacked

Array = np.ndarray[Any, Any]


class _Layer(NamedTuple):
    """One product of all experts: weights (experts, columns, terms) in float64, and biases."""

    w: Array
    bias: Array | None

    def product(self, expert: int, rows: Array) -> Array:
        """Rows times an expert's weights."""
        y: Array = rows @ self.w[expert].T
        return y if self.bias is None else y + self.bias[expert].astype(np.float64)


class MoE(OpRun):
    """Each token's result is the sum of what its likeliest experts make of it."""

    op_domain = "com.microsoft"
    op_schema = None

    def _run(
        self,
        x: Array,
        logits: Array,
        fc1: Array,
        fc1_bias: Array | None,
        fc2: Array,
        fc2_bias: Array | None = None,
        fc3: Array | None = None,
        fc3_bias: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array]:
        given = (fc1, fc1_bias), (fc2, fc2_bias), (fc3, fc3_bias)
        layers = [None if w is None else _Layer(w.astype(np.float64), bias) for w, bias in given]
        return _mixed(x, logits, None, layers, attributes)


class QMoE(OpRun):
    """The same by weights of few bits, with a scale for each block or column."""

    op_domain = "com.microsoft"
    op_schema = None

    def _run(
        self, x: Array, logits: Array, *inputs: Array | None, **attributes: Any
    ) -> tuple[Array]:
        for name, default in (("quant_type", "int"), ("weights_prepacked", -1)):
            if attributes.get(name, default) not in (default, 0):
                raise ValueError(f"{name} {attributes[name]!r} is not implemented")
        given = [*inputs, *(None,) * 13]
        layers: list[_Layer | None] = []
        for number in range(3):
            w, scales, bias = given[3 * number : 3 * number + 3]
            bits = attributes.get("expert_weight_bits", 4)
            bits = attributes.get(f"fc{number + 1}_expert_weight_bits", bits)
            if w is None:
                layers.append(None)
                continue
            if scales is None:
                raise ValueError("scales are left out")
            layers.append(_Layer(_weights(w, scales, given[9 + number], bits, attributes), bias))
        return _mixed(x, logits, given[12], layers, attributes)


def _weights(
    w: Array, scales: Array, zeros: Array | None, bits: int, attributes: dict[str, Any]
) -> Array:
    numbers = unpacked(w, bits).astype(np.float64)
    terms = numbers.shape[-1]
    size = attributes.get("block_size", 0)
    size = size if size > 0 else terms
    wide = scales.astype(np.float64).reshape(*w.shape[:2], -1)
    points: Array = np.full(wide.shape, float(1 << (bits - 1)))
    if zeros is not None:
        found = unpacked(zeros, bits)
        count = wide.shape[-1] if zeros.ndim == 3 else w.shape[1]
        points = found[..., :count].astype(np.float64).reshape(wide.shape)
    spread = np.arange(terms) // size
    result: Array = (numbers - points[..., spread]) * wide[..., spread]
    return result


def _mixed(
    x: Array,
    logits: Array,
    weights: Array | None,
    layers: list[_Layer | None],
    attributes: dict[str, Any],
) -> tuple[Array]:
    if attributes.get("use_sparse_mixer", 0):
        raise ValueError("use_sparse_mixer is not implemented")
    first, second, third = layers
    if first is None or second is None:
        raise ValueError("weights are left out")
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    shares = _shares(logits, weights, attributes)
    y = np.zeros((len(rows), second.w.shape[1]))
    for expert in range(logits.shape[1]):
        own = np.flatnonzero(shares[:, expert])
        gate = first.product(expert, rows[own])
        other = None if third is None else third.product(expert, rows[own])
        inner = _activated(gate, other, attributes)
        y[own] += shares[own, expert, None] * second.product(expert, inner)
    return (y.reshape(x.shape).astype(x.dtype),)


def _shares(logits: Array, weights: Array | None, attributes: dict[str, Any]) -> Array:
    """The part of each expert in each token; 0 of those that it does not choose."""
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    parts = powers / powers.sum(axis=1, keepdims=True)
    if weights is not None:
        parts = weights.astype(np.float64)
    chosen = np.argsort(-wide, axis=1, kind="stable")[:, : attributes.get("k", 1)]
    shares = np.zeros(wide.shape)
    np.put_along_axis(shares, chosen, np.take_along_axis(parts, chosen, 1), 1)
    if not attributes.get("normalize_routing_weights", 0):
        return shares
    total = shares.sum(axis=1, keepdims=True)
    result: Array = np.divide(shares, total, out=np.zeros_like(shares), where=total != 0)
    return result


def _activated(x: Array, other: Array | None, attributes: dict[str, Any]) -> Array:
    kind = attributes.get("activation_type", "relu")
    if kind == "swiglu":
        return _swiglu(x, other, attributes)
    match kind:
        case "relu":
            x = np.maximum(x, 0)
        case "gelu":
            x = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case "silu":
            x = x / (1 + np.exp(-x))
        case "identity":
            pass
        case _:
            raise ValueError(f"activation_type {kind!r} is not implemented")
    return x if other is None else x * other


def _swiglu(x: Array, other: Array | None, attributes: dict[str, Any]) -> Array:
    if attributes.get("swiglu_limit_after_activation", 0):
        raise ValueError("swiglu_limit_after_activation is not implemented")
    fusion, half = attributes.get("swiglu_fusion", 0), x.shape[1] // 2
    if (other is None) == (fusion == 0):
        raise ValueError(f"swiglu_fusion is {fusion}, and fc3 {'not ' * (other is None)}given")
    if other is None and fusion == 1:
        x, other = x[:, ::2], x[:, 1::2]
    elif other is None:
        x, other = x[:, :half], x[:, half:]
    limit = float(attributes.get("swiglu_limit", math.inf))
    alpha, beta = attributes.get("activation_alpha", 1.0), attributes.get("activation_beta", 0.0)
    gate = np.minimum(x, limit)
    through = np.clip(other, -limit, limit) + beta
    result: Array = gate / (1 + np.exp(-alpha * gate)) * through
    return result


MIXTURES: list[type[OpRun]] = [MoE, QMoE]

"""Random mixtures of experts, as onnxruntime's operators have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw, Rng, floats, one_of, size

_DOMAIN = "com.microsoft"
_ROUTER_WEIGHTS = 14

Weights = Callable[[int, int], Sequence[Array | None]]
"""Makes of columns and terms the inputs of one product, without its bias."""


def mixture(rng: Rng) -> Draw:
    """Draws MoE: weights that are floats."""
    experts, hidden, inner = int(rng.integers(2, 6)), size(rng, 3, 20), size(rng, 2, 20)

    def weights(columns: int, terms: int) -> Sequence[Array]:
        return [floats(rng, [experts, columns, terms]) / np.float32(np.sqrt(terms))]

    given, parts = _products(rng, experts, hidden, inner, weights)
    inputs = [*_tokens(rng, experts, hidden), *(one for part in parts for one in part)]
    return _draw(inputs, given | _choice(rng, experts))


def mixture_of_few_bits(rng: Rng) -> Draw:
    """Draws QMoE: weights in blocks, or with one scale for a column."""
    bits, block = one_of(rng, 4, 4, 8), one_of(rng, 0, 16, 32)
    experts, step = int(rng.integers(2, 6)), block or 16
    hidden, inner = (int(rng.integers(1, 4)) * step - one_of(rng, 0, 4) for _ in range(2))
    has_zeros = rng.random() < 0.5
    zeros: list[Array | None] = []

    def weights(columns: int, terms: int) -> Sequence[Array]:
        blocks = [-(-terms // block)] if block else []
        w = _bytes(rng, [experts, columns, terms * bits // 8])
        scales = floats(rng, [experts, columns, *blocks]) / np.float32(2**bits * np.sqrt(terms))
        sizes = [experts, columns, *blocks]
        sizes[-1] = -(-sizes[-1] * bits // 8)
        zeros.append(_bytes(rng, sizes) if has_zeros else None)
        return [w, 4 * scales]

    given, parts = _products(rng, experts, hidden, inner, weights)
    given |= {"expert_weight_bits": bits} | ({"block_size": block} if block else {})
    x, logits = _tokens(rng, experts, hidden)
    inputs = [x, logits, *(one for part in parts for one in part)]
    inputs += [None] * (_ROUTER_WEIGHTS - 3 - len(inputs))
    inputs += [*zeros, *[None] * (3 - len(zeros))]
    if rng.random() < 0.3:
        inputs.append(np.asarray(rng.uniform(0.1, 1, logits.shape), np.float32))
    return _draw(inputs, given | _choice(rng, experts))


def _draw(inputs: list[Array | None], given: dict[str, Any]) -> Draw:
    while inputs[-1] is None:
        inputs.pop()
    constant = [at for at in range(2, min(len(inputs), _ROUTER_WEIGHTS)) if inputs[at] is not None]
    return Draw(inputs, given, constant, domain=_DOMAIN)


def _bytes(rng: Rng, shape: Sequence[int]) -> Array:
    return np.asarray(rng.integers(0, 256, shape), np.uint8)


def _tokens(rng: Rng, experts: int, hidden: int) -> tuple[Array, Array]:
    """Few tokens or many, and for each a number for each expert, none of them near another."""
    shape = one_of(rng, [1], [int(rng.integers(2, 5))], [2, int(rng.integers(1, 4))], [40])
    count = int(np.prod(shape))
    order = np.argsort(rng.random([count, experts]), axis=1)
    logits = 0.7 * order + rng.uniform(0, 0.3, [count, experts])
    return floats(rng, [*shape, hidden]), np.asarray(logits, np.float32)


def _choice(rng: Rng, experts: int) -> dict[str, Any]:
    """How many experts a token has, and what becomes of their parts."""
    return {
        "k": int(rng.integers(1, experts + 1)),
        "normalize_routing_weights": int(rng.integers(2)),
    }


def _products(
    rng: Rng, experts: int, hidden: int, inner: int, weights: Weights
) -> tuple[dict[str, Any], list[list[Array | None]]]:
    """What an expert computes: attributes, and the inputs of two products or of three."""
    kind = one_of(rng, "relu", "gelu", "silu", "identity", "swiglu", "swiglu")
    given: dict[str, Any] = {"activation_type": kind}
    third, fused = rng.random() < 0.4, False
    if kind == "swiglu":
        given |= {"activation_alpha": one_of(rng, 1.0, 1.7), "activation_beta": 1.0}
        given |= {"swiglu_limit": 0.9} if rng.random() < 0.5 else {}
        given["swiglu_fusion"] = 0 if third else int(rng.integers(1, 3))
        fused = not third
    sizes = [(inner * (1 + fused), hidden), (hidden, inner)] + [(inner, hidden)] * third
    biased = rng.random() < 0.5
    return given, [
        [*weights(*shape), floats(rng, [experts, shape[0]]) if biased else None] for shape in sizes
    ]

"""The activation and gate of experts, and the weighted sum of their results per token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita.lowering.shapes.mixture_inputs import Source
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.activation import gated_activation, gelu, plain
from partita_cpu.kernels.mixture.products import product
from partita_cpu.kernels.mixture.routing import Routes, add_biases, rows_of_tokens, sums_of_rows
from partita_cpu.kernels.mixture.weights import BlockWeights, PlainWeights, arrays_of, key_of
from partita_cpu.scalar.math import sigmoid


class Part(NamedTuple):
    """One product of all experts.

    Attributes:
        weights: Of all of them.
        bias: A row for each of them, or ``None``.
    """

    weights: BlockWeights | PlainWeights
    bias: Source | None = None

    @property
    def columns(self) -> int:
        """Of an expert's weights."""
        if isinstance(self.weights, PlainWeights):
            return self.weights.columns
        return self.weights.sizes.columns


class SwiGlu(NamedTuple):
    """Numbers of the operator that GPT-OSS gates by.

    Attributes:
        alpha: Factor of the gate within the sigmoid.
        beta: What is added to the other factor.
        limit: Largest gate, and largest size of the other factor.
    """

    alpha: float
    beta: float
    limit: float


class Experts(NamedTuple):
    """What an expert computes: ``down(activation(gate(x)) * up(x))``.

    Attributes:
        gate: A product.
        up: Another of the same columns; ``None`` for no factor.
        down: A product of what comes of both.
        activation: ``"identity"``, ``"relu"``, ``"silu"``, ``"gelu"`` (by tanh), or numbers.
    """

    gate: Part
    up: Part | None
    down: Part
    activation: str | SwiGlu


@loop
def swiglu_in_place(
    gate: Any, other: Any, alpha: float, beta: float, limit: float, tid: int, nt: int
) -> None:
    """``gate = min(gate, limit) * sigmoid(alpha * it) * (clip(other) + beta)``.

    Args:
        gate: float32, flat.
        other: As many.
        alpha: See `SwiGlu`.
        beta: See `SwiGlu`.
        limit: See `SwiGlu`.
        tid: This thread.
        nt: All threads.
    """
    start, stop = gate.size * tid // nt, gate.size * (tid + 1) // nt
    x, factor = gate[start:stop], other[start:stop]
    most, scale, summand = np.float32(limit), np.float32(alpha), np.float32(beta)
    for i in range(x.size):
        value = min(x[i], most)
        through = max(min(factor[i], most), -most)
        x[i] = value * sigmoid(scale * value) * (through + summand)


@loop
def multiply_in_place(x: Any, other: Any, tid: int, nt: int) -> None:
    """``x *= other``; both float32, flat."""
    start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
    target, factor = x[start:stop], other[start:stop]
    for i in range(target.size):
        target[i] *= factor[i]


def mixture(b: Builder, x: Operand, found: Routes, experts: Experts) -> Operand:
    """The sum of what the experts of each token make of it, each by its share.

    Args:
        b: The builder.
        x: Tokens (..., terms) in float32.
        found: Their experts.
        experts: What these compute.
    """
    y = b.empty((*x.shape[:-1], experts.down.columns), np.float32)
    if not y.size:
        return y
    rows = rows_of_tokens(b, x, found)
    gate = _biased(b, rows, found, experts.gate)
    other = None if experts.up is None else _biased(b, rows, found, experts.up)
    inner = _activated(b, experts.activation, gate, other)
    sums_of_rows(b, _biased(b, inner, found, experts.down), found, y)
    return y


def _biased(b: Builder, rows: Operand, found: Routes, part: Part) -> Operand:
    y = product(b, rows, found, part.weights)
    if part.bias is None:
        return y
    source, columns = part.bias, part.columns
    biases = b.prepack(
        source.operands[0],
        ("biases of experts", columns, *key_of(source)),
        lambda _: np.stack([*arrays_of(b, source, columns)]).astype(np.float32),
    )
    b.call(add_biases, b.flat(y), found.starts, b.flat(biases), columns)
    return y


def _activated(
    b: Builder, activation: str | SwiGlu, gate: Operand, other: Operand | None
) -> Operand:
    if isinstance(activation, SwiGlu):
        b.call(swiglu_in_place, b.flat(gate), b.flat(other or gate), *activation)
        return gate
    if other is not None and activation in ("silu", "gelu"):
        form = {"activation": activation.title(), "in_place": True}
        form |= {"approximate": "tanh"} if activation == "gelu" else {}
        return gated_activation(b, Node("Gated", (), (), form, domain="partita"), gate, other)
    if activation == "gelu":
        gate = gelu(b, Node("Gelu", (), (), {"approximate": "tanh"}), gate)
    elif activation != "identity":
        gate = plain(b, Node(activation.title(), (), ()), gate)
    if other is not None:
        b.call(multiply_in_place, b.flat(gate), b.flat(other))
    return gate

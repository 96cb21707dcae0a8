"""What the recurrent cells share: activations chosen by number, the recurrent product, lengths.

State is kept in rows, one per direction and batch element. ``shape`` is int64: directions, steps,
batch, hidden size, then the strides of the input products and of the output for direction, step
and batch element, see `SHAPE`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_cpu.kernels.loop_jit import loop
from partita_cpu.kernels.scalar import (
    exp,
    like,
    round_even,
    sigmoid,
    softplus,
    tanh,
    wide_vectors,
)

SHAPE = (
    "directions",
    "steps",
    "batch",
    "hidden",
    "x_direction",
    "x_step",
    "x_batch",
    "y_direction",
    "y_step",
    "y_batch",
)
"""The elements of ``shape``; strides count rows."""

ACTIVATIONS = {
    "Sigmoid": (0, 0.0, 0.0),
    "Tanh": (1, 0.0, 0.0),
    "Relu": (2, 0.0, 0.0),
    "Affine": (3, 1.0, 0.0),
    "LeakyRelu": (4, 0.01, 0.0),
    "ThresholdedRelu": (5, 1.0, 0.0),
    "ScaledTanh": (6, 1.0, 1.0),
    "HardSigmoid": (7, 0.2, 0.5),
    "Elu": (8, 1.0, 0.0),
    "Softsign": (9, 0.0, 0.0),
    "Softplus": (10, 0.0, 0.0),
}
"""Number and default parameters of each activation."""


@loop
def apply_activation(row: Any, code: int, alpha: Any, beta: Any, clip: Any) -> None:
    """Clips the row to [-clip, clip] if clip is positive, then applies an activation in place."""
    wide_vectors()
    zero = like(alpha, 0)
    if clip > zero:
        for i in range(row.size):
            row[i] = min(max(row[i], -clip), clip)
    if code == 0:
        for i in range(row.size):
            row[i] = sigmoid(row[i])
    elif code == 1:
        for i in range(row.size):
            row[i] = tanh(row[i])
    else:
        _apply_rare(row, code, alpha, beta)


@loop
def _apply_rare(row: Any, code: int, alpha: Any, beta: Any) -> None:
    zero, one = like(alpha, 0), like(alpha, 1)
    for i in range(row.size):
        x = row[i]
        if code == 2:
            row[i] = max(x, zero)
        elif code == 3:
            row[i] = alpha * x + beta
        elif code == 4:
            row[i] = alpha * x if x < zero else x
        elif code == 5:
            row[i] = x if x > alpha else zero
        elif code == 6:
            row[i] = alpha * tanh(beta * x)
        elif code == 7:
            row[i] = min(max(alpha * x + beta, zero), one)
        elif code == 8:
            row[i] = x if x >= zero else alpha * (exp(x) - one)
        elif code == 9:
            row[i] = x / (one + abs(x))
        elif code == 10:
            row[i] = softplus(x)


@loop
def add_product(state: Any, weights: Any, gates: Any, terms: int, columns: int) -> None:
    """``gates += state @ weights`` for one row; ``weights`` is flat, ``terms`` x ``columns``."""
    k = 0
    while k + 8 <= terms:
        s0, s1, s2, s3 = state[k], state[k + 1], state[k + 2], state[k + 3]
        s4, s5, s6, s7 = state[k + 4], state[k + 5], state[k + 6], state[k + 7]
        at = k * columns
        w0, w1 = weights[at : at + columns], weights[at + columns : at + 2 * columns]
        at += 2 * columns
        w2, w3 = weights[at : at + columns], weights[at + columns : at + 2 * columns]
        at += 2 * columns
        w4, w5 = weights[at : at + columns], weights[at + columns : at + 2 * columns]
        at += 2 * columns
        w6, w7 = weights[at : at + columns], weights[at + columns : at + 2 * columns]
        for j in range(columns):
            left = (s0 * w0[j] + s1 * w1[j]) + (s2 * w2[j] + s3 * w3[j])
            right = (s4 * w4[j] + s5 * w5[j]) + (s6 * w6[j] + s7 * w7[j])
            gates[j] += left + right
        k += 8
    while k < terms:
        s0 = state[k]
        w0 = weights[k * columns : (k + 1) * columns]
        for j in range(columns):
            gates[j] += s0 * w0[j]
        k += 1


@loop
def round_to_bytes(rows: Any, out: Any) -> None:
    """What is left of float32 elements after dynamic quantisation to uint8 and back."""
    low, high = np.float32(0), np.float32(0)
    for i in range(rows.size):
        low = min(low, rows[i])
        high = max(high, rows[i])
    step = (high - low) / np.float32(255)
    step = np.float32(1) if step == np.float32(0) else step
    start = min(max(round_even(-low / step), np.float32(0)), np.float32(255))
    for i in range(rows.size):
        level = min(max(round_even(rows[i] / step) + start, np.float32(0)), np.float32(255))
        out[i] = (level - start) * step

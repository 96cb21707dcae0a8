"""Shared parts of recurrent cells: activations chosen by number, positions by length and direction.

State is kept in rows, one per direction and batch element. ``shape`` is int64: directions, steps,
batch, hidden size, then the strides of the input products and of the output for direction, step and
batch element, in rows, then the length of a row of input products.
"""

from __future__ import annotations

from typing import Any

from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.activations import clip as within
from partita_cpu.scalar.activations import relu
from partita_cpu.scalar.instructions import like, wide_vectors
from partita_cpu.scalar.math import copy_row, exp, sigmoid, softplus, tanh


@loop
def apply_activation(row: Any, code: int, alpha: Any, beta: Any, clip: Any) -> None:
    """Clips the row to [-clip, clip] if clip is positive, then applies an activation in place.

    Its number is one of ``partita.lowering.gate_activations``.
    """
    wide_vectors()
    zero = like(alpha, 0)
    if clip > zero:
        for i in range(row.size):
            row[i] = within(row[i], -clip, clip)
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
            row[i] = relu(x)
        elif code == 3:
            row[i] = alpha * x + beta
        elif code == 4:
            row[i] = alpha * x if x < zero else x
        elif code == 5:
            row[i] = zero if x < alpha else x
        elif code == 6:
            row[i] = alpha * tanh(beta * x)
        elif code == 7:
            row[i] = within(alpha * x + beta, zero, one)
        elif code == 8:
            row[i] = x if x >= zero else alpha * (exp(x) - one)
        elif code == 9:
            row[i] = x / (one + abs(x))
        elif code == 10:
            row[i] = softplus(x)


@loop
def find_places(
    places: Any, lengths: Any, shape: Any, step: int, backwards: int, first: int, stop: int
) -> None:
    """Where the gates of each row lie at a step; -1 for rows whose sequence has ended.

    Args:
        places: What is written.
        lengths: Of the sequences.
        shape: Sizes and strides; see `recurrent.Cells`.
        step: How many steps came before.
        backwards: Whether sequences are read from their ends.
        first: First row.
        stop: Behind the last row.
    """
    batch, width = shape[2], shape[10]
    for row in range(first, stop):
        element = row % batch
        length = min(lengths[element], shape[1])
        time = length - 1 - step if backwards else step
        at = row // batch * shape[4] + time * shape[5] + element * shape[6]
        places[row] = at * width if step < length else -1


@loop
def give_output(
    y: Any, state: Any, lengths: Any, shape: Any, step: int, backwards: int, row: int
) -> None:
    """Writes a row's state to its place in the output; zeros behind the end of its sequence.

    Args:
        y: Output: every step's state, flat.
        state: The row.
        lengths: Of the sequences.
        shape: Sizes and strides; see `recurrent.Cells`.
        step: How many steps came before.
        backwards: Whether sequences are read from their ends.
        row: Its number.
    """
    batch, n = shape[2], shape[3]
    direction, element = row // batch, row % batch
    length = min(lengths[element], shape[1])
    time = length - 1 - step if backwards and step < length else step
    at = direction * shape[7] + time * shape[8] + element * shape[9]
    target = y[at * n : (at + 1) * n]
    if step < length:
        copy_row(state, target)
    else:
        target[:] = 0

"""The time loops of LSTM, GRU and RNN.

Each gets the products of the input with the input weights, made for all steps at once; the loops
add the recurrent part. ``h`` holds the state, one row per direction and batch element, and ends as
the final one. Threads share these rows: they are independent of each other.
"""

from __future__ import annotations

from typing import Any

from partita_cpu.kernels.loop_jit import loop
from partita_cpu.kernels.recurrent_gates import add_product, apply_activation, round_to_bytes
from partita_cpu.kernels.scalar import copy_row, like


@loop
def lstm_loop(
    x: Any,
    weights: Any,
    peepholes: Any,
    lengths: Any,
    h: Any,
    c: Any,
    rounded: Any,
    y: Any,
    shape: Any,
    reverse: Any,
    codes: Any,
    parameters: Any,
    clip: Any,
    input_forget: int,
    quantized: int,
    tid: int,
    nt: int,
) -> None:
    """LSTM. ``x``: rows of 4 gates (i, o, f, c); overwritten. ``y``: rows of hidden states.

    With ``quantized`` every state passes through `round_to_bytes`, for all batch elements of a
    direction together; threads then share directions only.
    """
    batch, n = shape[2], shape[3]
    first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
    if quantized:
        first, last = shape[0] * tid // nt * batch, shape[0] * (tid + 1) // nt * batch
    while first < last:
        direction = first // batch
        stop = min((direction + 1) * batch, last)
        w = weights[direction * n * 4 * n : (direction + 1) * n * 4 * n]
        peep = peepholes[direction * 3 * n : (direction + 1) * 3 * n]
        for step in range(shape[1]):
            if quantized:
                round_to_bytes(h[first * n : stop * n], rounded[first * n : stop * n])
            for row in range(first, stop):
                element = row - direction * batch
                length = min(lengths[element], shape[1])
                if step >= length:
                    at = direction * shape[7] + step * shape[8] + element * shape[9]
                    y[at * n : (at + 1) * n] = 0
                    continue
                time = length - 1 - step if reverse[direction] else step
                at = direction * shape[4] + time * shape[5] + element * shape[6]
                gates = x[at * 4 * n : (at + 1) * 4 * n]
                state, cell = h[row * n : (row + 1) * n], c[row * n : (row + 1) * n]
                source = rounded[row * n : (row + 1) * n] if quantized else state
                add_product(source, w, gates, n, 4 * n)
                _lstm_cell(
                    gates,
                    state,
                    cell,
                    peep,
                    codes[direction * 3 : direction * 3 + 3],
                    parameters[direction * 6 : direction * 6 + 6],
                    clip,
                    input_forget,
                )
                at = direction * shape[7] + time * shape[8] + element * shape[9]
                copy_row(state, y[at * n : (at + 1) * n])
        first = stop


@loop
def _lstm_cell(
    gates: Any,
    state: Any,
    cell: Any,
    peep: Any,
    codes: Any,
    parameters: Any,
    clip: Any,
    input_forget: int,
) -> None:
    n = state.size
    enter, leave = gates[:n], gates[n : 2 * n]
    keep, fresh = gates[2 * n : 3 * n], gates[3 * n :]
    for i in range(n):
        enter[i] += peep[i] * cell[i]
        keep[i] += peep[2 * n + i] * cell[i]
    apply_activation(enter, codes[0], parameters[0], parameters[1], clip)
    if input_forget:
        for i in range(n):
            keep[i] = like(keep[i], 1) - enter[i]
    else:
        apply_activation(keep, codes[0], parameters[0], parameters[1], clip)
    apply_activation(fresh, codes[1], parameters[2], parameters[3], clip)
    for i in range(n):
        cell[i] = keep[i] * cell[i] + enter[i] * fresh[i]
        leave[i] += peep[n + i] * cell[i]
        state[i] = cell[i]
    apply_activation(leave, codes[0], parameters[0], parameters[1], clip)
    apply_activation(state, codes[2], parameters[4], parameters[5], like(clip, 0))
    for i in range(n):
        state[i] *= leave[i]


@loop
def gru_loop(
    x: Any,
    weights: Any,
    late_bias: Any,
    lengths: Any,
    h: Any,
    rooms: Any,
    y: Any,
    shape: Any,
    reverse: Any,
    codes: Any,
    parameters: Any,
    clip: Any,
    reset_after: int,
    tid: int,
    nt: int,
) -> None:
    """GRU. ``x``: rows of 3 gates (z, r, h); overwritten. ``rooms``: scratch like the states.

    ``weights`` holds per direction the columns for z and r, then those for h. With ``reset_after``
    (linear_before_reset) ``late_bias`` is added to the recurrent product before the reset gate.
    """
    batch, n = shape[2], shape[3]
    first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
    for row in range(first, last):
        direction = row // batch
        element = row - direction * batch
        length = min(lengths[element], shape[1])
        w = weights[direction * 3 * n * n : (direction + 1) * 3 * n * n]
        state, room = h[row * n : (row + 1) * n], rooms[row * n : (row + 1) * n]
        code = codes[direction * 2 : direction * 2 + 2]
        numbers = parameters[direction * 4 : direction * 4 + 4]
        for step in range(shape[1]):
            if step >= length:
                at = direction * shape[7] + step * shape[8] + element * shape[9]
                y[at * n : (at + 1) * n] = 0
                continue
            time = length - 1 - step if reverse[direction] else step
            at = direction * shape[4] + time * shape[5] + element * shape[6]
            gates = x[at * 3 * n : (at + 1) * 3 * n]
            update, reset, fresh = gates[:n], gates[n : 2 * n], gates[2 * n :]
            add_product(state, w, gates[: 2 * n], n, 2 * n)
            apply_activation(gates[: 2 * n], code[0], numbers[0], numbers[1], clip)
            if reset_after:
                copy_row(late_bias[direction * n : (direction + 1) * n], room)
                add_product(state, w[2 * n * n :], room, n, n)
                for i in range(n):
                    fresh[i] += reset[i] * room[i]
            else:
                for i in range(n):
                    room[i] = reset[i] * state[i]
                add_product(room, w[2 * n * n :], fresh, n, n)
            apply_activation(fresh, code[1], numbers[2], numbers[3], clip)
            for i in range(n):
                state[i] = (like(state[i], 1) - update[i]) * fresh[i] + update[i] * state[i]
            at = direction * shape[7] + time * shape[8] + element * shape[9]
            copy_row(state, y[at * n : (at + 1) * n])


@loop
def rnn_loop(
    x: Any,
    weights: Any,
    lengths: Any,
    h: Any,
    y: Any,
    shape: Any,
    reverse: Any,
    codes: Any,
    parameters: Any,
    clip: Any,
    tid: int,
    nt: int,
) -> None:
    """RNN. ``x``: rows of the one gate; overwritten."""
    batch, n = shape[2], shape[3]
    first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
    for row in range(first, last):
        direction = row // batch
        element = row - direction * batch
        length = min(lengths[element], shape[1])
        w = weights[direction * n * n : (direction + 1) * n * n]
        state = h[row * n : (row + 1) * n]
        code, numbers = codes[direction], parameters[2 * direction : 2 * direction + 2]
        for step in range(shape[1]):
            if step >= length:
                at = direction * shape[7] + step * shape[8] + element * shape[9]
                y[at * n : (at + 1) * n] = 0
                continue
            time = length - 1 - step if reverse[direction] else step
            at = direction * shape[4] + time * shape[5] + element * shape[6]
            gate = x[at * n : (at + 1) * n]
            add_product(state, w, gate, n, n)
            apply_activation(gate, code, numbers[0], numbers[1], clip)
            copy_row(gate, state)
            at = direction * shape[7] + time * shape[8] + element * shape[9]
            copy_row(gate, y[at * n : (at + 1) * n])

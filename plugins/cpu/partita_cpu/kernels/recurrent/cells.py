"""The time loops of LSTM, GRU and RNN.

Each gets the products of the input with the input weights, made for all steps at once; the loops
add the recurrent part to them. ``h`` holds the state, one row per direction and batch element, and
ends as the final one. Threads share these rows: they are independent of each other.
"""

from __future__ import annotations

from typing import Any

from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD
from partita_cpu.kernels.recurrent.gates import apply_activation, find_places, give_output
from partita_cpu.kernels.recurrent.products import add_byte_products, add_products, quantize_rows
from partita_cpu.scalar.math import copy_row, like


@loop
def lstm_loop(
    x: Any,
    weights: Any,
    peepholes: Any,
    lengths: Any,
    h: Any,
    c: Any,
    places: Any,
    y: Any,
    shape: Any,
    reverse: Any,
    codes: Any,
    parameters: Any,
    clip: Any,
    input_forget: int,
    tid: int,
    nt: int,
) -> None:
    """LSTM. ``x``: rows of 4 gates (i, o, f, c); overwritten. ``places``: scratch, one per row."""
    batch, n, width = shape[2], shape[3], shape[10]
    first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
    while first < last:
        d = first // batch
        stop = min((d + 1) * batch, last)
        for step in range(shape[1]):
            find_places(places, lengths, shape, step, reverse[d], first, stop)
            add_products(h, n, weights, d * n * width, x, places, 0, first, stop, n, width // PANEL)
            for row in range(first, stop):
                at = places[row]
                state = h[row * n : (row + 1) * n]
                if at >= 0:
                    _lstm_cell(
                        x[at : at + 4 * n],
                        state,
                        c[row * n : (row + 1) * n],
                        peepholes[d * 3 * n : (d + 1) * 3 * n],
                        codes[d * 3 : d * 3 + 3],
                        parameters[d * 6 : d * 6 + 6],
                        clip,
                        input_forget,
                    )
                give_output(y, state, lengths, shape, step, reverse[d], row)
        first = stop


@loop
def lstm_bytes_loop(
    x: Any,
    weights: Any,
    scales: Any,
    zeros: Any,
    totals: Any,
    peepholes: Any,
    lengths: Any,
    h: Any,
    c: Any,
    places: Any,
    levels: Any,
    sums: Any,
    kernels: Any,
    y: Any,
    shape: Any,
    reverse: Any,
    codes: Any,
    parameters: Any,
    clip: Any,
    input_forget: int,
    tid: int,
    nt: int,
) -> None:
    """LSTM on panels of int8; every state is quantized by its range, all rows of a direction alike.

    ``scales``, ``zeros`` and ``totals`` are for the columns of the weights; ``levels`` (rows of
    whole quads) and ``sums`` (a panel per direction) are scratch; ``kernels`` are
    `table.byte_kernels`. Threads share directions only.
    """
    batch, n, width = shape[2], shape[3], shape[10]
    quads = (n + QUAD - 1) // QUAD
    for d in range(shape[0] * tid // nt, shape[0] * (tid + 1) // nt):
        first, stop = d * batch, (d + 1) * batch
        columns = slice(d * 4 * n, (d + 1) * 4 * n)
        room = sums[d * PANEL : (d + 1) * PANEL]
        for step in range(shape[1]):
            find_places(places, lengths, shape, step, reverse[d], first, stop)
            own = levels[first * quads * QUAD : stop * quads * QUAD]
            scale, zero = quantize_rows(h[first * n : stop * n], own, batch, n, quads * QUAD)
            for row in range(first, stop):
                at = places[row]
                state = h[row * n : (row + 1) * n]
                if at >= 0:
                    add_byte_products(
                        levels[row * quads * QUAD : (row + 1) * quads * QUAD],
                        scale,
                        zero,
                        weights,
                        d * width * quads * QUAD,
                        scales[columns],
                        zeros[columns],
                        totals[columns],
                        x,
                        at,
                        room,
                        kernels,
                        n,
                        quads,
                        4 * n,
                    )
                    _lstm_cell(
                        x[at : at + 4 * n],
                        state,
                        c[row * n : (row + 1) * n],
                        peepholes[d * 3 * n : (d + 1) * 3 * n],
                        codes[d * 3 : d * 3 + 3],
                        parameters[d * 6 : d * 6 + 6],
                        clip,
                        input_forget,
                    )
                give_output(y, state, lengths, shape, step, reverse[d], row)


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
    places: Any,
    room_places: Any,
    y: Any,
    shape: Any,
    reverse: Any,
    codes: Any,
    parameters: Any,
    clip: Any,
    early: int,
    reset_after: int,
    tid: int,
    nt: int,
) -> None:
    """GRU. ``x``: rows of z and r, then from ``early`` on h; overwritten.

    ``weights`` holds per direction the panels for z and r, then those for h. ``rooms`` is scratch:
    a row of whole panels per row of the state. With ``reset_after`` (linear_before_reset)
    ``late_bias`` is added to the recurrent product before the reset gate.
    """
    batch, n, width = shape[2], shape[3], shape[10]
    late = width - early
    first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
    while first < last:
        d = first // batch
        stop = min((d + 1) * batch, last)
        code, numbers = codes[d * 2 : d * 2 + 2], parameters[d * 4 : d * 4 + 4]
        w_at = d * n * width
        for step in range(shape[1]):
            find_places(places, lengths, shape, step, reverse[d], first, stop)
            add_products(h, n, weights, w_at, x, places, 0, first, stop, n, early // PANEL)
            for row in range(first, stop):
                at = places[row]
                room = rooms[row * late : row * late + n]
                if at >= 0:
                    apply_activation(x[at : at + 2 * n], code[0], numbers[0], numbers[1], clip)
                    if not reset_after:
                        for i in range(n):
                            room[i] = x[at + n + i] * h[row * n + i]
                if reset_after:
                    copy_row(late_bias[d * n : (d + 1) * n], room)
            w_late = w_at + n * early
            if reset_after:
                panels = late // PANEL
                add_products(h, n, weights, w_late, rooms, room_places, 0, first, stop, n, panels)
            else:
                panels = late // PANEL
                add_products(rooms, late, weights, w_late, x, places, early, first, stop, n, panels)
            for row in range(first, stop):
                at = places[row]
                state = h[row * n : (row + 1) * n]
                if at >= 0:
                    update, reset = x[at : at + n], x[at + n : at + 2 * n]
                    fresh = x[at + early : at + early + n]
                    if reset_after:
                        room = rooms[row * late : row * late + n]
                        for i in range(n):
                            fresh[i] += reset[i] * room[i]
                    apply_activation(fresh, code[1], numbers[2], numbers[3], clip)
                    for i in range(n):
                        state[i] = (like(clip, 1) - update[i]) * fresh[i] + update[i] * state[i]
                give_output(y, state, lengths, shape, step, reverse[d], row)
        first = stop


@loop
def rnn_loop(
    x: Any,
    weights: Any,
    lengths: Any,
    h: Any,
    places: Any,
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
    batch, n, width = shape[2], shape[3], shape[10]
    first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
    while first < last:
        d = first // batch
        stop = min((d + 1) * batch, last)
        for step in range(shape[1]):
            find_places(places, lengths, shape, step, reverse[d], first, stop)
            add_products(h, n, weights, d * n * width, x, places, 0, first, stop, n, width // PANEL)
            for row in range(first, stop):
                at = places[row]
                state = h[row * n : (row + 1) * n]
                if at >= 0:
                    gate = x[at : at + n]
                    apply_activation(gate, codes[d], parameters[2 * d], parameters[2 * d + 1], clip)
                    copy_row(gate, state)
                give_output(y, state, lengths, shape, step, reverse[d], row)
        first = stop

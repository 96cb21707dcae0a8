"""The time loops of LSTM, GRU and RNN.

Each gets the products of the input with the input weights, made for all steps at once; the loops
add the recurrent part to them. ``h`` holds the state, one row per direction and batch element, and
ends as the final one. Threads share these rows: they are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD
from partita_cpu.kernels.recurrent.gates import apply_activation, find_places, give_output
from partita_cpu.kernels.recurrent.products import (
    ByteColumns,
    GatePanels,
    QuantizedState,
    StatePairs,
    add_byte_products,
    add_pair_products,
    add_panel_products,
    add_products,
    quantize_rows,
)
from partita_cpu.scalar.instructions import like
from partita_cpu.scalar.math import copy_row


class CellFields(NamedTuple):
    """What all cells take.

    Attributes:
        shape: Sizes; see `recurrent.Cells`.
        reverse: For each direction whether it begins at the end.
        codes: Of the activations.
        parameters: Of the activations.
        clip: Largest absolute value of what activations get, or 0 for any.
    """

    shape: KernelArray
    reverse: KernelArray
    codes: KernelArray
    parameters: KernelArray
    clip: Any


class LstmState(NamedTuple):
    """Peepholes and lengths of sequences, state, cell, and scratch for a place per row."""

    peepholes: KernelArray
    lengths: KernelArray
    h: KernelArray
    c: KernelArray
    places: KernelArray


def _lstm_by(
    multiply: Callable[..., None], name: str, weights_type: str = "Any"
) -> Callable[..., None]:
    """An LSTM whose states are multiplied by a function.

    Args:
        multiply: Adds the products of states to gates, as `add_panel_products` does.
        name: Of the kernel.
        weights_type: The type of the recurrent weights, as an annotation.
    """

    def lstm(
        x: Any,
        weights: Any,
        memory: LstmState,
        y: Any,
        cell: CellFields,
        input_forget: int,
        tid: int,
        nt: int,
    ) -> None:
        """LSTM. ``x``: rows of 4 gates (i, o, f, c); overwritten.

        Args:
            x: Products with the input weights, rows of 4 gates, flat.
            weights: The recurrent weights, as `multiply` takes them.
            memory: The state; h and c become the final ones.
            y: Output: every step's h, flat.
            cell: Sizes and activations.
            input_forget: Whether the forget gate is one minus the input gate.
            tid: This thread.
            nt: All threads; they share rows of the state.
        """
        lengths, h, places = memory.lengths, memory.h, memory.places
        shape, reverse = cell.shape, cell.reverse
        batch, n, width = shape[2], shape[3], shape[10]
        first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
        while first < last:
            d = first // batch
            stop = min((d + 1) * batch, last)
            for step in range(shape[1]):
                find_places(places, lengths, shape, step, reverse[d], first, stop)
                multiply(h, n, weights, d, x, width, places, first, stop)
                for row in range(first, stop):
                    _lstm_row(x, memory, y, cell, input_forget, d, step, row)
            first = stop

    lstm.__name__ = lstm.__qualname__ = name
    lstm.__annotations__["weights"] = weights_type  # tells that a record is passed field by field
    return loop(lstm)


lstm_loop = _lstm_by(add_panel_products, "lstm_loop")
"""LSTM on panels of the recurrent weights, direction by direction."""

lstm_pairs_loop = _lstm_by(add_pair_products, "lstm_pairs_loop", StatePairs.__name__)
"""LSTM whose states are multiplied in bfloat16 by `StatePairs`, and kept in float32."""


class ByteScratch(NamedTuple):
    """Rows of whole quads of levels, a panel of sums per direction, and `byte_kernels`."""

    levels: KernelArray
    sums: KernelArray
    kernels: KernelArray


@loop
def lstm_bytes_loop(
    x: Any,
    weights: Any,
    of_columns: ByteColumns,
    memory: LstmState,
    scratch: ByteScratch,
    y: Any,
    cell: CellFields,
    input_forget: int,
    tid: int,
    nt: int,
) -> None:
    """LSTM on panels of int8; every state is quantized by its range, all rows of a direction alike.

    Threads share directions only.

    Args:
        x: As of `lstm_loop`.
        weights: Panels of the recurrent weights in int8, direction by direction.
        of_columns: Scales, zero points and sums of their columns.
        memory: As of `lstm_loop`.
        scratch: Room for quantized states and sums.
        y: As of `lstm_loop`.
        cell: As of `lstm_loop`.
        input_forget: As of `lstm_loop`.
        tid: This thread.
        nt: All threads.
    """
    scales, zeros, totals = of_columns
    lengths, h, places = memory.lengths, memory.h, memory.places
    levels, sums, kernels = scratch
    shape, reverse = cell.shape, cell.reverse
    batch, n, width = shape[2], shape[3], shape[10]
    quads = (n + QUAD - 1) // QUAD
    for d in range(shape[0] * tid // nt, shape[0] * (tid + 1) // nt):
        first, stop = d * batch, (d + 1) * batch
        columns = slice(d * 4 * n, (d + 1) * 4 * n)
        room = sums[d * PANEL : (d + 1) * PANEL]
        own_columns = ByteColumns(scales[columns], zeros[columns], totals[columns])
        for step in range(shape[1]):
            find_places(places, lengths, shape, step, reverse[d], first, stop)
            own = levels[first * quads * QUAD : stop * quads * QUAD]
            scale, zero = quantize_rows(h[first * n : stop * n], own, batch, n, quads * QUAD)
            for row in range(first, stop):
                at = places[row]
                if at >= 0:
                    quantized = QuantizedState(
                        levels[row * quads * QUAD : (row + 1) * quads * QUAD], scale, zero
                    )
                    w_at, gates = d * width * quads * QUAD, x[at : at + 4 * n]
                    add_byte_products(
                        quantized, weights, w_at, own_columns, gates, room, kernels, n
                    )
                _lstm_row(x, memory, y, cell, input_forget, d, step, row)


@loop(inline=True)
def _lstm_row(
    x: Any,
    memory: LstmState,
    y: Any,
    cell: CellFields,
    input_forget: int,
    d: int,
    step: int,
    row: int,
) -> None:
    """The cell of one row at one step, unless its sequence has ended, and the row's output.

    Args:
        x: Sums of the gates, which are overwritten.
        memory: The state.
        y: Output.
        cell: Sizes, directions and activations.
        input_forget: Whether the forget gate is one less the input gate.
        d: The direction.
        step: The step.
        row: The row.
    """
    peepholes, lengths, h, c, places = memory
    shape, reverse, codes, parameters, clip = cell
    n, at = shape[3], places[row]
    state = h[row * n : (row + 1) * n]
    if at >= 0:
        peep, held = peepholes[d * 3 * n : (d + 1) * 3 * n], c[row * n : (row + 1) * n]
        code, numbers = codes[d * 3 : d * 3 + 3], parameters[d * 6 : d * 6 + 6]
        enter, leave = x[at : at + n], x[at + n : at + 2 * n]
        keep, fresh = x[at + 2 * n : at + 3 * n], x[at + 3 * n : at + 4 * n]
        for i in range(n):
            enter[i] += peep[i] * held[i]
            keep[i] += peep[2 * n + i] * held[i]
        apply_activation(enter, code[0], numbers[0], numbers[1], clip)
        if input_forget:
            for i in range(n):
                keep[i] = like(keep[i], 1) - enter[i]
        else:
            apply_activation(keep, code[0], numbers[0], numbers[1], clip)
        apply_activation(fresh, code[1], numbers[2], numbers[3], clip)
        for i in range(n):
            held[i] = keep[i] * held[i] + enter[i] * fresh[i]
            leave[i] += peep[n + i] * held[i]
            state[i] = held[i]
        apply_activation(leave, code[0], numbers[0], numbers[1], clip)
        apply_activation(state, code[2], numbers[4], numbers[5], like(clip, 0))
        for i in range(n):
            state[i] *= leave[i]
    give_output(y, state, lengths, shape, step, reverse[d], row)


class GruState(NamedTuple):
    """Lengths of sequences, state, and scratch: a row of whole panels per row of the state.

    Then the place of each row's gates, and that of each row of scratch.
    """

    lengths: KernelArray
    h: KernelArray
    rooms: KernelArray
    places: KernelArray
    room_places: KernelArray


@loop
def gru_loop(
    x: Any,
    weights: Any,
    late_bias: Any,
    memory: GruState,
    y: Any,
    cell: CellFields,
    early: int,
    reset_after: int,
    tid: int,
    nt: int,
) -> None:
    """GRU. ``x``: rows of z and r, then from ``early`` on h; overwritten.

    ``weights`` holds per direction the panels for z and r, then those for h. With ``reset_after``
    (linear_before_reset) ``late_bias`` is added to the recurrent product before the reset gate.

    Args:
        x: Products with the input weights, one row per step and row of the state, flat.
        weights: Panels of the recurrent weights.
        late_bias: For each direction the recurrent bias of h; read with ``reset_after`` alone.
        memory: The state; h becomes the final one.
        y: Output: every step's h, flat.
        cell: Sizes and activations.
        early: Where h begins in a row: z and r take whole panels.
        reset_after: Whether the reset gate applies to the product, not to the state.
        tid: This thread.
        nt: All threads; they share rows of the state.
    """
    lengths, h, rooms, places, room_places = memory
    shape, reverse, codes, parameters, clip = cell
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
            panels = GatePanels(weights, w_at, n, early // PANEL)
            add_products(h, n, panels, x, places, 0, first, stop)
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
            panels = GatePanels(weights, w_at + n * early, n, late // PANEL)
            if reset_after:
                add_products(h, n, panels, rooms, room_places, 0, first, stop)
            else:
                add_products(rooms, late, panels, x, places, early, first, stop)
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
    cell: CellFields,
    tid: int,
    nt: int,
) -> None:
    """RNN. ``x``: rows of the one gate; overwritten.

    Args:
        x: Products with the input weights, flat.
        weights: Panels of the recurrent weights, direction by direction.
        lengths: Of the sequences.
        h: The state; becomes the final one.
        places: Scratch: where each row's gates are in x.
        y: Output: every step's h, flat.
        cell: Sizes and activations.
        tid: This thread.
        nt: All threads; they share rows of the state.
    """
    shape, reverse, codes, parameters, clip = cell
    batch, n, width = shape[2], shape[3], shape[10]
    first, last = shape[0] * batch * tid // nt, shape[0] * batch * (tid + 1) // nt
    while first < last:
        d = first // batch
        stop = min((d + 1) * batch, last)
        for step in range(shape[1]):
            find_places(places, lengths, shape, step, reverse[d], first, stop)
            panels = GatePanels(weights, d * n * width, n, width // PANEL)
            add_products(h, n, panels, x, places, 0, first, stop)
            for row in range(first, stop):
                at = places[row]
                state = h[row * n : (row + 1) * n]
                if at >= 0:
                    gate = x[at : at + n]
                    apply_activation(gate, codes[d], parameters[2 * d], parameters[2 * d + 1], clip)
                    copy_row(gate, state)
                give_output(y, state, lengths, shape, step, reverse[d], row)
        first = stop

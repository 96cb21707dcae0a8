"""LSTM, GRU and RNN: the input product for all steps in one go, then a kernel that walks them.

Where matrix units are, they keep the recurrent weights of states of up to 256 elements.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Node, Operand
from partita.lowering.gate_activations import backwards, gate_activations, known_activations
from partita.lowering.geometry.boxes import Box
from partita_opencl.emitters.elementwise import apply
from partita_opencl.emitters.gemm.matmul import multiplied_matrices
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.launches.emitter_kit import Argument, Kit, f32, i64, ints, is_half
from partita_opencl.launches.steps import STALL, Counters
from partita_opencl.launches.tensor_moves import copy_box, transpose
from partita_opencl.launches.work_sizes import Tuning

_LENGTHS: DTypes = frozenset({np.dtype(np.int32)})
# They do not fold: ONNX's reference knows neither all activations nor lengths, clip or peepholes.
_TYPES: dict[int, DTypes] = dict.fromkeys(range(8), FLOATS) | {4: _LENGTHS}

_MOST_ITEMS = 1024
"""Of a group."""

_MOST_PARTS = 8
"""Items that share the terms of a sum: with more, fewer terms cost no less than adding parts."""

_MOST_GATES = 4


_WARP, _ROWS, _TERMS, _FRAGMENTS = 32, 8, 32, 8
"""Items of a warp, elements of the state that it has, terms that an item keeps eight of, and
registers that these take of two gates; as in ``recurrent_units.cl``."""

_REGISTERS, _MOST_KEPT, _OTHER_REGISTERS = 65536, 128, 56
"""Registers of a work-group, those of an item that may hold weights, and what it needs beside."""

_LINE = 32
"""Counters of a cache line."""


class _Units(NamedTuple):
    """How matrix units go through the steps: warps of a group, and groups of a sequence."""

    warps: int
    shares: int


class _Walk(NamedTuple):
    """What goes through the steps is given.

    Attributes:
        products: Those of the input with its weights, and what is added to them.
        weights: Recurrent ones, as the operator has them.
        optional: Bias, peepholes, lengths, the first state and cell; others where there are none.
        results: States of all steps, the last state, the last cell.
        sequences: Of all directions.
        numbers: Steps, sequences of a direction, which ways are backwards, the clip.
        options: Macros of both kernels.
    """

    products: Operand
    weights: Operand
    optional: tuple[Operand, ...]
    results: tuple[Operand, Operand, Operand]
    sequences: int
    numbers: tuple[Argument, ...]
    options: dict[str, int | None]


class Inputs(NamedTuple):
    """What the operators take besides the input and its weights.

    Attributes:
        bias: (directions, 2 * gates): of the input and of the recurrent products.
        lengths: Steps of each sequence.
        initial_h: The first state.
        initial_c: The first cell of an LSTM.
        peepholes: Of an LSTM, (directions, 3 * hidden).
    """

    bias: Operand | None = None
    lengths: Operand | None = None
    initial_h: Operand | None = None
    initial_c: Operand | None = None
    peepholes: Operand | None = None


@operator("LSTM", types=_TYPES, check=known_activations, since=7, folds=False, outputs=3)
def lstm(
    k: Kit,
    node: Node,
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    peepholes: Operand | None = None,
) -> tuple[Operand, ...]:
    """Long short-term memory."""
    given = Inputs(bias, lengths, initial_h, initial_c, peepholes)
    flags = {"INPUT_FORGET": node.attrs.get("input_forget", 0)}
    return _recurrent(k, node, (x, w, r), given, flags)


@operator("GRU", "RNN", types=_TYPES, check=known_activations, since=7, folds=False, outputs=2)
def gru(
    k: Kit,
    node: Node,
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
) -> tuple[Operand, ...]:
    """Gated recurrent unit, with the reset gate before or after the product, or a plain network."""
    flags = {"RESET_AFTER": node.attrs.get("linear_before_reset", 0)}
    return _recurrent(k, node, (x, w, r), Inputs(bias, lengths, initial_h), flags)[:2]


def _recurrent(
    k: Kit,
    node: Node,
    factors: tuple[Operand, Operand, Operand],
    given: Inputs,
    flags: dict[str, Any],
) -> tuple[Operand, Operand, Operand]:
    """All outputs: states of all steps, the last state, the last cell."""
    x, _, r = factors
    batch_first = bool(node.attrs.get("layout", 0))
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    directions, hidden = int(r.shape[0]), int(r.shape[2])
    y_shape = (steps, directions, batch, hidden)
    h_shape = (directions, batch, hidden)
    if batch_first:
        y_shape, h_shape = (batch, steps, directions, hidden), (batch, directions, hidden)
    y, final_h, final_c = (k.empty(shape, x.dtype) for shape in (y_shape, h_shape, h_shape))
    if not final_h.size:
        return y, final_h, final_c
    options: dict[str, int | None] = {node.op_type: None, "HIDDEN": hidden}
    options["DIRECTIONS"] = directions
    there = {name.upper(): value is not None for name, value in given._asdict().items()}
    flags = {**flags, **there, "BATCH_FIRST": batch_first}
    options |= {name: None for name, on in flags.items() if on}
    products = _input_products(k, node, x, factors[1], given.bias)
    optional = (given.bias, given.peepholes, given.lengths, given.initial_h, given.initial_c)
    ways = backwards(node)
    walk = _Walk(
        products,
        r,
        tuple(value or x for value in optional),
        (y, final_h, final_c),
        directions * batch,
        (i64(steps), i64(batch), ints(ways[0], ways[-1]), f32(node.attrs.get("clip") or 0.0)),
        options,
    )
    codes, parameters = gate_activations(node, node.op_type, directions)
    functions = codes.reshape(directions, -1)
    alike = bool((functions == functions[0]).all())
    resets_before = node.op_type == "GRU" and not flags["RESET_AFTER"]
    units = None
    if alike and not resets_before and is_half(x.dtype) and k.tuning.matrix_units:
        units = _units(k.tuning, r.shape[1] // hidden, hidden, walk.sequences)
    if units is None:
        _walk_by_items(k, walk, hidden, codes, parameters)
    else:
        _walk_by_units(k, walk, units, hidden, (functions[0].tolist(), parameters))
    return y, final_h, final_c


def _walk_by_items(k: Kit, walk: _Walk, hidden: int, codes: Array, parameters: Array) -> None:
    """Records the steps by ordinary arithmetic."""
    fits = 12 * hidden <= k.tuning.limits.local_bytes
    states = k.empty((1 if fits else 3 * walk.sequences * hidden,), np.float32)
    items, parts = _items(k.tuning, hidden)
    k.launch(
        "recurrent.cl",
        "recurrent",
        k.tuning.groups(walk.sequences, items),
        walk.products,
        _turned(k, walk.weights),
        *walk.optional,
        k.constant(codes.astype(np.int32)),
        k.constant(parameters),
        *walk.results,
        states,
        *walk.numbers,
        ITEMS=items,
        PARTS=parts,
        **walk.options,
        **({} if fits else {"GLOBAL_STATE": None}),
    )


def _walk_by_units(
    k: Kit, walk: _Walk, units: _Units, hidden: int, activations: tuple[list[int], Array]
) -> None:
    """Records the steps by matrix units, which keep the recurrent weights in registers."""
    functions, parameters = activations
    waiting: tuple[Argument, ...] = ()
    if units.shares > 1:
        exchanged = k.empty((walk.sequences, 2, hidden), walk.products.dtype)
        waiting = (exchanged, Counters(walk.sequences * 2 * _LINE), STALL)
    k.launch(
        "recurrent_units.cl",
        "recurrent_units",
        k.tuning.groups(walk.sequences * units.shares, units.warps * _WARP),
        walk.products,
        walk.weights,
        *walk.optional,
        k.constant(parameters),
        *walk.results,
        *waiting,
        *walk.numbers,
        WARPS=units.warps,
        SHARES=units.shares,
        **{f"FUNCTION{number}": code for number, code in enumerate(functions)},
        **walk.options,
        **({"NVIDIA": None} if k.tuning.limits.is_nvidia else {}),
    )


def _units(tuning: Tuning, gates: int, hidden: int, sequences: int) -> _Units | None:
    """How matrix units go through the steps; ``None`` where registers do not hold the weights.

    Args:
        tuning: The device's; its matrix units are used.
        gates: Of the operator.
        hidden: Elements of a state.
        sequences: Of all directions.
    """
    if hidden % _ROWS:
        return None
    kept = -(-gates // 2) * -(-hidden // _TERMS) * _FRAGMENTS
    if kept > _MOST_KEPT:
        return None
    most = min(_REGISTERS // (kept + _OTHER_REGISTERS), tuning.limits.group_items) // _WARP
    rows = hidden // _ROWS
    shares = -(-rows // most)
    resident = min(tuning.resident_groups, tuning.limits.compute_units)
    if shares > 1 and sequences * shares > resident:
        return None
    return _Units(-(-rows // shares), shares)


def _items(tuning: Tuning, hidden: int) -> tuple[int, int]:
    """Items of a group, and how many share the terms of one element's sums.

    Where many items compute side by side, a step takes as long as the sums of one.
    """
    columns = 1 << (hidden - 1).bit_length()
    if not tuning.local_tiles:
        return min(tuning.row_items, columns), 1
    most = min(_MOST_ITEMS, tuning.limits.group_items, tuning.limits.item_sizes[0])
    parts = min(_MOST_PARTS, most // columns)
    if parts < 2 or 4 * (_MOST_GATES * columns * parts + 3 * hidden) > tuning.limits.local_bytes:
        return min(tuning.row_items, columns), 1
    parts = 1 << (parts.bit_length() - 1)
    return columns * parts, parts


def _input_products(k: Kit, node: Node, x: Operand, w: Operand, bias: Operand | None) -> Operand:
    """Products of all steps with the input weights of all directions, and their bias: in rows."""
    columns = w.shape[0] * w.shape[1]
    if w.const is not None:
        matrix = k.builder.prepack(w, "turned columns", _turned_columns)
    else:
        matrix = transpose(k, k.view(w, (columns, w.shape[2])), (1, 0))
    rows = k.view(x, (x.shape[0] * x.shape[1], x.shape[2]))
    products = multiplied_matrices(k, node, rows, matrix)
    if bias is None:
        return products
    return apply(k, "{0} + {1}", x.dtype, products, _input_bias(k, bias))


def _input_bias(k: Kit, bias: Operand) -> Operand:
    """The bias of the input, a row for all directions."""
    directions, half = bias.shape[0], bias.shape[1] // 2
    if bias.const is not None:
        return k.builder.prepack(bias, "input bias", partial(_first_columns, half))
    row = k.empty((directions, half), bias.dtype)
    copy_box(k, Box(bias, (2 * half, 1)), Box(row, (half, 1)), (directions, half))
    return k.view(row, (directions * half,))


def _turned(k: Kit, r: Operand) -> Operand:
    """Recurrent weights as (directions, hidden, gates)."""
    if r.const is not None:
        return k.builder.prepack(r, "turned gates", _turned_gates)
    return transpose(k, r, (0, 2, 1))


def _turned_columns(array: Array) -> Array:
    return np.ascontiguousarray(array.reshape(-1, array.shape[2]).T)


def _turned_gates(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 1))


def _first_columns(count: int, array: Array) -> Array:
    return np.ascontiguousarray(array[:, :count]).reshape(-1)

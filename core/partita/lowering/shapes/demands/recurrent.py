"""Demands of LSTM, GRU and RNN."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import (
    Demand,
    Shapes,
    holds,
    is_of_shape,
    pair_of,
)

RECURRENT_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, RECURRENT_DEMANDS)


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


_ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}


@_demand("LSTM", "GRU", "RNN")
def _recurrent(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = pair_of(shapes)
    _, r = pair_of(shapes, 2)
    directions = 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1
    first = node.attrs.get("layout", 0)
    batch, hidden = x[0 if first else 1], r[2]
    rows = _GATES[node.op_type] * hidden
    yield from is_of_shape("W", w, (directions, rows, x[2]))
    yield from is_of_shape("R", r, (directions, rows, hidden))
    yield from is_of_shape("B", shapes[3], (directions, 2 * rows))
    yield from holds("sequence_lens", shapes[4], batch)
    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    yield from is_of_shape("initial_h", shapes[5], state)
    yield from is_of_shape("initial_c", shapes[6], state)
    yield from is_of_shape("P", shapes[7], (directions, 3 * hidden))
    yield from activation_faults(node, _ACTIVATIONS[node.op_type] * directions)


def activation_faults(node: Node, count: int) -> Iterable[str]:
    """A fault unless as many activations are named as the gates of all directions have."""
    names = node.attrs.get("activations")
    if names and len(names) != count:
        yield f"{count} activations are needed, not {len(names)}"


@_demand("com.microsoft::DynamicQuantizeLSTM")
def _dynamic_quantize_lstm(node: Node, shapes: Shapes) -> Iterable[str]:
    x, r = pair_of(shapes, 2)
    directions = 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1
    first = node.attrs.get("layout", 0)
    batch, hidden = x[0 if first else 1], r[1]
    columns = 4 * hidden
    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    yield from is_of_shape("W", shapes[1], (directions, x[2], columns))
    yield from is_of_shape("R", r, (directions, hidden, columns))
    yield from is_of_shape("B", shapes[3], (directions, 2 * columns))
    yield from holds("sequence_lens", shapes[4], batch)
    for place, name in ((5, "initial_h"), (6, "initial_c")):
        yield from is_of_shape(name, shapes[place], state)
    yield from is_of_shape("P", shapes[7], (directions, 3 * hidden))
    for place in range(8, 12):
        name = "a scale or zero point of the weights"
        yield from holds(name, shapes[place], directions, directions * columns)
    yield from activation_faults(node, 3 * directions)

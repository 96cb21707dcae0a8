"""Systematic draws of recurrent networks: any two of their options together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from partita_conformance.draws.choices.meet import meetings
from partita_conformance.draws.choices.numbers import numbers
from partita_conformance.draws.draw import Array, Draw

_STEPS, _SIZE = 4, 2
_FUNCTIONS: Mapping[int, Sequence[Sequence[str]]] = {
    1: (("Relu", "Sigmoid"), ("Softsign", "Tanh"), ("Elu", "LeakyRelu")),
    2: (("Sigmoid", "Relu", "HardSigmoid", "Tanh"), ("Tanh", "Softsign", "Sigmoid", "Elu")),
    3: (
        ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign", "Tanh"),
        ("Tanh", "Sigmoid", "Softsign", "Sigmoid", "Relu", "Tanh"),
    ),
}
"""By their number for a direction: functions of both directions, which are others in each."""
_WAYS = [*itertools.product(("forward", "reverse", "bidirectional"), (0, 1))]
"""Directions, and whether batches lead: states of both directions are turned, or not."""
_LENGTHS = (None, (2, 4, 3), (1, 3, 2))
"""Of sequences: all steps, of which one has all, and of which none has."""


def recurrent(gates: int, functions: int, **own: Sequence[Any]) -> Iterator[Draw]:
    """Directions, layouts, first states, lengths, functions, limits, and sizes beside a vector.

    Args:
        gates: How many there are.
        functions: How many functions a direction has.
        own: Choices of the operator alone.
    """
    for row in meetings(
        way=_WAYS, state=((0, 3), (1, 3), (2, 3), (1, 1)), ends=_LENGTHS,
        activations=(None, *_FUNCTIONS[functions]), clip=(None, 0.4), bias=(0, 1),
        hidden=(1, 5, 17), known=((1, 2, 3), (), (1, 2)), **own,
    ):  # fmt: skip
        row["direction"], row["layout"] = row.pop("way")
        row["begins"], row["batch"] = row.pop("state")
        count = 1 + (row["direction"] == "bidirectional")
        given: dict[str, Any] = {n: row[n] for n in ("direction", "layout")}
        given["hidden_size"] = row["hidden"]
        given |= {} if row["clip"] is None else {"clip": row["clip"]}
        if row["activations"] is not None:
            given["activations"] = list(row["activations"][: count * functions])
        given |= {name: row[name] for name in own if name != "peepholes"}
        inputs = _inputs(gates, count, row)
        while inputs[-1] is None:
            inputs.pop()
        known = [place for place in row["known"] if place < len(inputs)]
        yield Draw(inputs, given, known, 3 if gates == 4 else 2)
    if gates == 4:
        yield from _cells_alone()


def _inputs(gates: int, count: int, row: Mapping[str, Any]) -> list[Array | None]:
    """What a row's network reads; ``None`` where something is left out."""
    batch, hidden, turned = row["batch"], row["hidden"], row["layout"]
    x = numbers(*((batch, _STEPS) if turned else (_STEPS, batch)), _SIZE) - 1.2
    weights = [numbers(count, gates * hidden, n) / (2 + n) - 0.3 for n in (_SIZE, hidden)]
    bias = numbers(count, 2 * gates * hidden) / 8 - 0.2 if row["bias"] else None
    lengths = None if row["ends"] is None else np.array(row["ends"][:batch], np.int32)
    states = (batch, count, hidden) if turned else (count, batch, hidden)
    begins: list[Array | None] = [numbers(*states) / 2 - 0.6 if row["begins"] else None]
    if gates == 4:
        begins.append(1.4 - numbers(*states) if row["begins"] == 2 else None)
        begins.append(numbers(count, 3 * hidden) / 3 - 0.4 if row["peepholes"] else None)
    return [x, *weights, bias, lengths, *begins]


def _cells_alone() -> Iterator[Draw]:
    """Networks that are given a first cell and no first output, either way round."""
    for direction, layout in (("forward", 0), ("reverse", 1)):
        row = {"batch": 3, "hidden": 5, "layout": layout, "bias": 1, "ends": None, "begins": 2}
        inputs = _inputs(4, 1, {**row, "peepholes": 0})
        inputs[5] = None
        given = {"direction": direction, "layout": layout, "hidden_size": 5}
        yield Draw(inputs[:7], given, [1, 2, 3], 3)


RECURRENT: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "RNN": partial(recurrent, 1, 1),
    "GRU": partial(recurrent, 3, 2, linear_before_reset=(0, 1)),
    "LSTM": partial(recurrent, 4, 3, input_forget=(0, 1), peepholes=(0, 1)),
}
"""Operator to its draws."""

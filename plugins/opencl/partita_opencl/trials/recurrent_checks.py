"""Checks of kernels that walk through sequences; see ``kernel_checks``."""

from __future__ import annotations

import numpy as np

from partita.lowering import Array
from partita_opencl.trials.sample import FamilyChecks, Sample

RECURRENT_CHECKS = FamilyChecks()
"""By family."""

_HIDDEN = 10


@RECURRENT_CHECKS.family
def _recurrent(s: Sample) -> None:
    x = s.feed("x", s.numbers(5, 2, 6))
    for op_type, gates in (("LSTM", 4), ("GRU", 3)):
        names = [f"{name}{gates}" for name in "wrb"]
        w = s.weight(names[0], s.numbers(1, gates * _HIDDEN, 6) / 8)
        r = s.weight(names[1], s.numbers(1, gates * _HIDDEN, _HIDDEN) / 8)
        b = s.weight(names[2], s.numbers(1, 2 * gates * _HIDDEN) / 8)
        step = lstm_step if op_type == "LSTM" else _gru
        h = c = np.zeros((2, _HIDDEN))
        states = []
        for row in x:
            own = row @ w[0].T + b[0, : gates * _HIDDEN]
            h, c = step(own, h, c, r[0], b[0, gates * _HIDDEN :])
            states.append(h)
        due = np.stack(states)[:, None]
        s.check(op_type, " ".join(["x", *names]), due, hidden_size=_HIDDEN)


def lstm_step(own: Array, h: Array, c: Array, r: Array, bias: Array) -> tuple[Array, Array]:
    """A step of an LSTM.

    Args:
        own: Products of the input with its weights, and their bias: [batch, gates].
        h: The state [batch, hidden].
        c: The cell.
        r: Recurrent weights [gates, hidden].
        bias: Of these.

    Returns:
        The state and the cell after it.
    """
    enter, leave, keep, fresh = np.split(own + h @ r.T + bias, 4, 1)
    cell = _sigmoid(keep) * c + _sigmoid(enter) * np.tanh(fresh)
    return _sigmoid(leave) * np.tanh(cell), cell


def _gru(own: Array, h: Array, c: Array, r: Array, bias: Array) -> tuple[Array, Array]:
    both = 2 * _HIDDEN
    gates = _sigmoid(own[:, :both] + h @ r[:both].T + bias[:both])
    update, reset = np.split(gates, 2, 1)
    fresh = np.tanh(own[:, both:] + (reset * h) @ r[both:].T + bias[both:])
    return (1 - update) * fresh + update * h, c


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result

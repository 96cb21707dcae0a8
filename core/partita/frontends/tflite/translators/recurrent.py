"""Recurrent layers, whose states are variables of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir

_ACTIVATIONS = {0: "Affine", 1: "Relu", 4: "Tanh"}
"""Number of an activation to ONNX's name; an Affine leaves numbers as they are."""

_STATE, _CELL = 18, 19
"""Inputs of an LSTM that hold its states."""


def _in_float(at: Site) -> None:
    if at.levels(at.tensor(0)) is not None:
        raise at.error("it computes with levels, which is not read; floats are")


def _activation(at: Site) -> str:
    number = at.integer("FusedActivationFunction", 0)
    if number not in _ACTIVATIONS:
        raise at.error(f"the activation {number} is not known here")
    return _ACTIVATIONS[number]


def _joined(at: Site, indices: Sequence[int]) -> ir.Value:
    """Weights or biases of gates, one below the other, for one direction."""
    joined = at.emit("Concat", *(at.floats(index) for index in indices), axis=0)
    return at.emit("Unsqueeze", joined, at.const([0], np.int64))


def _by_time(at: Site, time_major: bool) -> ir.Value:
    """The input as [time, batch, features]."""
    if at.rank(0) != 3:
        raise at.error(f"the input has shape {list(at.dims(0))}; expected three sizes")
    return at.value(0) if time_major else at.emit("Transpose", at.value(0), perm=[1, 0, 2])


def _result(at: Site, value: ir.Value, time_major: bool) -> ir.Value:
    """[time, direction, batch, features] as the file has it."""
    flat = at.emit("Squeeze", value, at.const([1], np.int64))
    return flat if time_major else at.emit("Transpose", flat, perm=[1, 0, 2])


@translates("UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm(at: Site) -> ir.Value:
    """Gates come in the order input, forget, cell, output; ONNX wants the cell last."""
    _in_float(at)
    if not at.has(1) or at.has(16) or any(at.has(index) for index in range(20, 24)):
        raise at.error("coupled gates, projections and normalization of gates are not read")
    if at.real("ProjClip", 0.0):
        raise at.error("a clipped projection is not read")
    direction = at.const([0], np.int64)
    gates = [0, 3, 1, 2]
    bias = _joined(at, [12 + gate for gate in gates])
    bias = at.emit("Concat", bias, at.emit("Mul", bias, at.const(0, np.float32)), axis=1)
    peepholes = _joined(at, [9, 11, 10]) if at.has(9) else None
    states = [at.emit("Unsqueeze", at.value(index), direction) for index in (_STATE, _CELL)]
    time_major, name = at.flag("TimeMajor", False), _activation(at)
    values, hidden, cell = at.emit_many(
        "LSTM",
        3,
        _by_time(at, time_major),
        _joined(at, [1 + gate for gate in gates]),
        _joined(at, [5 + gate for gate in gates]),
        bias,
        None,
        *states,
        peepholes,
        hidden_size=at.dims(5)[1],
        activations=["Sigmoid", name, name] if name != "Affine" else None,
        clip=None,
    )
    if at.real("CellClip", 0.0):
        raise at.error("a clipped cell is not read")
    for index, state in ((_STATE, hidden), (_CELL, cell)):
        at.scope.assign(at.tensor(index).label, at.emit("Squeeze", state, direction))
    return _result(at, values, time_major)


@translates("UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn(at: Site) -> ir.Value:
    """A plain recurrent layer: input, weights, recurrent weights, bias, state."""
    _in_float(at)
    direction = at.const([0], np.int64)
    bias = _joined(at, [3])
    bias = at.emit("Concat", bias, at.emit("Mul", bias, at.const(0, np.float32)), axis=1)
    name, time_major = _activation(at), at.flag("TimeMajor", False)
    values, hidden = at.emit_many(
        "RNN",
        2,
        _by_time(at, time_major),
        _joined(at, [1]),
        _joined(at, [2]),
        bias,
        None,
        at.emit("Unsqueeze", at.value(4), direction),
        hidden_size=at.dims(2)[0],
        activations=[name],
        activation_alpha=[1.0] if name == "Affine" else None,
    )
    at.scope.assign(at.tensor(4).label, at.emit("Squeeze", hidden, direction))
    return _result(at, values, time_major)


@translates("SVDF")
def svdf(at: Site) -> ir.Value:
    """Features of each run join the last ones; each filter weighs its own over time."""
    _in_float(at)
    filters, memory = at.dims(2)
    rank = at.positive("Rank")
    batch = at.dims(4)[0]
    if filters % rank or at.dims(4) != (batch, filters * memory):
        raise at.error(f"a state {list(at.dims(4))} does not fit {filters} filters of {memory}")
    feature = at.emit("MatMul", at.value(0), at.floats(1, (1, 0)))
    state = at.reshaped(at.value(4), [batch, filters, memory])
    later = at.emit("Slice", state, *(at.const([end], np.int64) for end in (1, memory, 2)))
    column = at.emit("Unsqueeze", feature, at.const([2], np.int64))
    state = at.emit("Concat", later, column, axis=2)
    at.scope.assign(at.tensor(4).label, at.reshaped(state, [batch, filters * memory]))
    weighed = at.emit("Mul", state, at.floats(2))
    groups = at.reshaped(weighed, [batch, filters // rank, rank * memory])
    total = at.emit("ReduceSum", groups, at.const([2], np.int64), keepdims=0)
    return at.activated(at.emit("Add", total, at.floats(3)) if at.has(3) else total)

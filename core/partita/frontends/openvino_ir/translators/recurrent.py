"""Recurrent layers: whole sequences and single cells of LSTM, GRU and plain networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir

_LSTM_GATES = (1, 3, 0, 2)
"""OpenVINO orders forget, input, cell, output; ONNX input, output, forget, cell."""

_ACTIVATIONS = {
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "relu": "Relu",
    "hardsigmoid": "HardSigmoid",
    "elu": "Elu",
    "softsign": "Softsign",
    "softplus": "Softplus",
}


@translates("LSTMSequence", "GRUSequence", "RNNSequence")
def sequence(at: Site) -> Sequence[ir.Value]:
    """A whole sequence; batches come first at OpenVINO's ports, and second in ONNX."""
    kind = at.layer.type.removesuffix("Sequence")
    states = 2 if kind == "LSTM" else 1
    x = at.emit("Transpose", at.inputs[0], perm=[1, 0, 2])
    first = [at.emit("Transpose", state, perm=[1, 0, 2]) for state in at.inputs[1 : 1 + states]]
    lengths = at.emit("Cast", at.inputs[1 + states], to=6)
    outputs = _recurrent(at, kind, x, lengths, first, at.inputs[2 + states : 5 + states])
    found = [at.emit("Transpose", outputs[0], perm=[2, 1, 0, 3])]
    return found + [at.emit("Transpose", state, perm=[1, 0, 2]) for state in outputs[1:]]


@translates("LSTMCell", "GRUCell", "RNNCell")
def cell(at: Site) -> Sequence[ir.Value]:
    """One step: a sequence of one."""
    kind = at.layer.type.removesuffix("Cell")
    states = 2 if kind == "LSTM" else 1
    front = at.const([0], np.int64)
    x, *rest = (at.emit("Unsqueeze", value, front) for value in at.inputs[: 4 + states])
    outputs = _recurrent(at, kind, x, None, rest[:states], rest[states:])
    return [at.emit("Squeeze", state, front) for state in outputs[1:]]


def _recurrent(
    at: Site,
    kind: str,
    x: ir.Value,
    lengths: ir.Value | None,
    first: list[ir.Value],
    weights: Sequence[ir.Value],
) -> list[ir.Value]:
    """ONNX's operation, with gates in its order and OpenVINO's summed biases taken apart.

    Args:
        at: Where the operation is translated.
        kind: "LSTM", "GRU" or "RNN".
        x: The input (step, batch, element).
        lengths: Of the sequences; None if all have all steps.
        first: The initial state, and an LSTM's cell.
        weights: Weights of the input, those of the state, and biases.
    """
    inward, inner, bias = weights
    hidden = at.integer("hidden_size")
    after_reset = kind == "GRU" and at.flag("linear_before_reset")
    if kind == "LSTM":
        order = at.const(
            np.concatenate([np.arange(hidden) + gate * hidden for gate in _LSTM_GATES])
        )
        inward, inner, bias = (at.emit("Gather", v, order, axis=1) for v in (inward, inner, bias))
    like_bias = at.emit("Sub", bias, bias)
    if after_reset:  # z, r, h of the input, h of the state
        split = at.const([2 * hidden, hidden, hidden], np.int64)
        gates, of_input, of_state = at.emit_many("Split", 3, bias, split, axis=1)
        nothing = at.emit("Sub", gates, gates)
        parts = [gates, of_input, nothing, of_state]
    else:
        parts = [bias, like_bias]
    both = at.emit("Concat", *parts, axis=1)
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": at.text("direction", "forward"),
        "activations": _activations(at),
    }
    if alpha := at.floats("activations_alpha"):
        attributes["activation_alpha"] = alpha
    if beta := at.floats("activations_beta"):
        attributes["activation_beta"] = beta
    if (clip := at.real("clip", 0.0)) > 0:
        attributes["clip"] = clip
    if kind == "GRU":
        attributes["linear_before_reset"] = int(after_reset)
    outputs = 3 if kind == "LSTM" else 2
    return at.emit_many(kind, outputs, x, inward, inner, both, lengths, *first, **attributes)


def _activations(at: Site) -> list[str] | None:
    """Names as ONNX spells them, for each direction anew; ``None``: those of the definition."""
    given = [name.strip() for name in at.text("activations").split(",") if name.strip()]
    unknown = [name for name in given if name not in _ACTIVATIONS]
    if unknown:
        raise at.error(f"activation '{unknown[0]}' is not known")
    names = [_ACTIVATIONS[name] for name in given]
    return (names * 2 if at.text("direction") == "bidirectional" else names) or None

"""Whole sequences of LSTM, GRU and plain networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.frontends.openvino_ir.writer.document import Dims, Output
from partita.frontends.openvino_ir.writer.writing_context import Site, writes

_GATES = (2, 0, 3, 1)
"""ONNX orders an LSTM's gates input, output, forget, cell; OpenVINO forget, input, cell, output."""

_ACTIVATIONS = ("sigmoid", "tanh", "relu")


@writes("LSTM", "GRU", "RNN")
def sequence(at: Site) -> Sequence[Output]:
    """A whole sequence; batches come first at OpenVINO's ports, and second in ONNX."""
    kind, hidden = at.node.op_type, at.integer("hidden_size")
    if at.integer("layout") or at.has(7) or at.integer("input_forget"):
        raise at.error("layout, peepholes or input_forget")
    x = at.read(0)
    if x.dims is None or min(x.dims[:2]) < 0:
        raise at.error("an input whose length and batch are not known")
    length, batch, _ = x.dims
    weights = at.known(1)
    directions = weights.shape[0]
    states = 2 if kind == "LSTM" else 1
    inputs = [_swapped(at, x, (1, 0, 2))]
    for index in range(5, 5 + states):
        if at.has(index):
            inputs.append(_swapped(at, at.read(index), (1, 0, 2)))
        else:
            inputs.append(at.const(np.zeros((batch, directions, hidden)), weights.dtype))
    inputs.append(at.read(4) if at.has(4) else at.const(np.full(batch, length), np.int32))
    inputs += _weights(at, hidden)
    state = (x.dtype, (batch, directions, hidden))
    made = [(x.dtype, (batch, directions, length, hidden)), *[state] * states]
    attributes = {"activations": _activations(at, kind), "clip": at.real("clip")}
    if kind == "GRU":
        attributes["linear_before_reset"] = bool(at.integer("linear_before_reset"))
    whole, *last = at.emit_many(
        f"{kind}Sequence", made, *inputs, version="opset5",
        hidden_size=hidden, direction=at.text("direction", "forward"), **attributes,
    )  # fmt: skip
    return [_swapped(at, whole, (2, 1, 0, 3)), *(_swapped(at, one, (1, 0, 2)) for one in last)]


def _swapped(at: Site, source: Output, order: tuple[int, ...]) -> Output:
    dims: Dims = None if source.dims is None else tuple(source.dims[axis] for axis in order)
    places = at.const(order, np.int64)
    return at.emit("Transpose", source, places, made=(source.dtype, dims))


def _weights(at: Site, hidden: int) -> list[Output]:
    """Weights with gates in OpenVINO's order, and one bias where ONNX has two."""
    kind = at.node.op_type
    inward, inner = at.known(1), at.known(2)
    gates = inward.shape[1] // hidden
    shape = (inward.shape[0], 2, gates, hidden)
    bias = (at.known(3) if at.has(3) else np.zeros(shape, inward.dtype)).reshape(shape)
    if kind == "GRU" and at.integer("linear_before_reset"):
        both = bias.sum(1)
        bias = np.concatenate([both[:, :2], bias[:, :1, 2], bias[:, 1:, 2]], axis=1)
    else:
        bias = bias.sum(1)
    if kind == "LSTM":
        order = [place for gate in _GATES for place in range(gate * hidden, (gate + 1) * hidden)]
        inward, inner, bias = inward[:, order], inner[:, order], bias[:, list(_GATES)]
    flat = bias.reshape(bias.shape[0], -1)
    return [at.const(array, inward.dtype) for array in (inward, inner, flat)]


def _activations(at: Site, kind: str) -> str:
    """Names as OpenVINO spells them, those of one direction, which both must share."""
    default = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
    count = len(default[kind])
    given = at.node.attributes.get_strings("activations", None)
    names = default[kind] if not given else [str(name).lower() for name in given]
    parts = [names[start : start + count] for start in range(0, len(names), count)]
    if any(part != parts[0] for part in parts) or set(names) - set(_ACTIVATIONS):
        raise at.error(f"activations {names}")
    return ",".join(parts[0])

"""Activations of the gates of LSTM, GRU and RNN, as numbers that kernels switch on."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering.graph import Node

ACTIVATIONS = {
    "Sigmoid": (0, 0.0, 0.0),
    "Tanh": (1, 0.0, 0.0),
    "Relu": (2, 0.0, 0.0),
    "Affine": (3, 1.0, 0.0),
    "LeakyRelu": (4, 0.01, 0.0),
    "ThresholdedRelu": (5, 1.0, 0.0),
    "ScaledTanh": (6, 1.0, 1.0),
    "HardSigmoid": (7, 0.2, 0.5),
    "Elu": (8, 1.0, 0.0),
    "Softsign": (9, 0.0, 0.0),
    "Softplus": (10, 0.0, 0.0),
}
"""Number and default parameters of each activation."""

_NEEDS_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
_NEEDS_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}
_NAMES = {name.lower(): name for name in ACTIVATIONS}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def gate_activations(
    node: Node, kind: str, directions: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Numbers of all activations, int64, and their parameters: alpha and beta of each, float32.

    Args:
        node: The operation.
        kind: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        directions: 1 or 2.
    """
    names = node.attrs.get("activations") or _DEFAULTS[kind] * directions
    alphas = list(node.attrs.get("activation_alpha") or ())
    betas = list(node.attrs.get("activation_beta") or ())
    codes, parameters = [], []
    for given in names:
        name = _NAMES[given.lower()]
        code, alpha, beta = ACTIVATIONS[name]
        if name in _NEEDS_ALPHA and alphas:
            alpha = alphas.pop(0)
        if name in _NEEDS_BETA and betas:
            beta = betas.pop(0)
        codes.append(code)
        parameters += [alpha, beta]
    # In float32, as ONNX keeps attributes and their defaults.
    return np.array(codes, np.int64), np.array(parameters, np.float32)


def backwards(node: Node) -> list[int]:
    """For each direction of the operation whether it begins at the end."""
    ways = {"forward": [0], "reverse": [1]}
    return ways.get(node.attrs.get("direction", "forward"), [0, 1])


def known_activations(node: Node) -> Reason | None:
    """Refuses activations that are not in the table."""
    for name in node.attrs.get("activations") or ():
        if name.lower() not in _NAMES:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"activation is '{name}'")
    return None

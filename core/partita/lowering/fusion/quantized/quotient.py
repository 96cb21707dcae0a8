"""The type in which QuantizeLinear divides: quotients are rounded to it before they are levels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering.graph import Node

_SINGLE = np.dtype(np.float32)
_HALVES = {10: np.dtype(np.float16), 16: np.dtype(ml_dtypes.bfloat16)}
_NUMBERS = {1: _SINGLE, **_HALVES}
"""By ONNX's number of the type."""


def quotient_type(node: Node, scale: np.dtype[Any]) -> np.dtype[Any]:
    """The type of ``x / y_scale``: what attribute ``precision`` names, or that of the scale.

    ONNX says so from opset 23 on. Quotients of older operators, and of Microsoft's, are of float32
    whatever the scale's type is, as onnxruntime computes them.

    Args:
        node: The operation.
        scale: Type of its scale; one of whole numbers divides in float32.
    """
    if node.domain or node.version < 23:
        return _SINGLE
    named = _NUMBERS.get(node.attrs.get("precision", 0))
    return named or (scale if scale in _HALVES.values() else _SINGLE)


def refused_quotient(node: Node) -> Reason | None:
    """What a device says of quotients of other types than those that engines compute in."""
    named = node.attrs.get("precision", 0)
    if named == 0 or named in _NUMBERS:
        return None
    detail = f"precision is {named}; takes float32, float16 and bfloat16"
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, detail)

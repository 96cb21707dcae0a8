"""Reductions, softmax and normalization along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir

_REDUCTIONS = {
    "MEAN": "ReduceMean",
    "SUM": "ReduceSum",
    "REDUCE_PROD": "ReduceProd",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
}


@translates(*_REDUCTIONS)
def reduction(at: Site) -> ir.Value:
    """One number for all elements along axes; no axes at all leave the input as it is."""
    keep = int(at.flag("KeepDims", False))
    attributes: dict[str, Any] = {"keepdims": keep, "noop_with_empty_axes": 1}
    op_type = _REDUCTIONS[at.operator.code]
    axes = _axes(at)

    def write(values: list[ir.Value]) -> ir.Value:
        return at.emit(op_type, values[0], axes, **attributes)

    if op_type in ("ReduceMax", "ReduceMin"):
        return at.carried(write)
    if at.is_float(0) or op_type != "ReduceMean":
        return at.result(write([at.floats(0)]))
    total = at.emit("ReduceMean", at.cast(at.value(0), 11), axes, **attributes)
    return at.cast(total, {np.dtype(np.int64): 7}.get(at.dtype(at.target()), 6))


def _axes(at: Site) -> ir.Value:
    found = at.constant(1)
    if found is None:
        return at.reshaped(at.indices(1), [-1])
    rank = at.rank(0)
    axes = sorted({at.axis(number, rank) for number in at.numbers(1)})
    return at.const(axes, np.int64)


@translates("REDUCE_ANY", "REDUCE_ALL")
def reduction_of_bools(at: Site) -> ir.Value:
    """Whether any, or all, along axes are true."""
    op_type = {"REDUCE_ANY": "ReduceMax", "REDUCE_ALL": "ReduceMin"}[at.operator.code]
    keep = int(at.flag("KeepDims", False))
    numbers = at.cast(at.value(0), 6)
    found = at.emit(op_type, numbers, _axes(at), keepdims=keep, noop_with_empty_axes=1)
    return at.cast(found, 9)


@translates("ARG_MAX", "ARG_MIN")
def arg_extreme(at: Site) -> ir.Value:
    """The place of the largest or smallest along an axis; of equal ones the first."""
    op_type = {"ARG_MAX": "ArgMax", "ARG_MIN": "ArgMin"}[at.operator.code]
    axis = at.axis(at.numbers(1)[0], at.rank(0))
    found = at.emit(op_type, at.value(0), axis=axis, keepdims=0)
    return at.cast(found, 7 if at.dtype(at.target()) == np.int64 else 6)


@translates("SOFTMAX")
def softmax(at: Site) -> ir.Value:
    """Shares along the last axis, of numbers times ``Beta``."""
    x, beta = at.floats(0), at.real("Beta", 1.0)
    if beta not in (0.0, 1.0):
        x = at.emit("Mul", x, at.const(beta, np.float32))
    return at.result(at.emit("Softmax", x, axis=at.rank(0) - 1))


@translates("LOG_SOFTMAX")
def log_softmax(at: Site) -> ir.Value:
    """The logarithm of shares along the last axis."""
    return at.result(at.emit("LogSoftmax", at.floats(0), axis=at.rank(0) - 1))


@translates("L2_NORMALIZATION")
def l2_normalization(at: Site) -> ir.Value:
    """Numbers by the length of the vector along the last axis; tiny ones count as 1e-6."""
    x = at.floats(0)
    axes = at.const([at.rank(0) - 1], np.int64)
    squares = at.emit("ReduceSum", at.emit("Mul", x, x), axes, keepdims=1)
    length = at.emit("Max", at.emit("Sqrt", squares), at.const(1e-6, np.float32))
    return at.result(at.activated(at.emit("Div", x, length)))

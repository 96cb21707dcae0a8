"""Layers that reduce or normalize along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir

_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
)
"""Layers that ONNX has too."""


@translates(*_REDUCTIONS)
def reduce(at: Site) -> ir.Value:
    """A reduction; no axes at all leave the value alone."""
    return at.emit(
        at.layer.type,
        at.inputs[0],
        at.row(1),
        keepdims=int(at.flag("keep_dims")),
        noop_with_empty_axes=1,
    )


@translates("ReduceLogicalAnd", "ReduceLogicalOr")
def reduce_logical(at: Site) -> ir.Value:
    """Whether all, or any, are true."""
    op_type = "ReduceMin" if at.layer.type == "ReduceLogicalAnd" else "ReduceMax"
    numbers = at.emit("Cast", at.inputs[0], to=6)  # int32
    found = at.emit(
        op_type, numbers, at.row(1), keepdims=int(at.flag("keep_dims")), noop_with_empty_axes=1
    )
    return at.emit("Cast", found, to=9)


@translates("SoftMax", "Softmax", "LogSoftmax")
def softmax(at: Site) -> ir.Value:
    """Shares along an axis."""
    op_type = "LogSoftmax" if at.layer.type == "LogSoftmax" else "Softmax"
    axis = at.integer("axis", -1 if op_type == "LogSoftmax" else 1)
    return at.emit(op_type, at.inputs[0], axis=axis)


@translates("BatchNormInference")
def batch_norm(at: Site) -> ir.Value:
    """Normalization by known mean and variance; operation set 1 has the data in third place."""
    if at.layer.version == "opset1":
        scale, shift, x, mean, variance = at.inputs
    else:
        x, scale, shift, mean, variance = at.inputs
    epsilon = at.real("epsilon" if "epsilon" in at.layer.data else "eps")
    return at.emit("BatchNormalization", x, scale, shift, mean, variance, epsilon=epsilon)


@translates("MVN")
def mean_variance(at: Site) -> ir.Value:
    """Mean taken away, divided by the deviation."""
    x, rank = at.inputs[0], at.rank(0)
    if at.has(1):
        axes = at.axes(1, rank)
    else:  # operation set 2
        axes = list(range(1 if at.flag("across_channels") else 2, rank))
    inside = at.one_of("eps_mode", "inside_sqrt", {"inside_sqrt": True, "outside_sqrt": False})
    divided = at.flag("normalize_variance", True)
    width = at.dims(0)[-1]
    if divided and inside and axes == [rank - 1] and width > 0:
        scale = at.const(np.ones(width), at.dtype(0))
        return at.emit("LayerNormalization", x, scale, axis=-1, epsilon=at.real("eps"))
    along = at.const(axes, np.int64)
    centred = at.emit("Sub", x, at.emit("ReduceMean", x, along, keepdims=1))
    if not divided:
        return centred
    variance = at.emit("ReduceMean", at.emit("Mul", centred, centred), along, keepdims=1)
    return at.emit("Div", centred, _root(at, variance, at.real("eps"), inside))


def _root(at: Site, variance: ir.Value, epsilon: float, inside: bool) -> ir.Value:
    """The square root with a small number added before or after."""
    small = at.like(epsilon)
    if inside:
        return at.emit("Sqrt", at.emit("Add", variance, small))
    return at.emit("Add", at.emit("Sqrt", variance), small)


@translates("NormalizeL2")
def normalize_l2(at: Site) -> ir.Value:
    """Divided by the length along axes."""
    x = at.inputs[0]
    squares, axes = at.emit("Mul", x, x), at.axes(1)
    if axes:  # without any, each element is divided by its own size
        squares = at.emit("ReduceSum", squares, at.const(axes, np.int64), keepdims=1)
    join = at.one_of("eps_mode", "add", {"add": "Add", "max": "Max"})
    return at.emit("Div", x, at.emit("Sqrt", at.emit(join, squares, at.like(at.real("eps")))))


@translates("GRN")
def global_response(at: Site) -> ir.Value:
    """Divided by the length across channels."""
    x = at.inputs[0]
    squares = at.emit("ReduceSumSquare", x, at.const([1], np.int64), keepdims=1)
    return at.emit("Div", x, _root(at, squares, at.real("bias"), inside=True))


@translates("LRN")
def local_response(at: Site) -> ir.Value:
    """Local response normalization over neighbouring channels."""
    if at.axes(1, at.rank(0)) != [1]:
        raise at.error("only normalization across channels (axis 1) is read")
    numbers = {key: at.real(key) for key in ("alpha", "beta", "bias")}
    return at.emit("LRN", at.inputs[0], size=at.integer("size"), **numbers)


@translates("GroupNormalization")
def group_normalization(at: Site) -> ir.Value:
    """Normalization of groups of channels."""
    return at.emit(
        "GroupNormalization",
        *at.inputs,
        num_groups=at.integer("num_groups"),
        epsilon=at.real("epsilon"),
    )


@translates("RMSNorm", "RMS")
def root_mean_square(at: Site) -> ir.Value:
    """Divided by the root of the mean square along axes; the scale is optional."""
    x = at.inputs[0]
    along = at.const(at.axes(1), np.int64)
    mean = at.emit("ReduceMean", at.emit("Mul", x, x), along, keepdims=1)
    epsilon = at.real("epsilon" if "epsilon" in at.layer.data else "eps")
    normal = at.emit("Div", x, _root(at, mean, epsilon, inside=True))
    return at.emit("Mul", normal, at.inputs[2]) if at.has(2) else normal

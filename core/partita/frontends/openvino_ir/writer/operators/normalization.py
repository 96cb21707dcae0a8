"""Operators that reduce or normalize along axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.frontends.openvino_ir.writer.document import Output
from partita.frontends.openvino_ir.writer.writing_context import Site, writes

_REDUCTIONS = ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")


@writes(*(f"Reduce{name}" for name in _REDUCTIONS))
def reduce(at: Site) -> Output:
    """A reduction that OpenVINO has too."""
    axes = _axes(at)
    if axes is None:
        return at.read(0)
    import onnx_ir as ir

    kind, x = at.node.op_type, at.read(0)
    if x.dtype == ir.DataType.BOOL:
        keep = bool(at.integer("keepdims", 1))
        numbers, made = at.convert(x, ir.DataType.INT32), (ir.DataType.INT32, at.result()[1])
        found = at.emit(kind, numbers, axes, made=made, keep_dims=keep)
        return at.convert(found, ir.DataType.BOOL)
    return _reduced(at, kind, x, axes, "opset4" if kind in ("ReduceL1", "ReduceL2") else "opset1")


@writes("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduce_composed(at: Site) -> Output:
    """A sum of something, or something of a sum."""
    x, kind = at.read(0), at.node.op_type
    axes = _axes(at)
    if kind == "ReduceSumSquare":
        x = at.binary("Multiply", x, x)
    if kind == "ReduceLogSumExp":
        x = at.emit("Exp", x, made=(x.dtype, x.dims))
    if axes is not None:
        x = _reduced(at, "ReduceSum", x, axes)
    return x if kind == "ReduceSumSquare" else at.emit("Log", x)


def _axes(at: Site) -> Output | None:
    """The axes, all of them where none are named; ``None`` where that means none."""
    axes = at.axes(1)
    if axes is not None and axes.dims != (0,):
        return axes
    if at.integer("noop_with_empty_axes"):
        return None
    return at.const(range(at.rank()), np.int64)


def _reduced(at: Site, kind: str, x: Output, axes: Output, version: str = "opset1") -> Output:
    keep = bool(at.integer("keepdims", 1))
    return at.emit(kind, x, axes, version=version, keep_dims=keep)


@writes("ArgMax", "ArgMin")
def arg_extreme(at: Site) -> Output:
    """Where the largest or smallest along an axis stands, the first of equal ones."""
    if at.integer("select_last_index"):
        raise at.error("select_last_index")
    x, axis = at.read(0), at.integer("axis") % at.rank()
    dims = None if x.dims is None else tuple(1 if i == axis else d for i, d in enumerate(x.dims))
    dtype, _ = at.result()
    mode = "max" if at.node.op_type == "ArgMax" else "min"
    _, places = at.emit_many(
        "TopK", [(x.dtype, dims), (dtype, dims)], x, at.const(1, np.int64), version="opset11",
        axis=axis, mode=mode, sort="value", index_element_type="i64", stable=True,
    )  # fmt: skip
    if at.integer("keepdims", 1):
        return places
    return at.emit("Squeeze", places, at.const([axis], np.int64))


@writes("Softmax", "LogSoftmax")
def softmax(at: Site) -> Output:
    """Shares along an axis."""
    kind, version = ("SoftMax", 8) if at.node.op_type == "Softmax" else ("LogSoftmax", 5)
    return at.emit(kind, at.read(0), version=f"opset{version}", axis=at.integer("axis", -1))


@writes("BatchNormalization")
def batch_norm(at: Site) -> Output:
    """Normalization by known mean and variance."""
    if at.integer("training_mode"):
        raise at.error("training_mode")
    given = (at.read(index) for index in range(5))
    return at.emit("BatchNormInference", *given, version="opset5", epsilon=at.real("epsilon", 1e-5))


@writes("LayerNormalization")
def layer_norm(at: Site) -> Output:
    """Mean taken away, divided by the deviation, over the last axes; scaled and shifted."""
    if at.is_used(1) or at.is_used(2):
        raise at.error("mean and deviation as outputs")
    axis = at.integer("axis", -1)
    axes = list(range(axis % at.rank(), at.rank()))
    found = _mean_variance(at, at.read(0), axes)
    return _scaled(at, found, at.read(1), at.read(2) if at.has(2) else None)


@writes("InstanceNormalization")
def instance_norm(at: Site) -> Output:
    """The same for each channel of each image."""
    rank = at.rank()
    found = _mean_variance(at, at.read(0), list(range(2, rank)))
    scale, shift = (at.channels(at.read(index), rank) for index in (1, 2))
    return _scaled(at, found, scale, shift)


@writes("GroupNormalization")
def group_norm(at: Site) -> Output:
    """The same for groups of channels."""
    x, scale, groups = at.read(0), at.read(1), at.integer("num_groups")
    channels = (x.dims or (0, -1))[1]
    if scale.dims != (channels,):
        raise at.error("scales for groups instead of channels; convert the model to opset 21")
    return at.emit(
        "GroupNormalization", x, scale, at.read(2), version="opset12", made=(x.dtype, x.dims),
        num_groups=groups, epsilon=at.real("epsilon", 1e-5),
    )  # fmt: skip


@writes("RMSNormalization")
def rms_norm(at: Site) -> Output:
    """Divided by the root of the mean square over the last axes; scaled."""
    x, axis = at.read(0), at.integer("axis", -1)
    axes = at.const(range(axis % at.rank(), at.rank()), np.int64)
    dims = None if x.dims is None else (*x.dims[: axis % at.rank()], *[1] * len(axes.dims or ()))
    squares = at.binary("Multiply", x, x)
    mean = at.emit("ReduceMean", squares, axes, made=(x.dtype, dims), keep_dims=True)
    small = at.binary("Add", mean, at.like(at.real("epsilon", 1e-5), x))
    root = at.emit("Sqrt", small, made=(x.dtype, dims))
    return _scaled(at, at.binary("Divide", x, root), at.read(1), None)


def _mean_variance(at: Site, x: Output, axes: list[int]) -> Output:
    along = at.const(axes, np.int64)
    return at.emit(
        "MVN", x, along, version="opset6", made=(x.dtype, x.dims),
        normalize_variance=True, eps=at.real("epsilon", 1e-5), eps_mode="inside_sqrt",
    )  # fmt: skip


def _scaled(at: Site, x: Output, scale: Output, shift: Output | None) -> Output:
    found = at.emit("Multiply", x, scale, auto_broadcast="numpy")
    return found if shift is None else at.emit("Add", found, shift, auto_broadcast="numpy")


@writes("LpNormalization")
def lp_norm(at: Site) -> Output:
    """Divided by the length along an axis."""
    x, axis = at.read(0), at.integer("axis", -1) % at.rank()
    kind = "ReduceL1" if at.integer("p", 2) == 1 else "ReduceL2"
    dims = None if x.dims is None else tuple(1 if i == axis else d for i, d in enumerate(x.dims))
    along = at.const([axis], np.int64)
    length = at.emit(kind, x, along, version="opset4", made=(x.dtype, dims), keep_dims=True)
    least = at.like(float(np.finfo(x.dtype.numpy()).tiny), x)  # what is all zeros stays so
    return at.emit("Divide", x, at.binary("Maximum", length, least), auto_broadcast="numpy")


@writes("LRN")
def local_response(at: Site) -> Output:
    """Local response normalization over neighbouring channels."""
    numbers: dict[str, Any] = {
        "alpha": at.real("alpha", 1e-4), "beta": at.real("beta", 0.75), "bias": at.real("bias", 1.0)
    }  # fmt: skip
    return at.emit("LRN", at.read(0), at.const([1], np.int64), size=at.integer("size"), **numbers)

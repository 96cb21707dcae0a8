"""Resize and Upsample: one axis after another, each by a small table of taps.

Nearest is a table of one tap and moves elements of any dtype, along two neighbouring axes at once;
linear has two taps, cubic four, and antialiasing as many as the filter covers when it is stretched
by the scale.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.resampling import (
    CROPPING,
    NEAREST_MODES,
    TRANSFORMS,
    Axis,
    AxisSizes,
    antialiased,
    cubic,
    fitted,
    linear,
    nearest,
    scaled,
)
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.movement.indexing import taken, taken_pixels
from partita_cpu.kernels.movement.rearrange import axis_of, ints
from partita_cpu.kernels.operator_table import ALL_FLOATS, ANY, INDICES, DTypes, kernel

_WHOLE: DTypes = frozenset(np.dtype(t) for t in (np.uint8, np.int8, np.int32))
"""Integers that linear interpolation takes; it rounds towards zero, as onnxruntime does."""

_JUST_BELOW = 2.0**-20
"""What rounding in float64 may take off a mean of integers, and far less than means differ by."""


@jit
def mix_taps(
    x: Array,
    y: Array,
    index: Array,
    weights: Array,
    outer: int,
    size: int,
    inner: int,
    tid: int,
    nt: int,
) -> None:
    """``y[o, j, :] = sum over t of weights[j, t] * x[o, index[j, t], :]``.

    Args:
        x: Input (outer, size, inner), flat.
        y: Output (outer, out, inner), flat.
        index: (out, taps) of int64.
        weights: (out, taps).
        outer: Product of the dimensions before the axis.
        size: Of the axis in x.
        inner: Product of the dimensions behind the axis.
        tid: This thread.
        nt: All threads; they share the output's rows.
    """
    out, taps = index.shape
    half = weights.dtype.type(0.5)
    if inner == 1:
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            line = x[o * size : (o + 1) * size]
            for j in range(out):
                total = weights[j, 0] * line[index[j, 0]]
                for t in range(1, taps):
                    total += weights[j, t] * line[index[j, t]]
                y[o * out + j] = total
        return
    rows = outer * out
    if taps == 2:
        begin, end = rows * tid // nt, rows * (tid + 1) // nt
        o = begin // out
        j = begin - o * out
        for row in range(begin, end):
            near, far = index[j, 0], index[j, 1]
            weight, other = weights[j, 0], weights[j, 1]
            if other == 0:  # whatever lies there; two halves of the same are exact
                far = near
                weight *= half
                other = weight
            one, two = (o * size + near) * inner, (o * size + far) * inner
            target = y[row * inner : (row + 1) * inner]
            first, second = x[one : one + inner], x[two : two + inner]
            for i in range(inner):
                target[i] = weight * first[i] + other * second[i]
            j += 1
            if j == out:
                j = 0
                o += 1
        return
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        o = row // out
        j = row - o * out
        target = y[row * inner : (row + 1) * inner]
        for t in range(taps):
            start = (o * size + index[j, t]) * inner
            line = x[start : start + inner]
            weight = weights[j, t]
            if t == 0:
                for i in range(inner):
                    target[i] = weight * line[i]
            elif weight != 0:
                for i in range(inner):
                    target[i] += weight * line[i]


def _check(node: Node) -> Reason | None:
    attrs = node.attrs
    mode = attrs.get("mode", "nearest")
    allowed = {
        "mode": ("nearest", "linear", "bilinear", "cubic"),
        "coordinate_transformation_mode": TRANSFORMS,
        "nearest_mode": NEAREST_MODES,
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    }
    for name, values in allowed.items():
        if attrs.get(name, values[0]) not in values:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"{name} is '{attrs[name]}'")
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    is_plain = mode != "cubic" and not attrs.get("antialias", 0)
    taken_types = ALL_FLOATS | _WHOLE if is_plain else ALL_FLOATS
    if mode != "nearest" and dtype is not None and dtype not in taken_types:
        return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"{dtype} with mode '{mode}'")
    return None


@kernel("Upsample", dtypes={0: ANY, 1: ALL_FLOATS}, check=_check)
@through_float32
def upsample(b: Builder, node: Node, x: Operand, scales: Operand | None = None) -> Operand:
    """Resize of old opsets, by scales only."""
    factors = node.attrs["scales"] if scales is None else b.value(scales).ravel().tolist()
    axes = [
        AxisSizes(n, scaled(n, f), float(np.float32(f)))
        for n, f in zip(x.shape, factors, strict=True)
    ]
    return _resampled(b, node, x, axes, "")


@kernel("Resize", dtypes={0: ANY, 1: ALL_FLOATS}, check=_check, until=10)
@through_float32
def resize_10(b: Builder, node: Node, x: Operand, scales: Operand) -> Operand:
    """Resize of opset 10 is Upsample that may shrink."""
    return upsample(b, node, x, scales)  # type: ignore[no-any-return]  # wrapped emitters are untyped


@kernel(
    "Resize",
    dtypes={0: ANY, 1: ALL_FLOATS, 2: ALL_FLOATS, 3: INDICES},
    check=_check,
    since=11,
)
@through_float32
def resize(
    b: Builder,
    node: Node,
    x: Operand,
    roi: Operand | None = None,
    scales: Operand | None = None,
    sizes: Operand | None = None,
) -> Operand:
    """By scales or to sizes, along all axes or some."""
    attrs = node.attrs
    transform = attrs.get("coordinate_transformation_mode", "half_pixel")
    given = attrs.get("axes")
    along = list(range(x.ndim)) if given is None else [axis_of(node, a, x.ndim) for a in given]
    region = [0.0] * len(along) + [1.0] * len(along)
    if transform == CROPPING:
        if roi is None:
            raise CompileError(
                f"Operation '{node.name}' (Resize) has no 'roi' input, "
                "which tf_crop_and_resize needs."
            )
        region = b.value(roi).astype(np.float64).ravel().tolist()
    axes = [AxisSizes(n, n, 1.0) for n in x.shape]
    if scales is not None and scales.size:
        factors = [float(f) for f in b.value(scales).ravel()]
        outs = [scaled(x.shape[a], f) for a, f in zip(along, factors, strict=True)]
    elif sizes is not None:
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        outs, factors = fitted([x.shape[a] for a in along], ints(b, sizes), policy)
    else:
        raise CompileError(f"Operation '{node.name}' (Resize) has neither scales nor sizes.")
    for k, axis in enumerate(along):
        bounds = region[k], region[k + len(along)]
        axes[axis] = AxisSizes(x.shape[axis], outs[k], factors[k], transform, *bounds)
    rounding = attrs.get("nearest_mode", "round_prefer_floor")
    return _resampled(b, node, x, axes, rounding)


def _resampled(
    b: Builder, node: Node, x: Operand, axes: Sequence[AxisSizes], rounding: str
) -> Operand:
    """`x` with each axis resampled, those that shrink first."""
    mode = node.attrs.get("mode", "nearest")
    if mode != "nearest" and x.dtype.kind != "f":
        wide = _resampled(b, node, emit_cast(b, x, np.float64), axes, rounding)
        if wide.size:
            b.call_numpy(_settle, wide)
        return emit_cast(b, wide, x.dtype)
    y = x
    order = [k for k, axis in enumerate(axes) if not axis.is_identity]
    order.sort(key=lambda k: (evaluated(_growth, axes[k].out, axes[k].size), -k))
    if mode == "nearest" and len(order) == 2 and abs(order[0] - order[1]) == 1:
        first, second = min(order), max(order)
        pair = (rounding, *axes[first]), (rounding, *axes[second])
        y = taken_pixels(b, y, first, (axes[first].out, axes[second].out), _nearest, pair)
        order = []
    for k in order:
        if mode == "nearest":
            y = taken(b, y, k, axes[k].out, _nearest, rounding, *axes[k])
        else:
            y = _mixed(b, y, k, axes[k].out, _taps(node, mode, axes[k], x.dtype.type))
    if any(axis.transform == CROPPING for axis in axes):
        y = _extrapolated(b, node, y, [Axis(*axis).outside() for axis in axes])
    return y if y is not x else b.view(x, x.shape)


def _growth(out: int, size: int) -> float:
    return out / max(size, 1)


def _nearest(rounding: str, *axis: Any) -> Array:
    return nearest(Axis(*axis), rounding)


def _settle(y: Array) -> None:
    """Lifts what rounding has left just below a whole number above it, before it is cut off."""
    y += np.copysign(_JUST_BELOW, y)


def _taps(node: Node, mode: str, axis: AxisSizes, kind: Any) -> Any:
    """An axis' table for the attributes of a node: (out, taps) elements and as many weights."""
    attrs: dict[str, Any] = node.attrs
    outside = bool(attrs.get("exclude_outside", 0))
    a = attrs.get("cubic_coeff_a", -0.75) if mode == "cubic" else None
    return evaluated(_used_taps, a, bool(attrs.get("antialias", 0)), outside, kind, *axis)


def _used_taps(
    a: float | None, smooth: bool, outside: bool, kind: Any, *axis: Any
) -> tuple[Array, Array]:
    """Elements and weights, without taps that weigh nothing anywhere."""
    whole = Axis(*axis)
    if smooth:
        index, weights = antialiased(whole, a, outside)
    else:
        index, weights = linear(whole, kind) if a is None else cubic(whole, a, outside)
    used = np.any(weights != 0, axis=0)
    used[0] |= not used.any()  # far from the input nothing weighs, and the sums are 0
    return index[:, used], weights[:, used].astype(kind)


def _mixed(b: Builder, x: Operand, axis: int, out: int, table: Any) -> Operand:
    """`x` with an axis resampled by the table of `_taps`."""
    taps = settled(evaluated(_count, table))
    y = b.empty([*x.shape[:axis], out, *x.shape[axis + 1 :]], x.dtype)
    if y.size:
        b.call(
            mix_taps,
            b.flat(x),
            b.flat(y),
            b.computed((out, taps), np.int64, operator.getitem, table, 0),
            b.computed((out, taps), x.dtype, operator.getitem, table, 1),
            math.prod(x.shape[:axis]),
            x.shape[axis],
            math.prod(x.shape[axis + 1 :]),
            work=y.size * taps,
        )
    return y


def _count(table: tuple[Array, Array]) -> int:
    """Taps of an element."""
    return int(table[0].shape[1])


def _extrapolated(b: Builder, node: Node, y: Operand, outside: Sequence[Array]) -> Operand:
    """`y` with a constant wherever a coordinate of any axis lies outside of the input."""
    mask = np.zeros((1,) * y.ndim, bool)
    for axis, marks in enumerate(outside):
        if marks.any():
            mask = mask | marks.reshape([-1 if k == axis else 1 for k in range(y.ndim)])
    if mask.any():
        value = y.dtype.type(node.number("extrapolation_value", 0.0))
        b.call_numpy(_fill_where, y, b.constant(mask), value)
    return y


def _fill_where(y: Array, mask: Array, value: Any) -> None:
    np.copyto(y, value, where=mask)

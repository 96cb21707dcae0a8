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
from partita.lowering.emission import builder
from partita.lowering.geometry.axes import distinct_axes
from partita.lowering.geometry.interpolation import Interpolation, table
from partita.lowering.geometry.resampling import (
    CROPPING,
    NEAREST_MODES,
    TRANSFORMS,
    Axis,
    AxisSizes,
    fitted,
    nearest,
    scaled,
)
from partita.lowering.shapes.symbolic_size import (
    always_equal,
    assumed,
    evaluated,
    has_varied,
    holds_sizes,
    settled,
)
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.movement.index_steps import table_of_indices, taken, taken_pixels
from partita_cpu.kernels.movement.rearrange import ints
from partita_cpu.kernels.operator_table import ALL_FLOATS, ANY, INDICES, DTypes, kernel

_WHOLE: DTypes = frozenset(np.dtype(t) for t in (np.uint8, np.int8, np.int32))
"""Integers that linear interpolation takes; it rounds towards zero, as onnxruntime does."""

_JUST_BELOW = 2.0**-20
"""What rounding in float64 may take off a mean of integers, and far less than means differ by."""


@jit(inline=True)
def _mix_two(
    line: Array, y: Array, first: Array, weights: Array, target: int, start: int, end: int
) -> None:
    """Elements of one line by two taps each, for places from ``start`` to ``end``.

    Args:
        line: The line.
        y: Gets the elements.
        first: Of each place, the first tap.
        weights: Of each place, those of its taps.
        target: Where the line begins in `y`.
        start: The first place.
        end: Behind the last one.
    """
    last = line.size - 1
    for j in range(start, end):
        near = min(max(first[j], 0), last)
        far = min(max(first[j] + 1, 0), last)
        one, other, two = weights[j, 0] * line[np.uint64(near)], line[np.uint64(far)], weights[j, 1]
        y[np.uint64(target + j)] = one if two == 0 else one + two * other


@jit(inline=True)
def _mix_many(
    line: Array, y: Array, first: Array, weights: Array, target: int, start: int, end: int
) -> None:
    """Elements of one line by any number of taps each, for places from ``start`` to ``end``.

    Args:
        line: The line.
        y: Gets the elements.
        first: Of each place, the first tap.
        weights: Of each place, those of its taps.
        target: Where the line begins in `y`.
        start: The first place.
        end: Behind the last one.
    """
    size, taps = line.size, weights.shape[1]
    last = size - 1
    for j in range(start, end):
        place = first[j]
        total = weights.dtype.type(0)
        if place >= 0 and place + taps <= size:
            for t in range(taps):
                if weights[j, t] != 0:
                    total += weights[j, t] * line[np.uint64(place + t)]
        else:
            for t in range(taps):
                near = min(max(place + t, 0), last)
                if weights[j, t] != 0:
                    total += weights[j, t] * line[np.uint64(near)]
        y[np.uint64(target + j)] = total


@jit(inline=True)
def _mix_lines(
    x: Array,
    y: Array,
    first: Array,
    weights: Array,
    size: int,
    out: int,
    begin: int,
    low: int,
    high: int,
) -> None:
    """`mix_taps` of the last axis, for rows of the output from ``low`` to ``high``.

    Args:
        x: Lines, flat.
        y: Gets the lines of the result, flat.
        first: Of each place, the first tap.
        weights: Of each place, those of its taps.
        size: Elements of a line.
        out: Elements of a line of the result.
        begin: Where the first place is in a line of the result.
        low: The first row; places are counted through all lines.
        high: Behind the last one.
    """
    count, taps = weights.shape
    row = low
    while row < high:
        o = row // count
        start, end = row - o * count, min(count, high - o * count)
        line = x[o * size : (o + 1) * size]
        target = o * out + begin
        if taps == 2:
            _mix_two(line, y, first, weights, target, start, end)
        else:
            _mix_many(line, y, first, weights, target, start, end)
        row += end - start


@jit
def mix_taps(
    x: Array,
    y: Array,
    first: Array,
    weights: Array,
    size: int,
    inner: int,
    begin: int,
    tid: int,
    nt: int,
) -> None:
    """``y[o, begin + j, :] = sum over t of weights[j, t] * x[o, first[j] + t, :]``.

    Places outside of the input are those of its border. What weighs nothing is left out, so that a
    coordinate upon an element takes that element, be its neighbours infinite or NaN.

    Args:
        x: Input (outer, size, inner), flat.
        y: Output (outer, out, inner), flat.
        first: (count,) of int64; the places at which taps begin.
        weights: (count, taps).
        size: Of the axis in x.
        inner: Product of the dimensions behind the axis.
        begin: The first of the ``count`` places of the output's axis that are computed.
        tid: This thread.
        nt: All threads; they share the output's rows.
    """
    count, taps = weights.shape
    outer = x.size // (size * inner)
    out = y.size // (outer * inner)
    last = size - 1
    half = weights.dtype.type(0.5)
    rows = outer * count
    low, high = rows * tid // nt, rows * (tid + 1) // nt
    if inner == 1:
        _mix_lines(x, y, first, weights, size, out, begin, low, high)
        return
    if taps == 2:
        o = low // count
        j = low - o * count
        for _ in range(low, high):
            near = min(max(first[j], 0), last)
            far = min(max(first[j] + 1, 0), last)
            weight, other = weights[j, 0], weights[j, 1]
            if other == 0:  # whatever lies there; two halves of the same are exact
                far = near
                weight *= half
                other = weight
            one, two = (o * size + near) * inner, (o * size + far) * inner
            to = (o * out + begin + j) * inner
            target = y[to : to + inner]
            first_line, second_line = x[one : one + inner], x[two : two + inner]
            for i in range(inner):
                target[i] = weight * first_line[i] + other * second_line[i]
            j += 1
            if j == count:
                j = 0
                o += 1
        return
    for row in range(low, high):
        o = row // count
        j = row - o * count
        to = (o * out + begin + j) * inner
        target = y[to : to + inner]
        for t in range(taps):
            start = (o * size + min(max(first[j] + t, 0), last)) * inner
            line = x[start : start + inner]
            weight = weights[j, t]
            if t == 0:
                target[:] = 0
            if weight != 0:
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
    axes = resized_axes(b, node, x, roi, scales, sizes)
    return _resampled(b, node, x, axes, _rounding(node))


def _rounding(node: Node) -> str:
    rounding: str = node.attrs.get("nearest_mode", "round_prefer_floor")
    return rounding


def resized_axes(
    b: Builder,
    node: Node,
    x: Operand,
    roi: Operand | None,
    scales: Operand | None,
    sizes: Operand | None,
) -> list[AxisSizes]:
    """What a Resize (from opset 11 on) makes of each axis.

    Args:
        b: Knows the constants.
        node: The Resize.
        x: Its input.
        roi: Start and end of each axis, for `tf_crop_and_resize` alone.
        scales: A factor for each axis, or ``None``.
        sizes: The size of each axis, where there are no factors.

    Raises:
        CompileError: It has neither scales nor sizes, or lacks a region.
    """
    attrs = node.attrs
    transform = attrs.get("coordinate_transformation_mode", "half_pixel")
    given = attrs.get("axes")
    along = list(range(x.ndim)) if given is None else distinct_axes(node, given, x.ndim)
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
    return axes


def nearest_pixels(
    b: Builder, node: Node, x: Operand, axes: Sequence[AxisSizes]
) -> tuple[Operand, Operand]:
    """Tables of the input's rows and columns, channels last, that are nearest to the output's."""
    rounding = _rounding(node)
    down, across = (_nearest_of(b, x, axis, axes[axis], rounding) for axis in (1, 2))
    return down, across


def _nearest_of(b: Builder, x: Operand, axis: int, sizes: AxisSizes, rounding: str) -> Operand:
    return table_of_indices(b, x, axis, sizes.out, _nearest, rounding, *sizes)


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
    order = [k for k, axis in enumerate(axes) if not _is_left_out(axis)]
    order.sort(key=lambda k: (assumed(evaluated(_growth, axes[k].out, axes[k].size)), -k))
    if mode == "nearest" and len(order) == 2 and abs(order[0] - order[1]) == 1:
        first = min(order)
        pair = [_nearest_of(b, y, axis, axes[axis], rounding) for axis in (first, first + 1)]
        y = taken_pixels(b, y, first, *pair)
        order = []
    for k in order:
        if mode == "nearest":
            y = taken(b, y, k, axes[k].out, _nearest, rounding, *axes[k])
        else:
            y = _mixed(b, y, k, axes[k], _interpolation(node, mode))
    y = _extrapolated(b, node, y, axes)
    return y if y is not x else b.view(x, x.shape)


def _is_left_out(axis: AxisSizes) -> bool:
    """Whether an axis stays as it is; of one that does so for some sizes, the first recording asks.

    Resampling it moves each element to where it was.
    """
    if has_varied(axis) and not always_equal(axis.size, axis.out):
        return False
    return axis.is_identity


def _growth(out: int, size: int) -> float:
    """By which power of two an axis grows, about.

    So that sizes which are rounded otherwise along one of two axes that grow alike have one order.
    An axis that becomes empty is first, as nothing is left to do; one of a single element, which is
    copied, is last.
    """
    if out == 0:
        return -math.inf
    return round(math.log2(out / size)) if size > 1 else math.inf


def _nearest(rounding: str, *axis: Any) -> Array:
    return nearest(Axis(*axis), rounding)


def _settle(y: Array) -> None:
    """Lifts what rounding has left just below a whole number above it, before it is cut off."""
    y += np.copysign(_JUST_BELOW, y)


def _interpolation(node: Node, mode: str) -> Interpolation:
    attrs = node.attrs
    a = float(attrs.get("cubic_coeff_a", -0.75)) if mode == "cubic" else None
    return Interpolation(a, bool(attrs.get("antialias", 0)), bool(attrs.get("exclude_outside", 0)))


def _mixed(b: Builder, x: Operand, number: int, axis: AxisSizes, how: Interpolation) -> Operand:
    """`x` with an axis resampled; runs make tables that would be large, a piece at a time."""
    y = b.empty([*x.shape[:number], axis.out, *x.shape[number + 1 :]], x.dtype)
    if not y.size:
        return y

    def mix(first: Operand, weights: Operand, begin: int) -> None:
        inner = math.prod(x.shape[number + 1 :])
        work = y.size // axis.out * weights.size
        sizes = x.shape[number], inner, begin
        b.call(mix_taps, b.flat(x), b.flat(y), first, weights, *sizes, work=work)

    if not holds_sizes(axis):
        taps = how.taps(Axis(*axis))
        rows = max(builder.MOST_TABLE_BYTES // (8 + taps * x.dtype.itemsize), 1)
        if rows < axis.out:
            for begin in range(0, axis.out, rows):
                count = min(rows, axis.out - begin)
                first, weights = b.empty((count,), np.int64), b.empty((count, taps), x.dtype)
                b.call_numpy(how.weigh, Axis(*axis), first, weights, begin)
                mix(first, weights, begin)
            return y
    found = evaluated(_table, how, x.dtype.type, *axis)
    width = evaluated(_width, found)
    shape = axis.out, width if has_varied([width]) else settled(width)
    mix(
        b.computed(shape[:1], np.int64, operator.getitem, found, 0),
        b.computed(shape, x.dtype, operator.getitem, found, 1),
        0,
    )
    return y


def _table(how: Interpolation, kind: Any, *numbers: Any) -> tuple[Array, Array]:
    """The taps of an axis; of one that stays as it is each element itself."""
    axis = Axis(*numbers)
    if axis.is_identity:
        return np.arange(axis.out), np.ones((axis.out, 1), kind)
    return table(how, kind, axis)


def _width(found: tuple[Array, Array]) -> int:
    """Taps of a table's rows."""
    return int(found[1].shape[1])


def _extrapolated(b: Builder, node: Node, y: Operand, axes: Sequence[AxisSizes]) -> Operand:
    """`y` with a constant wherever a coordinate of any axis lies outside of the input."""
    value = y.dtype.type(node.number("extrapolation_value", 0.0))
    for number, axis in enumerate(axes):
        if axis.transform == CROPPING and y.size:
            marks = b.table((axis.out,), np.bool_, _outside, *axis)
            if marks.const is None or marks.const.dtype == object or marks.const.any():
                b.call_numpy(_fill_along, y, number, marks, value)
    return y


def _outside(*axis: Any) -> Array:
    return Axis(*axis).outside()


def _fill_along(y: Array, number: int, marks: Array, value: Any) -> None:
    y[(slice(None),) * number + (marks,)] = value

"""Slices and ranges in loop bodies: begins known at run time, sizes expected to stay the same.

A body that reads or writes one row of a state, the next one in each iteration, has a Slice or a
Range from the iteration's number to one more. What it makes is always of one size, so that one
program does for all iterations; each looks whether the size is as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from partita.errors import InputError
from partita.lowering import Array, Builder, Node, Operand, OtherSizes
from partita.lowering.emitter import Emitted
from partita.lowering.geometry.axes import axis_of
from partita.lowering.geometry.ranges import count_of_range
from partita.lowering.geometry.slices import taken
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.kernels.constant import count_up

_FAR = 1 << 62
"""Ends of ranges beyond are left to Python, whose integers do not overflow."""


def emit_expected(
    b: Builder, node: Node, operands: Sequence[Operand | None], shapes: Sequence[tuple[int, ...]]
) -> Emitted:
    """A Slice or Range whose result has the given shape; ``None`` for other operators."""
    x = operands[0] if operands else None
    if x is None or node.kind not in ("Slice", "Range"):
        return None
    y = b.empty(shapes[0], x.dtype)
    if node.kind == "Slice":
        starts, ends, axes, steps = [*operands[1:], None, None][:4]
        axis = _only_axis(node, x, starts, ends, axes, steps)
        if axis is not None and _differ_in(axis, x.shape, y.shape):
            sizes = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
            flat = [b.flat(t) for t in (x, y, starts, ends) if t is not None]
            b.call(_slice_rows, *flat, *sizes, y.shape[axis])
        else:
            b.call_numpy(slice_expected, node.name, x, starts, ends, axes, steps, y)
    elif x.dtype.kind == "i" and all(o is not None and o.size == 1 for o in operands):
        b.call(_integer_range, b.flat(y), *(b.flat(o) for o in operands if o is not None))
    else:
        b.call_numpy(range_expected, *operands, y)
    return y


def _only_axis(
    node: Node,
    x: Operand,
    starts: Operand | None,
    ends: Operand | None,
    axes: Operand | None,
    steps: Operand | None,
) -> int | None:
    """The axis of a slice along one axis that is known, in steps of 1.

    Args:
        node: The operation.
        x: Its input.
        starts: As in ONNX's Slice.
        ends: As in ONNX's Slice.
        axes: As in ONNX's Slice.
        steps: As in ONNX's Slice.
    """
    if starts is None or ends is None or not starts.size == ends.size == 1:
        return None
    if steps is not None and (steps.const is None or steps.const.reshape(-1).tolist() != [1]):
        return None
    if axes is None:
        return 0 if x.ndim else None
    if axes.const is None or axes.size != 1:
        return None
    return axis_of(node, int(axes.const.reshape(-1)[0]), x.ndim)


def _differ_in(axis: int, shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether shapes are alike but for the size of one axis."""
    return len(shape) == len(other) and all(
        n == m or place == axis for place, (n, m) in enumerate(zip(shape, other, strict=True))
    )


@jit
def slice_rows(
    x: Array,
    y: Array,
    starts: Array,
    ends: Array,
    outer: int,
    size: int,
    inner: int,
    count: int,
    tid: int,
    nt: int,
) -> None:
    """``y = x[:, start:end, :]`` for x of (outer, size, inner), if that is `count` of the size.

    Args:
        x: (outer, size, inner) elements, flat.
        y: Output (outer, count, inner), flat.
        starts: The start, in its first element; from behind if it is negative.
        ends: The end, likewise.
        outer: Elements of all axes before the one that is cut.
        size: Elements of that axis.
        inner: Elements of all axes behind it.
        count: Elements that the program was made for.
        tid: This thread.
        nt: All threads; they share what is outer.

    Raises:
        ValueError: The start and the end give another count.
    """
    start: Any = np.int64(starts[0])
    end: Any = np.int64(ends[0])
    if start < 0:
        start += size
    if end < 0:
        end += size
    first = min(max(start, 0), size)
    last = min(max(end, 0), size)
    if max(last - first, 0) != count:
        raise ValueError("the slice has another size")
    line = count * inner
    for o in range(outer * tid // nt, outer * (tid + 1) // nt):
        source = (o * size + first) * inner
        target = o * line
        for i in range(line):
            y[np.uint64(target + i)] = x[np.uint64(source + i)]


@jit
def integer_range(y: Array, start: Array, limit: Array, delta: Array, tid: int, nt: int) -> None:
    """Writes the whole numbers from `start` to before `limit`, if they are as many as `y` takes.

    Args:
        y: Integers, flat.
        start: One integer: the first number.
        limit: One integer, which is not reached.
        delta: One integer: from a number to the next, of either sign.
        tid: This thread.
        nt: All threads.

    Raises:
        ValueError: They are more or fewer, or too large to be counted safely.
    """
    first: Any = np.int64(start[0])
    stop: Any = np.int64(limit[0])
    step: Any = np.int64(delta[0])
    if max(max(first, stop), step) > _FAR or min(min(first, stop), step) < -_FAR:
        raise ValueError("the numbers are large")
    count: Any = 0
    if step > 0 and stop > first:
        count = (stop - first + step - 1) // step
    elif step < 0 and stop < first:
        count = (first - stop - step - 1) // -step
    if count != y.size:
        raise ValueError("the range has another size")
    for i in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        y[i] = first + i * step


def _other(*arguments: Any) -> NoReturn:
    raise OtherSizes


_slice_rows = Checked(slice_rows, _other, 2)
_integer_range = Checked(integer_range, _other)


def slice_expected(
    name: str,
    x: Array,
    starts: Array,
    ends: Array,
    axes: Array | None,
    steps: Array | None,
    y: Array,
) -> None:
    """Copies a slice along any axes, in any steps.

    Args:
        name: Of the operation.
        x: What it is a slice of.
        starts: First indices, as Slice takes them.
        ends: Indices behind the last ones.
        axes: Which axes they are of; ``None``: the first ones.
        steps: Between indices; ``None``: 1.
        y: Where the slice is expected to fit.

    Raises:
        OtherSizes: It has another shape.
        InputError: There is no such axis, one is named twice, or a step is 0.
    """
    places = [slice(None)] * x.ndim
    along = range(starts.size) if axes is None else axes.reshape(-1).tolist()
    by = [1] * starts.size if steps is None else steps.reshape(-1).tolist()
    bounds = starts.reshape(-1).tolist(), ends.reshape(-1).tolist()
    for axis, start, end, step in zip(along, *bounds, by, strict=True):
        if not -x.ndim <= axis < x.ndim or step == 0:
            raise InputError(
                f"Operation '{name}' (Slice) goes in steps of {step} along axis {axis} of a tensor "
                f"of {x.ndim} dimensions; axes are from {-x.ndim} to {x.ndim - 1}, steps not 0."
            )
        first, count = taken(x.shape[axis], start, end, step)
        last = first + count * step
        if places[axis] != slice(None):
            raise InputError(f"Operation '{name}' (Slice) names axis {axis} twice: axes {along}.")
        places[axis] = slice(first, last if last >= 0 else None, step)
    found = x[tuple(places)]
    if found.shape != y.shape:
        raise OtherSizes
    y[...] = found


def range_expected(start: Array, limit: Array, delta: Array, y: Array) -> None:
    """Writes the numbers of a Range.

    Raises:
        OtherSizes: There are fewer or more than expected.
    """
    first, stop, step = (x.reshape(-1)[0].item() for x in (start, limit, delta))
    count = count_of_range(first, stop, step)
    if count != y.size:
        raise OtherSizes
    count_up(first, step, y)

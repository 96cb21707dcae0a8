"""Slices and ranges in bodies of loops: where they begin the run tells, their sizes are expected.

A body that reads or writes one row of a state, the next one in each iteration, has a Slice or a
Range from the iteration's number to one more. What it makes is always of one size, so that one
program does for all iterations; each looks whether the size is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import InferError
from partita.lowering import Array, Builder, Node, Operand, OtherSizes
from partita.lowering.builder import Emitted
from partita.lowering.geometry.slices import taken
from partita_cpu.kernels.constant import count_up, length_of_range


def emit_expected(
    b: Builder, node: Node, operands: Sequence[Operand | None], shapes: Sequence[tuple[int, ...]]
) -> Emitted:
    """A Slice or Range whose result has the given shape; ``None`` for other operators."""
    if node.kind not in ("Slice", "Range") or operands[0] is None:
        return None
    x = operands[0]
    y = b.empty(shapes[0], x.dtype)
    if node.kind == "Slice":
        given = [*operands[1:], None, None][:4]
        b.call_numpy(slice_expected, node.name, x, *given, y)
    else:
        b.call_numpy(range_expected, *operands, y)
    return y


def slice_expected(
    name: str,
    x: Array,
    starts: Array,
    ends: Array,
    axes: Array | None,
    steps: Array | None,
    y: Array,
) -> None:
    """Copies a slice.

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
        InferError: There is no such axis, or a step is 0.
    """
    places = [slice(None)] * x.ndim
    along = range(starts.size) if axes is None else axes.reshape(-1).tolist()
    by = [1] * starts.size if steps is None else steps.reshape(-1).tolist()
    bounds = starts.reshape(-1).tolist(), ends.reshape(-1).tolist()
    for axis, start, end, step in zip(along, *bounds, by, strict=True):
        if not -x.ndim <= axis < x.ndim or step == 0:
            raise InferError(
                f"Operation '{name}' (Slice) goes in steps of {step} along axis {axis} of a tensor "
                f"of {x.ndim} dimensions; axes are from {-x.ndim} to {x.ndim - 1}, steps not 0."
            )
        first, count = taken(x.shape[axis], start, end, step)
        last = first + count * step
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
    count = length_of_range(first, stop, step)
    if count != y.size:
        raise OtherSizes
    count_up(first, step, y)

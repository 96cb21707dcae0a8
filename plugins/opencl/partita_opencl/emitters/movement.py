"""Operators that move elements: Transpose, Concat, Split, Slice, Pad, Expand, Tile and others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.axes import axis_of, distinct_axes
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.shapes.symbolic_size import holds_sizes, integer
from partita_opencl.emitters.operator_table import INDICES, MOVED, operator
from partita_opencl.launches.emitter_kit import Kit, i64, ints
from partita_opencl.launches.tensor_moves import (
    MOST_BYTES,
    RAW_TYPES,
    copy_box,
    expand,
    fits_box,
    pad_borders,
    slice_box,
    transpose,
)

_JOINED = 8
"""Tensors that one launch joins."""


def own_axis(node: Node, rank: int, default: int = 0) -> int:
    """A node's attribute `axis`, counted from the front.

    Args:
        node: Whose attribute it is.
        rank: Dimensions of the input.
        default: The axis where the attribute is left out.

    Raises:
        OperandError: There is no such axis.
    """
    return axis_of(node, node.attrs.get("axis", default), rank)


@operator("Transpose", types=MOVED)
def transpose_op(k: Kit, node: Node, x: Operand) -> Operand:
    """Permutes dimensions; reverses them if no order is given."""
    order = node.attrs.get("perm") or list(range(x.ndim))[::-1]
    return transpose(k, x, order)


@operator("Concat", types=MOVED)
def concat(k: Kit, node: Node, *inputs: Operand) -> Operand:
    """Joins tensors along an axis."""
    axis = own_axis(node, inputs[0].ndim, 1)
    if len(inputs) == 1:
        return inputs[0]
    shape = list(inputs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in inputs)
    y = k.empty(shape, inputs[0].dtype)
    if _joins_rows(shape, axis, inputs):
        _join_rows(k, axis, inputs, y)
        return y
    steps = strides_of(shape)
    start = 0
    for x in inputs:
        copy_box(k, Box(x, strides_of(x.shape)), Box(y, steps, start * steps[axis]), x.shape)
        start += x.shape[axis]
    return y


def _joins_rows(shape: Sequence[int], axis: int, inputs: Sequence[Operand]) -> bool:
    """Whether there are several rows, of numbers that are known and that kernels count."""
    if holds_sizes([shape, *(x.shape for x in inputs)]) or 0 in shape:
        return False
    alike = len({x.dtype for x in inputs}) == 1
    return alike and math.prod(shape[:axis]) > 1 and math.prod(shape[axis:]) < 1 << 31


def _join_rows(k: Kit, axis: int, inputs: Sequence[Operand], y: Operand) -> None:
    """Records copies to rows of one tensor, of several others by one launch."""
    rows, pitch, itemsize = math.prod(y.shape[:axis]), math.prod(y.shape[axis:]), y.dtype.itemsize
    parts = [(x, math.prod(x.shape[axis:])) for x in inputs if x.size]
    together = math.gcd(MOST_BYTES // itemsize, *(width for _, width in parts))
    start = 0
    for first in range(0, len(parts), _JOINED):
        some = parts[first : first + _JOINED]
        ends = list(itertools.accumulate(width // together for _, width in some))
        empty = _JOINED - len(some)
        k.launch(
            "join.cl",
            "join_rows",
            k.tuning.grid(ends[-1], rows),
            *(x for x, _ in some),
            *[some[0][0]] * empty,
            y,
            ints(*ends, *[ends[-1]] * empty),
            i64(rows),
            i64(pitch // together),
            i64(start),
            T=RAW_TYPES[together * itemsize],
        )
        start += ends[-1]


@operator("Split", types={0: MOVED, 1: INDICES}, values=(1,), outputs=None)
def split(k: Kit, node: Node, x: Operand, sizes: Operand | None = None) -> tuple[Operand, ...]:
    """Cuts a tensor along an axis."""
    axis = own_axis(node, x.ndim)
    if sizes is not None:
        parts = [integer(n) for n in k.value(sizes).reshape(-1)]
    elif node.attrs.get("split"):
        parts = list(node.attrs["split"])
    else:
        count = int(node.attrs.get("num_outputs", len(node.outputs)))
        each = -(-x.shape[axis] // count)
        parts = [max(0, min(each, x.shape[axis] - i * each)) for i in range(count)]
    steps = strides_of(x.shape)
    outputs, start = [], 0
    for part in parts:
        shape = [*x.shape[:axis], part, *x.shape[axis + 1 :]]
        y = k.empty(shape, x.dtype)
        copy_box(k, Box(x, steps, start * steps[axis]), Box(y, strides_of(shape)), shape)
        outputs.append(y)
        start += part
    return tuple(outputs)


@operator(
    "Slice",
    types={0: MOVED, 1: INDICES, 2: INDICES, 3: INDICES, 4: INDICES},
    values=(1, 2, 3, 4),
    since=10,
)
def slice_op(
    k: Kit,
    node: Node,
    x: Operand,
    starts: Operand,
    ends: Operand,
    axes: Operand | None = None,
    steps: Operand | None = None,
) -> Operand:
    """A box of a tensor, with steps of either sign."""
    begin, end = k.value(starts).ravel().tolist(), k.value(ends).ravel().tolist()
    along = list(range(len(begin))) if axes is None else k.value(axes).ravel().tolist()
    stride = [1] * len(begin) if steps is None else k.value(steps).ravel().tolist()
    if 0 in stride:
        raise OperandError(f"Operation '{node.name}' (Slice) has a step of 0.")
    return slice_box(k, x, begin, end, distinct_axes(node, along, x.ndim), stride)


@operator("Slice", types=MOVED, until=9)
def slice_by_attributes(k: Kit, node: Node, x: Operand) -> Operand:
    """A box of a tensor, given by attributes."""
    begin, end = node.attrs["starts"], node.attrs["ends"]
    along = node.attrs.get("axes") or list(range(len(begin)))
    along = distinct_axes(node, along, x.ndim)
    return slice_box(k, x, begin, end, along, [1] * len(begin))


@operator("Expand", types={0: MOVED, 1: INDICES}, values=(1,))
def expand_op(k: Kit, node: Node, x: Operand, shape: Operand) -> Operand:
    """Broadcasts to a shape (both ways)."""
    wanted = [integer(n) for n in k.value(shape).reshape(-1)]
    return expand(k, x, broadcast(x.shape, tuple(wanted)))


@operator("Tile", types={0: MOVED, 1: INDICES}, values=(1,), since=6)
def tile(k: Kit, node: Node, x: Operand, repeats: Operand) -> Operand:
    """Repeats a tensor along each dimension."""
    return _tiled(k, x, [integer(n) for n in k.value(repeats).reshape(-1)])


def _tiled(k: Kit, x: Operand, counts: Sequence[int]) -> Operand:
    """The tensor repeated, the last dimensions first where one box has not enough dimensions."""
    shape = [s * n for s, n in zip(x.shape, counts, strict=True)]
    box = [n for pair in zip(counts, x.shape, strict=True) for n in pair]
    x_steps = [n for step in strides_of(x.shape) for n in (0, step)]
    repeated = [dim for dim, count in enumerate(counts) if count != 1]
    if not fits_box(box, x_steps, strides_of(box)):
        middle = repeated[len(repeated) // 2]
        last = _tiled(k, x, [1] * middle + list(counts[middle:]))
        return _tiled(k, last, [*counts[:middle], *[1] * (len(counts) - middle)])
    y = k.empty(shape, x.dtype)
    copy_box(k, Box(x, x_steps), Box(y, strides_of(box)), box)
    return y


def _pad_mode(node: Node) -> Reason | None:
    mode = node.attrs.get("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"mode {mode!r}")
    return None


@operator("Pad", types={0: MOVED, 1: INDICES, 3: INDICES}, values=(1, 3), since=11, check=_pad_mode)
def pad(
    k: Kit,
    node: Node,
    x: Operand,
    pads: Operand,
    fill: Operand | None = None,
    axes: Operand | None = None,
) -> Operand:
    """Adds borders, or cuts them off where a pad is negative."""
    amounts = [integer(n) for n in k.value(pads).reshape(-1)]
    named = range(x.ndim) if axes is None else k.value(axes).reshape(-1).tolist()
    along = distinct_axes(node, named, x.ndim)
    before, after = [0] * x.ndim, [0] * x.ndim
    for n, axis in enumerate(along):
        before[axis], after[axis] = amounts[n], amounts[n + len(along)]
    if fill is None:
        fill = k.constant(np.zeros(1, x.dtype))
    return pad_borders(k, x, before, after, node.attrs.get("mode", "constant").upper(), fill)


@operator("Pad", types=MOVED, since=2, until=10, check=_pad_mode)
def pad_by_attributes(k: Kit, node: Node, x: Operand) -> Operand:
    """Adds borders given by attributes."""
    pads = node.attrs["pads"]
    fill = k.constant(np.full(1, node.attrs.get("value", 0.0), x.dtype))
    mode = node.attrs.get("mode", "constant").upper()
    return pad_borders(k, x, pads[: x.ndim], pads[x.ndim :], mode, fill)


@operator("DepthToSpace", types=MOVED)
def depth_to_space(k: Kit, node: Node, x: Operand) -> Operand:
    """Moves channels into blocks of pixels."""
    n, c, h, w = x.shape
    b = int(node.attrs["blocksize"])
    if node.attrs.get("mode", "DCR") == "DCR":
        parts, order = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        parts, order = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    return k.view(transpose(k, k.view(x, parts), order), (n, c // (b * b), h * b, w * b))


@operator("SpaceToDepth", types=MOVED)
def space_to_depth(k: Kit, node: Node, x: Operand) -> Operand:
    """Moves blocks of pixels into channels."""
    n, c, h, w = x.shape
    b = int(node.attrs["blocksize"])
    blocks = k.view(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if node.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return k.view(transpose(k, blocks, order), (n, c * b * b, h // b, w // b))

"""Operators that move elements: Transpose, Concat, Split, Slice, Pad, Expand, Tile and others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.geometry.slices import taken
from partita.lowering.shapes.symbolic_size import holds_sizes, integer
from partita_opencl.emitters.operator_table import INDICES, MOVED, operator
from partita_opencl.launches.emitter_kit import Kit, i32, i64, ints, longs, raw_ctype

_DIMS = 8
_TILE, _TILE_STEP = 32, 8

_JOINED = 8
"""Tensors that one launch joins."""

_MOST_BYTES = 16
_RAW = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", _MOST_BYTES: "uint4"}
"""By bytes the type of what an item copies at a time."""


def copy_box(k: Kit, source: Box, target: Box, sizes: Sequence[int]) -> None:
    """Records a copy of a box of elements from one tensor to another.

    A copy to where the elements lie anyway is left out, if a run has one buffer for both tensors.

    Args:
        k: What records launches.
        source: What is read.
        target: What is written, of elements of the same size.
        sizes: Of both boxes, outermost dimension first.

    Raises:
        OperandError: It has too many dimensions, or reaches beyond one of the tensors.
    """
    if 0 in sizes:
        return
    source.check(k.builder.node, sizes)
    target.check(k.builder.node, sizes)
    x, y = source.tensor, target.tensor
    if x.dtype.itemsize != y.dtype.itemsize:
        node = k.builder.node
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) cannot copy {x.dtype} to {y.dtype}; cast "
            "it."
        )
    dims, froms, tos = _merged(sizes, source.strides, target.strides)
    if len(dims) > _DIMS:
        node = k.builder.node
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) moves a box of {len(dims)} dimensions; "
            f"device OPENCL takes {_DIMS}."
        )
    together = _together(x.dtype.itemsize, (source.start, target.start), dims, froms, tos)
    start, end = source.start // together, target.start // together
    dims[0] //= together
    froms = [froms[0], *(step // together for step in froms[1:])]
    tos = [tos[0], *(step // together for step in tos[1:])]
    outer = math.prod(dims[2:])
    pad = _DIMS - len(dims)
    record = k.launch_copy if (froms, source.start) == (tos, target.start) else k.launch
    record(
        "move.cl",
        "copy_box",
        k.tuning.grid(dims[0], dims[1], outer),
        x,
        y,
        i64(start),
        i64(end),
        ints(*dims, *(1,) * pad),
        longs(*froms, *(0,) * pad),
        longs(*tos, *(0,) * pad),
        i64(outer),
        T=_RAW[together * x.dtype.itemsize],
        DIMS=2 if len(dims) == 2 else 3 if len(dims) == 3 else _DIMS,
    )


def _together(
    itemsize: int,
    starts: tuple[int, int],
    dims: Sequence[int],
    froms: Sequence[int],
    tos: Sequence[int],
) -> int:
    """How many neighbouring elements of a box are copied as one, of at most 16 bytes."""
    numbers = (*starts, dims[0], *froms[1:], *tos[1:])
    if froms[0] != 1 or tos[0] != 1 or holds_sizes(numbers):
        return 1
    most = _MOST_BYTES // itemsize
    return math.gcd(most, *numbers)


def _merged(
    sizes: Sequence[int], x_steps: Sequence[int], y_steps: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """The same box in fewest dimensions, innermost first, but at least two."""
    dims: list[int] = []
    froms: list[int] = []
    tos: list[int] = []
    for size, x, y in zip(reversed(sizes), reversed(x_steps), reversed(y_steps), strict=True):
        if size == 1:
            continue
        if dims and x == froms[-1] * dims[-1] and y == tos[-1] * dims[-1]:
            dims[-1] *= size
        else:
            dims.append(size)
            froms.append(x)
            tos.append(y)
    while len(dims) < 2:
        dims.append(1)
        froms.append(0)
        tos.append(0)
    return dims, froms, tos


def transpose(k: Kit, x: Operand, order: Sequence[int]) -> Operand:
    """The tensor with its dimensions permuted; no step where only ones move.

    Args:
        k: The kit of the program.
        x: The tensor.
        order: For each dimension of the result the one of `x`, counted from 0.
    """
    shape = [x.shape[i] for i in order]
    if [i for i in order if x.shape[i] != 1] == [i for i in range(x.ndim) if x.shape[i] != 1]:
        return k.view(x, shape)
    y = k.empty(shape, x.dtype)
    planes = _swapped_planes(x.shape, order)
    if planes is not None and k.tuning.fits(_TILE, _TILE_STEP):
        count, rows, columns = planes
        groups = count * -(-rows // _TILE) * -(-columns // _TILE)
        k.launch(
            "transpose.cl",
            "transpose_planes",
            ((groups * _TILE, _TILE_STEP), (_TILE, _TILE_STEP)),
            x,
            y,
            i32(rows),
            i32(columns),
            T=raw_ctype(x.dtype),
            TILE=_TILE,
            STEP=_TILE_STEP,
        )
        return y
    steps = strides_of(x.shape)
    copy_box(k, Box(x, [steps[i] for i in order]), Box(y, strides_of(shape)), shape)
    return y


def _swapped_planes(shape: Sequence[int], order: Sequence[int]) -> tuple[int, int, int] | None:
    """Planes, rows and columns if the permutation swaps two runs of inner dimensions."""
    same = 0
    while same < len(order) and order[same] == same:
        same += 1
    tail = [i - same for i in order[same:]]
    cut = tail[0] if tail else 0
    if tail != [*range(cut, len(tail)), *range(cut)] or not tail:
        return None
    planes = math.prod(shape[:same])
    rows = math.prod(shape[same : same + cut])
    columns = math.prod(shape[same + cut :])
    return (planes, rows, columns) if min(rows, columns) >= _TILE_STEP else None


def expand(k: Kit, x: Operand, shape: Sequence[int]) -> Operand:
    """The tensor repeated along dimensions of one.

    Args:
        k: The kit of the program.
        x: A tensor that broadcasts to `shape`.
        shape: The sizes to fill.

    Returns:
        The tensor itself, a view, or a copy.
    """
    if tuple(shape) == x.shape:
        return x
    if math.prod(shape) == x.size:
        return k.view(x, shape)
    dims = (1,) * (len(shape) - x.ndim) + x.shape
    steps = [0 if size == 1 else s for size, s in zip(dims, strides_of(dims), strict=True)]
    y = k.empty(shape, x.dtype)
    copy_box(k, Box(x, steps), Box(y, strides_of(shape)), shape)
    return y


def pad_zeros(k: Kit, x: Operand, before: Sequence[int], after: Sequence[int]) -> Operand:
    """The tensor with a border of zeros.

    Args:
        k: Records it.
        x: The tensor.
        before: Zeros in front, for each dimension.
        after: Zeros behind.
    """
    return _pad(k, x, before, after, "CONSTANT", k.constant(np.zeros(1, x.dtype)))


def _pad(
    k: Kit, x: Operand, before: Sequence[int], after: Sequence[int], mode: str, fill: Operand
) -> Operand:
    if min(*before, *after, 0) < 0:  # cropped first, so that borders repeat what is left
        starts = [max(0, -b) for b in before]
        ends = [s - max(0, -a) for s, a in zip(x.shape, after, strict=True)]
        x = _slice(k, x, starts, ends, range(x.ndim), [1] * x.ndim)
        before, after = [max(0, b) for b in before], [max(0, a) for a in after]
    shape = [s + b + a for s, b, a in zip(x.shape, before, after, strict=True)]
    y = k.empty(shape, x.dtype)
    if not y.size:
        return y
    if fill.dtype.itemsize != x.dtype.itemsize or not fill.size:
        raise OperandError(
            f"Operation '{k.builder.node.name}' (Pad) pads a tensor of {x.dtype} by {fill.size} "
            f"elements of {fill.dtype}; it must be one of the same type."
        )
    if mode != "CONSTANT" and not x.size:
        raise OperandError(f"Operation '{k.builder.node.name}' pads an empty tensor by its edge.")
    dims = _unpadded_merged(x.shape, before, after)
    dims += [(1, 0, 1)] * (_DIMS - len(dims))
    sizes, leads, totals = zip(*dims, strict=True)
    outer = math.prod(totals[2:])
    k.launch(
        "pad.cl",
        "pad",
        k.tuning.grid(totals[0], totals[1], outer),
        x,
        y,
        ints(*sizes),
        ints(*totals),
        ints(*leads),
        i64(outer),
        fill,
        T=raw_ctype(x.dtype),
        DIMS=3 if math.prod(totals[3:]) == 1 else _DIMS,
        **{mode: None},
    )
    return y


def _unpadded_merged(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Size, leading pad and padded size per dimension, innermost first.

    Neighbouring dimensions without pads count as one.
    """
    dims: list[tuple[int, int, int]] = []
    for size, lead, trail in zip(reversed(shape), reversed(before), reversed(after), strict=True):
        if dims and not lead and not trail and dims[-1][0] == dims[-1][2]:
            total = dims[-1][0] * size
            dims[-1] = (total, 0, total)
        else:
            dims.append((size, lead, size + lead + trail))
    return dims


def axis_of(node: Node, rank: int, default: int = 0, name: str = "axis") -> int:
    """A node's axis, counted from the front.

    Args:
        node: Whose attribute it is.
        rank: Dimensions of the input.
        default: The axis where the attribute is left out.
        name: Of the attribute.

    Raises:
        OperandError: There is no such axis.
    """
    return one_axis(node, node.attrs.get(name, default), rank, name)


def one_axis(node: Node, axis: int, rank: int, name: str = "axis") -> int:
    """An axis that an attribute or a tensor names, counted from the front.

    Args:
        node: Named by the error.
        axis: From ``-rank`` to ``rank - 1``.
        rank: Dimensions of the input.
        name: What the error calls it.

    Raises:
        OperandError: There is no such axis.
    """
    if not -rank <= axis < max(rank, 1):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has {name} {axis}; its input has rank "
            f"{rank}."
        )
    return int(axis) % max(rank, 1)


@operator("Transpose", types=MOVED)
def transpose_op(k: Kit, node: Node, x: Operand) -> Operand:
    """Permutes dimensions; reverses them if no order is given."""
    order = node.attrs.get("perm") or list(range(x.ndim))[::-1]
    return transpose(k, x, order)


@operator("Concat", types=MOVED)
def concat(k: Kit, node: Node, *inputs: Operand) -> Operand:
    """Joins tensors along an axis."""
    if len(inputs) == 1:
        return inputs[0]
    axis = axis_of(node, inputs[0].ndim, 1)
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
    together = math.gcd(_MOST_BYTES // itemsize, *(width for _, width in parts))
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
            T=_RAW[together * itemsize],
        )
        start += ends[-1]


@operator("Split", types={0: MOVED, 1: INDICES}, values=(1,), outputs=None)
def split(k: Kit, node: Node, x: Operand, sizes: Operand | None = None) -> tuple[Operand, ...]:
    """Cuts a tensor along an axis."""
    axis = axis_of(node, x.ndim)
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
    return _slice(k, x, begin, end, [one_axis(node, n, x.ndim) for n in along], stride)


@operator("Slice", types=MOVED, until=9)
def slice_by_attributes(k: Kit, node: Node, x: Operand) -> Operand:
    """A box of a tensor, given by attributes."""
    begin, end = node.attrs["starts"], node.attrs["ends"]
    along = node.attrs.get("axes") or list(range(len(begin)))
    along = [one_axis(node, n, x.ndim) for n in along]
    return _slice(k, x, begin, end, along, [1] * len(begin))


def _slice(
    k: Kit,
    x: Operand,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    strides: Sequence[int],
) -> Operand:
    shape, x_steps, x_start = list(x.shape), strides_of(x.shape), 0
    for start, end, axis, stride in zip(starts, ends, axes, strides, strict=True):
        dim = axis % x.ndim
        first, shape[dim] = taken(x.shape[dim], start, end, stride)
        x_start += first * x_steps[dim]
        x_steps[dim] *= stride
    if tuple(shape) == x.shape and all(stride == 1 for stride in strides):
        return x
    y = k.empty(shape, x.dtype)
    copy_box(k, Box(x, x_steps, x_start), Box(y, strides_of(shape)), shape)
    return y


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
    if len(_merged(box, x_steps, strides_of(box))[0]) > _DIMS:
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
    along = [one_axis(node, n, x.ndim) for n in named]
    before, after = [0] * x.ndim, [0] * x.ndim
    for n, axis in enumerate(along):
        before[axis], after[axis] = amounts[n], amounts[n + len(along)]
    if fill is None:
        fill = k.constant(np.zeros(1, x.dtype))
    return _pad(k, x, before, after, node.attrs.get("mode", "constant").upper(), fill)


@operator("Pad", types=MOVED, since=2, until=10, check=_pad_mode)
def pad_by_attributes(k: Kit, node: Node, x: Operand) -> Operand:
    """Adds borders given by attributes."""
    pads = node.attrs["pads"]
    fill = k.constant(np.full(1, node.attrs.get("value", 0.0), x.dtype))
    mode = node.attrs.get("mode", "constant").upper()
    return _pad(k, x, pads[: x.ndim], pads[x.ndim :], mode, fill)


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

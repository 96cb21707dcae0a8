"""Moves of elements that emitters record: boxes copied, axes permuted, borders added or cut off."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.errors import CompileError, OperandError
from partita.lowering import Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.slices import taken
from partita.lowering.shapes.symbolic_size import holds_sizes
from partita_opencl.launches.emitter_kit import Kit, i32, i64, ints, longs, raw_ctype

_DIMS = 8
_TILE, _TILE_STEP = 32, 8

MOST_BYTES = 16
"""That an item copies at a time."""

RAW_TYPES = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", MOST_BYTES: "uint4"}
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
        T=RAW_TYPES[together * x.dtype.itemsize],
        DIMS=2 if len(dims) == 2 else 3 if len(dims) == 3 else _DIMS,
    )


def fits_box(sizes: Sequence[int], x_steps: Sequence[int], y_steps: Sequence[int]) -> bool:
    """Whether `copy_box` copies a box by one launch, whose steps are those of either tensor."""
    return len(_merged(sizes, x_steps, y_steps)[0]) <= _DIMS


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
    most = MOST_BYTES // itemsize
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
    return pad_borders(k, x, before, after, "CONSTANT", k.constant(np.zeros(1, x.dtype)))


def pad_borders(
    k: Kit, x: Operand, before: Sequence[int], after: Sequence[int], mode: str, fill: Operand
) -> Operand:
    """The tensor with borders, or without some of it where a border is negative.

    Args:
        k: Records it.
        x: The tensor.
        before: Elements of the border in front, for each dimension.
        after: Elements behind.
        mode: What a border holds: ``"CONSTANT"``, ``"EDGE"``, ``"REFLECT"`` or ``"WRAP"``.
        fill: One element of the tensor's type, for constant borders.

    Raises:
        OperandError: The element does not fit, or there is none to be repeated.
    """
    shape = [s + b + a for s, b, a in zip(x.shape, before, after, strict=True)]
    y = k.empty(shape, x.dtype)
    if min(*before, *after, 0) < 0:  # cropped first, so that borders repeat what is left
        starts = [max(0, -b) for b in before]
        ends = [s - max(0, -a) for s, a in zip(x.shape, after, strict=True)]
        x = slice_box(k, x, starts, [max(0, end) for end in ends], range(x.ndim), [1] * x.ndim)
        # Where more is cut off than there is, the border on the other side is cut, too.
        before = [min(max(0, b), n) for b, n in zip(before, shape, strict=True)]
        after = [n - s - b for n, s, b in zip(shape, x.shape, before, strict=True)]
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


def slice_box(
    k: Kit,
    x: Operand,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    strides: Sequence[int],
) -> Operand:
    """Ranges of a tensor along some axes; the tensor itself if that is all of it.

    Args:
        k: Records it.
        x: The tensor.
        starts: As ONNX's Slice has them, for each of the axes.
        ends: Likewise.
        axes: The axes.
        strides: From one element to the next along each, of either sign.
    """
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

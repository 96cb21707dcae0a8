"""Operators that rearrange elements: views where they can be, one strided copy where not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from partita.errors import OperandError
from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.axes import (
    axis_of,
    copied_if_0,
    distinct_axes,
    rest_of_reshape,
)
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.broadcasting import broadcast, is_repeated_to, repeating_strides
from partita.lowering.geometry.slices import taken
from partita.lowering.shapes.symbolic_size import found_equal
from partita_cpu.kernels.movement.strided_copy import MOVABLE, copy_box
from partita_cpu.kernels.operator_table import INDICES, INT64, kernel
from partita_cpu.nhwc.transpose import emit_transpose


def transposed(b: Builder, x: Operand, perm: Sequence[int]) -> Operand:
    """`x` with its dimensions in the order `perm`: a view if that moves nothing, else a copy.

    Args:
        b: The program's builder.
        x: The tensor.
        perm: For each dimension of the result the one of `x`, counted from 0.
    """
    shape = [x.shape[axis] for axis in perm]
    # Only of two that pass one another: sizes of the rest, such as a batch, are not decided by.
    passing = ((one, other) for one, other in itertools.combinations(perm, 2) if one > other)
    if all(any(found_equal(x.shape[axis], 1) for axis in pair) for pair in passing):
        return b.view(x, shape)
    turned = emit_transpose(b, x, perm)
    if turned is not None:
        return turned
    y = b.empty(shape, x.dtype)
    steps = strides_of(x.shape)
    copy_box(b, Box(x, [steps[axis] for axis in perm]), Box(y, strides_of(shape)), shape)
    return y


def expanded(b: Builder, x: Operand, shape: Sequence[int]) -> Operand:
    """`x` repeated along its dimensions of size 1, and new leading ones, to fill `shape`.

    Args:
        b: The program's builder.
        x: Of at most as many dimensions as `shape`.
        shape: The sizes to fill.

    Returns:
        A view if nothing is repeated, else a copy.

    Raises:
        OperandError: It has other dimensions, too.
    """
    dims = (1,) * (len(shape) - x.ndim) + x.shape
    if len(dims) != len(shape) or not all(map(is_repeated_to, dims, shape)):
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}): a tensor of shape {list(x.shape)} "
            f"does not broadcast to {list(shape)}."
        )
    if found_equal(x.size, math.prod(shape)):
        return b.view(x, shape)
    y = b.empty(shape, x.dtype)
    steps = repeating_strides(x.shape, strides_of(x.shape), shape)
    copy_box(b, Box(x, steps), Box(y, strides_of(shape)), shape)
    return y


def ints(b: Builder, x: Operand) -> list[int]:
    """The elements of a shape, axes or pads input as Python integers, or sizes.

    Args:
        b: The program's builder.
        x: An operand whose elements are known by now: a constant, or computed from shapes.
    """
    found: list[int] = b.value(x).reshape(-1).tolist()
    return found


def axes_of(b: Builder, node: Node, axes: Operand | None, rank: int) -> list[int] | None:
    """The `axes` input or attribute, counted from 0, each once; `None` if it is absent."""
    given = node.attrs.get("axes") if axes is None else ints(b, axes)
    return None if given is None else distinct_axes(node, given, rank)


@kernel("Transpose", dtypes=MOVABLE)
def transpose(b: Builder, node: Node, x: Operand) -> Operand:
    """Any permutation; reversed dimensions by default."""
    return transposed(b, x, node.attrs.get("perm", range(x.ndim - 1, -1, -1)))


@kernel("Reshape", dtypes={0: MOVABLE, 1: INT64})
def reshape(b: Builder, node: Node, x: Operand, shape: Operand | None = None) -> Operand:
    """A view; 0 keeps a dimension (unless `allowzero`), -1 takes what is left."""
    dims = node.attrs["shape"] if shape is None else ints(b, shape)
    dims = list(dims)
    if not node.attrs.get("allowzero", 0):
        if len(dims) > x.ndim and 0 in dims[x.ndim :]:
            raise OperandError(
                f"Operation '{node.name}' (Reshape) copies a dimension that its input of shape "
                f"{list(x.shape)} does not have: shape {dims}."
            )
        dims = [copied_if_0(dim, x.shape, axis) for axis, dim in enumerate(dims)]
    if -1 in dims:
        rest = rest_of_reshape(dims, x.shape)
        dims[dims.index(-1)] = 0 if rest is None else rest
    return b.view(x, dims)


@kernel("Flatten", dtypes=MOVABLE)
def flatten(b: Builder, node: Node, x: Operand) -> Operand:
    """A matrix: the dimensions before `axis` by those from it on."""
    axis = node.attrs.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return b.view(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@kernel("Squeeze", dtypes={0: MOVABLE, 1: INT64})
def squeeze(b: Builder, node: Node, x: Operand, axes: Operand | None = None) -> Operand:
    """Without the given dimensions of size 1, or all of them."""
    given = node.attrs.get("axes") if axes is None else ints(b, axes)
    if given is None:
        return b.view(x, [n for n in x.shape if n != 1])
    drop = {axis_of(node, axis, x.ndim) for axis in given}
    return b.view(x, [n for axis, n in enumerate(x.shape) if axis not in drop])


@kernel("Unsqueeze", dtypes={0: MOVABLE, 1: INT64})
def unsqueeze(b: Builder, node: Node, x: Operand, axes: Operand | None = None) -> Operand:
    """With dimensions of size 1 at the given places of the result."""
    given = node.attrs["axes"] if axes is None else ints(b, axes)
    rank = x.ndim + len(given)
    new = distinct_axes(node, given, rank)
    rest = iter(x.shape)
    return b.view(x, [1 if axis in new else next(rest) for axis in range(rank)])


@kernel("Concat", dtypes=MOVABLE)
def concat(b: Builder, node: Node, *parts: Operand) -> Operand:
    """Each input is copied to its place."""
    rank = max(x.ndim for x in parts)
    # Files of old exporters hold empty 1-D tensors that stand for "nothing yet".
    whole = [x for x in parts if x.ndim == rank or x.shape != (0,)]
    axis = axis_of(node, node.attrs.get("axis", 1), rank)
    if len(whole) == 1:
        return b.view(whole[0], whole[0].shape)
    shape = list(whole[0].shape)
    shape[axis] = sum(x.shape[axis] for x in whole)
    y = b.empty(shape, whole[0].dtype)
    steps = strides_of(shape)
    start = 0
    for x in whole:
        copy_box(b, Box(x, strides_of(x.shape)), Box(y, steps, start * steps[axis]), x.shape)
        start += x.shape[axis]
    return y


@kernel("Split", dtypes={0: MOVABLE, 1: INDICES})
def split(b: Builder, node: Node, x: Operand, sizes: Operand | None = None) -> tuple[Operand, ...]:
    """Pieces of given sizes, or as equal as possible with a shorter last one."""
    axis = axis_of(node, node.attrs.get("axis", 0), x.ndim)
    length = x.shape[axis]
    lengths = node.attrs.get("split") if sizes is None else ints(b, sizes)
    if not lengths:
        count = node.attrs.get("num_outputs", len(node.outputs))
        each = -(-length // count)
        lengths = [max(0, min(each, length - k * each)) for k in range(count)]
    if sum(lengths) != length:
        raise OperandError(
            f"Operation '{node.name}' (Split) splits a dimension of size {length} into "
            f"pieces of {lengths}."
        )
    steps = strides_of(x.shape)
    pieces = []
    start = 0
    for size in lengths:
        shape = [*x.shape[:axis], size, *x.shape[axis + 1 :]]
        if size == length:
            piece = b.view(x, shape)
        else:
            piece = b.empty(shape, x.dtype)
            copy_box(b, Box(x, steps, start * steps[axis]), Box(piece, strides_of(shape)), shape)
        pieces.append(piece)
        start += size
    return tuple(pieces)


@kernel("Slice", dtypes={0: MOVABLE, 1: INDICES, 2: INDICES, 3: INDICES, 4: INDICES})
def slice_(
    b: Builder,
    node: Node,
    x: Operand,
    starts: Operand | None = None,
    ends: Operand | None = None,
    axes: Operand | None = None,
    steps: Operand | None = None,
) -> Operand:
    """Ranges along some axes, with any step."""
    first = node.attrs["starts"] if starts is None else ints(b, starts)
    last = node.attrs["ends"] if ends is None else ints(b, ends)
    along = axes_of(b, node, axes, x.ndim)
    along = list(range(len(first))) if along is None else along
    by = [1] * len(first) if steps is None else ints(b, steps)
    begins, moves, shape = [0] * x.ndim, strides_of(x.shape), list(x.shape)
    strides = list(moves)
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        begins[axis], shape[axis] = taken(x.shape[axis], start, end, step)
        moves[axis] = step * strides[axis]
    if all(map(found_equal, shape, x.shape)) and moves == strides:
        return b.view(x, x.shape)
    y = b.empty(shape, x.dtype)
    offset = sum(begin * s for begin, s in zip(begins, strides, strict=True))
    copy_box(b, Box(x, moves, offset), Box(y, strides_of(shape)), shape)
    return y


@kernel("Expand", dtypes={0: MOVABLE, 1: INT64})
def expand(b: Builder, node: Node, x: Operand, shape: Operand) -> Operand:
    """Broadcast with a shape; a dimension of the shape may be 1 where the input's is larger."""
    return expanded(b, x, broadcast(x.shape, tuple(ints(b, shape))))


@kernel("Tile", dtypes={0: MOVABLE, 1: INT64}, since=6)
def tile(b: Builder, node: Node, x: Operand, repeats: Operand) -> Operand:
    """Whole copies of the tensor along each dimension."""
    times = ints(b, repeats)
    y = b.empty([n * t for n, t in zip(x.shape, times, strict=True)], x.dtype)
    shape = [d for n, t in zip(x.shape, times, strict=True) for d in (t, n)]
    moves = [s for step in strides_of(x.shape) for s in (0, step)]
    copy_box(b, Box(x, moves), Box(y, strides_of(shape)), shape)
    return y


@kernel("DepthToSpace", dtypes=MOVABLE)
def depth_to_space(b: Builder, node: Node, x: Operand) -> Operand:
    """Blocks of channels become squares of pixels, in either order of the channel index."""
    n, c, h, w = x.shape
    size = node.attrs["blocksize"]
    depth = c // (size * size)
    if node.attrs.get("mode", "DCR") == "DCR":
        y = transposed(b, b.view(x, (n, size, size, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = transposed(b, b.view(x, (n, depth, size, size, h, w)), (0, 1, 4, 2, 5, 3))
    return b.view(y, (n, depth, h * size, w * size))


@kernel("SpaceToDepth", dtypes=MOVABLE)
def space_to_depth(b: Builder, node: Node, x: Operand) -> Operand:
    """Squares of pixels become channels, in either order of the channel index."""
    n, c, h, w = x.shape
    size = node.attrs["blocksize"]
    cut = b.view(x, (n, c, h // size, size, w // size, size))
    perm = (0, 3, 5, 1, 2, 4) if node.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = transposed(b, cut, perm)
    return b.view(y, (n, c * size * size, h // size, w // size))

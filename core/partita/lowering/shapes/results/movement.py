"""Results of operators that move, pick and repeat elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from partita.lowering.geometry.axes import axis_of, copied_if_0, rest_of_reshape
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.geometry.slices import taken
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.results.rule import ResultRules, any_unknown, elements_of

MOVEMENT_RESULTS = ResultRules()


@MOVEMENT_RESULTS.shape("Transpose", "partita::Transpose")
def _transpose(node: Node, operands: Any) -> Sequence[int]:
    shape = operands[0].shape
    return [shape[axis] for axis in node.attrs.get("perm", range(len(shape) - 1, -1, -1))]


@MOVEMENT_RESULTS.shape("partita.nhwc::ToChannelsLast")
def _channels_last(node: Node, operands: Any) -> Sequence[int]:
    batch, channels, height, width = operands[0].shape
    return batch, height, width, node.attrs.get("channels", channels)


@MOVEMENT_RESULTS.shape("partita.nhwc::ToChannelsFirst")
def _channels_first(node: Node, operands: Any) -> Sequence[int]:
    batch, height, width, channels = operands[0].shape
    return batch, channels, height, width


@MOVEMENT_RESULTS.shape("Concat")
def _concat(node: Node, operands: Any) -> Sequence[int] | None:
    first = operands[0].shape
    axis = axis_of(node, node.attrs["axis"], len(first))
    if any(len(operand.shape) != len(first) for operand in operands):
        return None
    size = sum(operand.shape[axis] for operand in operands)
    return [size if place == axis else n for place, n in enumerate(first)]


@MOVEMENT_RESULTS.shape("Reshape")
def _reshape(node: Node, operands: Any) -> Sequence[int] | None:
    x, dims = operands[0], elements_of(operands[1])
    if dims is None:
        return None
    if not node.attrs.get("allowzero", 0):
        dims = [copied_if_0(dim, x.shape, axis) for axis, dim in enumerate(dims)]
    if -1 in dims:
        rest = rest_of_reshape(dims, x.shape)
        if rest is None:
            return None
        dims[dims.index(-1)] = rest
    return dims if math.prod(dims) == x.size and all(n >= 0 for n in dims) else None


@MOVEMENT_RESULTS.shape("Unsqueeze")
def _unsqueeze(node: Node, operands: Any) -> Sequence[int] | None:
    axes = node.attrs.get("axes") if node.version < 13 else elements_of(operands[1])
    if axes is None:
        return None
    rank = operands[0].ndim + len(axes)
    new = {axis_of(node, axis, rank) for axis in axes}
    if len(new) < len(axes):
        return None
    sizes = iter(operands[0].shape)
    return [1 if axis in new else next(sizes) for axis in range(rank)]


@MOVEMENT_RESULTS.shape("Squeeze")
def _squeeze(node: Node, operands: Any) -> Sequence[int] | None:
    shape, given = operands[0].shape, operands[1] if len(operands) > 1 else None
    if any_unknown(given):
        return None
    axes = node.attrs.get("axes") if node.version < 13 else elements_of(given)
    if axes is None:
        return [size for size in shape if size != 1]
    gone = {axis_of(node, axis, len(shape)) for axis in axes}
    return [size for axis, size in enumerate(shape) if axis not in gone]


@MOVEMENT_RESULTS.shape("Gather")
def _gather(node: Node, operands: Any) -> Sequence[int]:
    x, index = operands[0].shape, operands[1].shape
    axis = axis_of(node, node.attrs.get("axis", 0), len(x))
    return (*x[:axis], *index, *x[axis + 1 :])


@MOVEMENT_RESULTS.shape("Slice")
def _slice(node: Node, operands: Any) -> Sequence[int] | None:
    if any_unknown(*operands[1:]):
        return None
    if node.version < 10:
        starts, ends, axes = (node.attrs.get(name) for name in ("starts", "ends", "axes"))
        steps: Sequence[int] | None = None
    else:
        starts, ends, axes, steps = (elements_of(x) for x in [*operands[1:], None, None][:4])
    if starts is None or ends is None:
        return None
    shape = list(operands[0].shape)
    axes, steps = axes or range(len(starts)), steps or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        _, shape[axis] = taken(operands[0].shape[axis], start, end, step)
    return shape


@MOVEMENT_RESULTS.shape("Expand")
def _expand(node: Node, operands: Any) -> Sequence[int] | None:
    dims = elements_of(operands[1])
    return None if dims is None else broadcast(operands[0].shape, tuple(dims))


@MOVEMENT_RESULTS.shape("Flatten")
def _flatten(node: Node, operands: Any) -> Sequence[int] | None:
    shape, axis = operands[0].shape, node.attrs.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        return None
    axis = axis + len(shape) if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


@MOVEMENT_RESULTS.shape("Pad")
def _pad(node: Node, operands: Any) -> Sequence[int] | None:
    pads, axes = node.attrs.get("pads"), None
    if node.version >= 11:
        pads = elements_of(operands[1])
        axes = elements_of(operands[3]) if len(operands) > 3 and operands[3] is not None else None
        if pads is None or (len(operands) > 3 and operands[3] is not None and axes is None):
            return None
    shape = list(operands[0].shape)
    axes = list(range(len(shape))) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes):
        return None
    for axis, low, high in zip(axes, pads, pads[len(axes) :], strict=False):
        shape[axis] = shape[axis] + low + high
        if shape[axis] < 0:
            return None
    return shape


@MOVEMENT_RESULTS.shape("Tile")
def _tile(node: Node, operands: Any) -> Sequence[int] | None:
    times = elements_of(operands[1])
    if times is None or node.version < 6:
        return None
    return [n * count for n, count in zip(operands[0].shape, times, strict=True)]


@MOVEMENT_RESULTS.shape("GatherElements")
def _gather_elements(node: Node, operands: Sequence[Operand]) -> Sequence[int]:
    return operands[1].shape


@MOVEMENT_RESULTS.shape("GatherND")
def _gather_nd(node: Node, operands: Any) -> Sequence[int] | None:
    x, index = operands[0].shape, operands[1].shape
    depth = node.attrs.get("batch_dims", 0) + index[-1]
    return (*index[:-1], *x[depth:]) if type(depth) is int else None


@MOVEMENT_RESULTS.outputs("Split")
def _split(node: Node, operands: Any) -> Sequence[Operand] | None:
    x, count = operands[0], len(node.outputs)
    axis = axis_of(node, node.attrs.get("axis", 0), x.ndim)
    length = x.shape[axis]
    given = operands[1] if len(operands) > 1 else None
    sizes = node.attrs.get("split") if given is None else elements_of(given)
    if given is not None and sizes is None:
        return None
    if not sizes:
        each = -(-length // count)
        sizes = [max(0, min(each, length - k * each)) for k in range(count)]
    if len(sizes) != count:
        return None
    shapes = ((*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes)
    return [Operand(shape, x.dtype) for shape in shapes]

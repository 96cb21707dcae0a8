"""Layers that exchange blocks of neighbours for channels or batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates
from partita.frontends.operation_site import FULL

if TYPE_CHECKING:
    import onnx_ir as ir

_MOST_PARTS = 1024
"""Elements of a window that become slices of an image."""


def blocks_from_depth(at: Site, block: int, blocks_first: bool) -> ir.Value:
    """Channels laid out as blocks of any number of axes; these come before or behind channels."""
    x, count = at.inputs[0], at.rank(0) - 2
    wholes = [at.size(x, axis) for axis in range(count + 2)]
    depth = at.emit("Div", wholes[1], at.const([block**count], np.int64))
    sides: list[ir.Value | int] = [block] * count
    parts = [*sides, depth] if blocks_first else [depth, *sides]
    parted = at.emit("Reshape", x, _joined(at, [wholes[0], *parts, *wholes[2:]]))
    first, channel = (1, count + 1) if blocks_first else (2, 1)
    pairs = [(count + 2 + axis, first + axis) for axis in range(count)]
    order = [0, channel, *(place for pair in pairs for place in pair)]
    shape = [wholes[0], depth, *(_times(at, size, block) for size in wholes[2:])]
    return at.emit("Reshape", at.emit("Transpose", parted, perm=order), _joined(at, shape))


def blocks_to_depth(at: Site, block: int, blocks_first: bool) -> ir.Value:
    """Blocks of any number of axes laid out as channels, before or behind those there are."""
    x, count = at.inputs[0], at.rank(0) - 2
    wholes = [at.size(x, axis) for axis in range(count + 2)]
    outer = [at.emit("Div", size, at.const([block], np.int64)) for size in wholes[2:]]
    pairs: list[ir.Value | int] = [part for size in outer for part in (size, block)]
    parted = at.emit("Reshape", x, _joined(at, [*wholes[:2], *pairs]))
    blocks, rest = [3 + 2 * axis for axis in range(count)], [2 + 2 * axis for axis in range(count)]
    order = [0, *blocks, 1, *rest] if blocks_first else [0, 1, *blocks, *rest]
    shape = _joined(at, [wholes[0], _times(at, wholes[1], block**count), *outer])
    return at.emit("Reshape", at.emit("Transpose", parted, perm=order), shape)


@translates("BatchToSpace")
def batch_to_space(at: Site) -> ir.Value:
    """Parts of batches laid out as blocks, of which edges are cut off."""
    x, rank = at.inputs[0], at.rank(0)
    blocks, begin, end = (at.axes(index) for index in (1, 2, 3))
    wholes = [at.size(x, axis) for axis in range(rank)]
    batch = at.emit("Div", wholes[0], at.const([int(np.prod(blocks))], np.int64))
    parted = at.emit("Reshape", x, _joined(at, [*blocks[1:], batch, *wholes[1:]]))
    pairs = [(rank + axis, axis) for axis in range(rank - 1)]
    order = [rank - 1, *(place for pair in pairs for place in pair)]
    sizes = zip(wholes[1:], blocks[1:], strict=True)
    shape = [batch, *(_times(at, size, block) for size, block in sizes)]
    whole = at.emit("Reshape", at.emit("Transpose", parted, perm=order), _joined(at, shape))
    ends = at.const([-cut if cut else FULL for cut in end], np.int64)
    return at.emit("Slice", whole, at.const(begin, np.int64), ends)


@translates("SpaceToBatch")
def space_to_batch(at: Site) -> ir.Value:
    """Zeros added at edges, and blocks laid out as batches."""
    rank = at.rank(0)
    blocks, begin, end = (at.axes(index) for index in (1, 2, 3))
    x = at.emit("Pad", at.inputs[0], at.const([*begin, *end], np.int64))
    batch, *wholes = (at.size(x, axis) for axis in range(rank))
    sizes = zip(wholes, blocks[1:], strict=True)
    outer = [at.emit("Div", size, at.const([block], np.int64)) for size, block in sizes]
    pairs = [part for pair in zip(outer, blocks[1:], strict=True) for part in pair]
    parted = at.emit("Reshape", x, _joined(at, [batch, *pairs]))
    order = [*(2 + 2 * axis for axis in range(rank - 1)), 0]
    order += [1 + 2 * axis for axis in range(rank - 1)]
    shape = _joined(at, [_times(at, batch, int(np.prod(blocks))), *outer])
    return at.emit("Reshape", at.emit("Transpose", parted, perm=order), shape)


def _joined(at: Site, sizes: Sequence[ir.Value | int]) -> ir.Value:
    """A shape of sizes, of which some are known."""
    rows = [at.const([size], np.int64) if isinstance(size, int) else size for size in sizes]
    return at.emit("Concat", *rows, axis=0)


def _times(at: Site, size: ir.Value, number: int) -> ir.Value:
    return at.emit("Mul", size, at.const([number], np.int64))


@translates("ExtractImagePatches")
def patches(at: Site) -> ir.Value:
    """What windows see at each place, as channels: those of a window's elements one after another.

    Not as a convolution by ones and zeros, in which an infinity would spoil its neighbours.
    """
    sizes, strides, rates = (at.ints(key) for key in ("sizes", "strides", "rates"))
    auto = at.one_of("auto_pad", "valid", ("valid", "same_upper", "same_lower"))
    if len(at.dims(0)) != 4 or min(at.dims(0)[2:]) < 0:
        raise at.error("the height and width of the image must be known")
    if not (len(sizes) == len(strides) == len(rates) == 2 and min(*sizes, *strides, *rates) > 0):
        raise at.error("sizes, strides and rates are two numbers above zero each")
    if sizes[0] * sizes[1] > _MOST_PARTS:
        raise at.error(f"windows of more than {_MOST_PARTS} elements are not read")
    before, after, counts = [], [], []
    for place, size in enumerate(at.dims(0)[2:]):
        reach = (sizes[place] - 1) * rates[place] + 1
        count = (size - reach) // strides[place] + 1
        missing = 0
        if auto != "valid":
            count = -(-size // strides[place])
            missing = max((count - 1) * strides[place] + reach - size, 0)
        counts.append(max(count, 0))
        before.append((missing + (auto == "same_lower")) // 2)
        after.append(missing - before[-1])
    padded = at.emit("Pad", at.inputs[0], at.const([0, 0, *before, 0, 0, *after], np.int64))
    axes, steps = at.const([2, 3], np.int64), at.const(strides, np.int64)
    parts = []
    for row, column in np.ndindex(*sizes):
        starts = [row * rates[0], column * rates[1]]
        ends = [
            start + count * stride
            for start, count, stride in zip(starts, counts, strides, strict=True)
        ]
        bounds = [at.const(numbers, np.int64) for numbers in (starts, ends)]
        parts.append(at.emit("Slice", padded, *bounds, axes, steps))
    return at.emit("Concat", *parts, axis=1)


@translates("ReorgYolo")
def reorganized(at: Site) -> ir.Value:
    """Blocks as channels, as darknet's layer of that name counts.

    It takes what it reads for an image of fewer channels and more places.
    """
    stride, dims = at.integer("stride"), at.dims(0)
    if len(dims) != 4 or min(dims[1:]) < 0 or stride < 1:
        raise at.error("channels, height and width must be known, and the stride be above zero")
    channels, height, width = dims[1:]
    block = stride * stride
    if channels % block or height % stride or width % stride:
        raise at.error(f"{channels} x {height} x {width} is not a multiple of stride {stride}")
    cut = [-1, channels // block, height, stride, width, stride]
    value = at.emit("Reshape", at.inputs[0], at.const(cut, np.int64))
    value = at.emit("Transpose", value, perm=[0, 3, 5, 1, 2, 4])
    shape = [-1, channels * block, height // stride, width // stride]
    return at.emit("Reshape", value, at.const(shape, np.int64))

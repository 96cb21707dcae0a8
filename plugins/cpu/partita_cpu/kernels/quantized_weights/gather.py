"""GatherBlockQuantized of onnxruntime: slices of a tensor of few bits, made floats by block."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.half import float32_of, narrow
from partita_cpu.kernels.operator_table import F32, HALVES, INDICES, kernel

_NIBBLES = frozenset(map(np.dtype, (ml_dtypes.int4, ml_dtypes.uint4)))
_BYTE = np.dtype(np.uint8)
_TAKEN = F32 | HALVES
_BITS = (4, 8)


class GatherSizes(NamedTuple):
    """Sizes of rows that are looked up.

    Attributes:
        rows: How many there are.
        lines: Of a row: runs that are quantized for themselves.
        length: Elements of a line.
        size: Elements of a block.
        bits: Of an element.
        zero: The zero point where there are none.
    """

    rows: int
    lines: int
    length: int
    size: int
    bits: int
    zero: int


@loop
def gather_blocks(
    data: Any,
    index: Any,
    scales: Any,
    packed_zeros: Any,
    zeros: Any,
    y: Any,
    sizes: GatherSizes,
    tid: int,
    nt: int,
) -> None:
    """``y[j] = (data[index[j]] - zeros) * scales``; zeros where there is no such row.

    Args:
        data: Bytes, of four bits the first in the lower half; lines begin with whole bytes.
        index: Of rows; negative ones count from the end.
        scales: float32, one for each block of each line.
        packed_zeros: As many zero points, packed like data; or empty.
        zeros: As many zero points in float32, or empty.
        y: float32, flat.
        sizes: Of data.
        tid: This thread.
        nt: All threads.
    """
    lines, length, size = sizes.lines, sizes.length, sizes.size
    blocks = -(-length // size)
    bits = sizes.bits
    line_bytes, zero_bytes = -(-length * bits // 8), -(-blocks * bits // 8)
    count = index.size * lines
    for number in range(count * tid // nt, count * (tid + 1) // nt):
        row = np.int64(index[number // lines])
        row += sizes.rows if row < 0 else 0
        target = y[number * length : (number + 1) * length]
        if row < 0 or row >= sizes.rows:
            for i in range(length):
                target[i] = np.float32(0)
            continue
        line = row * lines + number % lines
        source = data[line * line_bytes : (line + 1) * line_bytes]
        for block in range(blocks):
            scale, zero = scales[line * blocks + block], np.float32(sizes.zero)
            if zeros.size:
                zero = zeros[line * blocks + block]
            elif packed_zeros.size:
                zero = np.float32(_level(packed_zeros, int(line * zero_bytes), block, bits))
            first = block * size
            for i in range(first, min(first + size, length)):
                target[i] = (np.float32(_level(source, 0, i, bits)) - zero) * scale


@loop(inline=True)
def _level(data: Any, first: int, i: int, bits: int) -> Any:
    """An element of a line that begins at a byte."""
    if bits == 8:
        return np.int32(data[first + i])
    return np.int32(data[first + i // 2]) >> (i % 2 * 4) & 15


def _check(node: Node) -> Reason | None:
    attrs, data = node.attrs, node.inputs[0]
    wrong = ReasonCode.UNSUPPORTED_ATTRIBUTE
    if attrs.get("bits", 4) not in _BITS:
        return Reason(wrong, f"bits is {attrs['bits']}; takes 4 and 8")
    if attrs.get("block_size", 128) < 16:
        return Reason(wrong, f"block_size is {attrs['block_size']}; takes 16 and more")
    if data is not None and data.dtype == _BYTE and attrs.get("gather_axis", 0) != 0:
        return Reason(wrong, f"gather_axis is {attrs['gather_axis']} for data of uint8; takes 0")
    return None


@kernel(
    "GatherBlockQuantized",
    domain="com.microsoft",
    dtypes={0: _NIBBLES | {_BYTE}, 1: INDICES, 2: _TAKEN, 3: _NIBBLES | {_BYTE} | _TAKEN},
    check=_check,
)
def gather_block_quantized(
    b: Builder,
    node: Node,
    data: Operand,
    index: Operand,
    scales: Operand,
    zeros: Operand | None = None,
) -> Operand:
    """Slices along one axis; the indices' shape takes the axis' place."""
    bits, size = node.attrs.get("bits", 4), node.attrs.get("block_size", 128)
    packed = data.dtype == _BYTE
    shape = list(data.shape)
    if packed:
        shape[-1] *= 8 // bits
    axis = axis_of(node, node.attrs.get("gather_axis", 0), len(shape))
    blocked = axis_of(node, node.attrs.get("quantize_axis", 1), len(shape))
    _check_shapes(node, shape, blocked, scales, zeros)
    y = b.empty((*shape[:axis], *index.shape, *shape[axis + 1 :]), np.float32)
    factors = float32_of(b, scales)
    if not y.size:
        pass
    elif packed and blocked == len(shape) - 1 != axis:
        points = (b.constant(np.zeros(0, np.uint8)), b.constant(np.zeros(0, np.float32)))
        if zeros is not None and zeros.dtype == _BYTE:
            points = b.flat(zeros), points[1]
        elif zeros is not None:
            points = points[0], b.flat(float32_of(b, zeros))
        lines = math.prod(shape[1:-1])
        sizes = GatherSizes(shape[0], lines, shape[-1], size, bits, 1 << (bits - 1))
        b.call(
            gather_blocks, b.flat(data), b.flat(index), b.flat(factors), *points, b.flat(y), sizes
        )
    else:
        place = axis, blocked, size, bits
        b.call_numpy(_gather_any, data, index, factors, zeros, y, place)
    return y if scales.dtype == np.float32 else narrow(b, y, scales.dtype)


def _check_shapes(
    node: Node, shape: list[int], blocked: int, scales: Operand, zeros: Operand | None
) -> None:
    """Refuses scales and zero points that do not fit elements of this shape.

    Raises:
        OperandError: They do not.
    """
    size, bits = node.attrs.get("block_size", 128), node.attrs.get("bits", 4)
    blocks = (*shape[:blocked], -(-shape[blocked] // size), *shape[blocked + 1 :])
    points = blocks
    if zeros is not None and zeros.dtype == _BYTE:
        points = (*blocks[:-1], -(-blocks[-1] * bits // 8))
    if scales.shape != blocks or (zeros is not None and zeros.shape != points):
        found = [list(x.shape) for x in (scales, zeros) if x is not None]
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has scales and zero points of shapes "
            f"{found}; elements of shape {shape} need {list(blocks)} and {list(points)}."
        )


def _gather_any(
    data: Array,
    index: Array,
    scales: Array,
    zeros: Array | None,
    y: Array,
    place: tuple[int, int, int, int],
) -> None:
    """Gathers along any axis, of any types.

    Args:
        data: Quantized elements, as they are packed.
        index: Which slices.
        scales: Of the blocks.
        zeros: Zero points of the blocks; None for the middle of the levels, or 0.
        y: Gets the elements.
        place: The axis of the slices and that of the blocks, elements of a block, bits of an
            element.
    """
    axis, blocked, size, bits = place
    levels = _levels(data, bits)
    count = levels.shape[axis]
    there = (index >= -count) & (index < count)
    rows = np.where(there, index, 0) % count
    points: Array = np.array(1 << (bits - 1) if data.dtype == _BYTE else 0)
    if zeros is not None:
        points = _levels(zeros, bits)[tuple(map(slice, scales.shape))]
        points = _of_elements(points, levels.shape, blocked, size)
        points = np.take(points, rows, axis)
    factors = np.take(_of_elements(scales, levels.shape, blocked, size), rows, axis)
    y[...] = (np.take(levels, rows, axis).astype(np.float32) - points) * factors
    y[(slice(None),) * axis + (~there,)] = 0


def _levels(data: Array, bits: int) -> Array:
    """Numbers of a tensor, those of four bits in bytes unpacked along the last axis."""
    if data.dtype != _BYTE or bits == 8:
        return data if data.dtype == _BYTE else data.astype(np.float32)
    both = np.stack([data & 15, data >> 4], axis=-1)
    return both.reshape(*data.shape[:-1], -1)


def _of_elements(numbers: Array, shape: tuple[int, ...], axis: int, size: int) -> Array:
    """Numbers of blocks, one for each element."""
    return np.take(numbers, np.arange(shape[axis]) // size, axis).astype(np.float32)

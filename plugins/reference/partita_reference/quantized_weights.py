"""Operators of onnxruntime whose weights are numbers of few bits, in blocks with a scale each.

Written from the operators' documentation (ContribOperators.md of onnxruntime), in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from partita.lowering.corrected_reference.axes import axis_of

Array = np.ndarray[Any, Any]


def unpacked(x: Array, bits: int) -> Array:
    """The numbers in bytes, the lowest bits first; the last axis grows."""
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * bits
    numbers = (x[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.reshape(*x.shape[:-1], x.shape[-1] * each)


class MatMulNBits(OpRun):
    """A product with a matrix of K rows and N columns, whose columns are packed in blocks."""

    op_domain = "com.microsoft"
    op_schema = None

    def _run(
        self,
        a: Array,
        packed: Array,
        scales: Array,
        zeros: Array | None = None,
        indices: Array | None = None,
        bias: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array]:
        bits, block = attributes.get("bits", 4), attributes["block_size"]
        columns, rows = attributes["N"], attributes["K"]
        blocks = -(-rows // block)
        numbers = unpacked(packed.reshape(columns, blocks, -1), bits).astype(np.float64)
        centers: Array | float = float(1 << (bits - 1))
        if zeros is not None and zeros.dtype == np.uint8:
            centers = unpacked(zeros.reshape(columns, -1), bits)[:, :blocks, None]
        elif zeros is not None:
            centers = zeros.astype(np.float64).reshape(columns, blocks, 1)
        factors = scales.astype(np.float64).reshape(columns, blocks)
        points = np.broadcast_to(centers, (columns, blocks, 1))[:, :, 0]
        of_rows = np.arange(rows) // block if indices is None else indices[:rows]
        levels = numbers.reshape(columns, -1)[:, :rows]
        wide = (levels - points[:, of_rows]) * factors[:, of_rows]
        y = a.astype(np.float64) @ wide.T
        return ((y if bias is None else y + bias.astype(np.float64)).astype(a.dtype),)


class GatherBlockQuantized(OpRun):
    """Rows of a table whose numbers are packed in blocks; an index beyond it gives zeros."""

    op_domain = "com.microsoft"
    op_schema = None

    def _run(
        self,
        data: Array,
        indices: Array,
        scales: Array,
        zeros: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array]:
        bits, block = attributes.get("bits", 4), attributes.get("block_size", 128)
        packed = data.dtype == np.uint8
        numbers = unpacked(data, bits) if packed else data.astype(np.int8)
        axis = axis_of(numbers.ndim, attributes.get("quantize_axis", 1))
        centers: Array = np.array(float(1 << (bits - 1) if packed else 0))
        if zeros is not None:
            halves = packed and zeros.dtype == np.uint8
            given = unpacked(zeros, bits) if halves else zeros.astype(np.float64)
            centers = _per_number(given, block, axis, numbers.shape[axis])
        factors = _per_number(scales.astype(np.float64), block, axis, numbers.shape[axis])
        table = (numbers - centers.astype(np.float64)) * factors
        along = axis_of(table.ndim, attributes.get("gather_axis", 0))
        size = table.shape[along]
        places = np.where(indices < 0, indices + size, indices)
        exists = (places >= 0) & (places < size)
        y = np.take(table, np.where(exists, places, 0), axis=along)
        shape = (1,) * along + exists.shape + (1,) * (table.ndim - along - 1)
        return (np.where(exists.reshape(shape), y, 0).astype(scales.dtype),)


def _per_number(x: Array, block: int, axis: int, size: int) -> Array:
    """What is for a block, for each of its numbers."""
    return np.take(np.repeat(x, block, axis=axis), np.arange(size), axis=axis)


QUANTIZED_WEIGHTS: list[type[OpRun]] = [GatherBlockQuantized, MatMulNBits]

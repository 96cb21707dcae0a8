"""onnxruntime's LSTM on 8-bit weights: DynamicQuantizeLSTM."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.gate_activations import known_activations
from partita_cpu.gemm.tile_kernels import byte_kernels
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.int8.byte_tiles import SHIFT
from partita_cpu.kernels.int8.integer_product import BYTES
from partita_cpu.kernels.int8.product import ByteOperands, emit_byte_product, level_of, signed
from partita_cpu.kernels.int8.quantization import emit_dynamic_quantize
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD, byte_panels
from partita_cpu.kernels.operator_table import F32, kernel, with_inputs
from partita_cpu.kernels.recurrent.cells import lstm_bytes_loop
from partita_cpu.kernels.recurrent.recurrent import (
    LENGTHS,
    Cells,
    cells,
    emit_lstm,
    joined_bias,
    lstm_memory,
    packed,
)


class RowsOfDirection(NamedTuple):
    """Products of one direction, and the rows that they go to.

    Attributes:
        rows: How many.
        columns: Products of a row.
        width: Length of a row of the result.
        first: The first row of the result.
    """

    rows: int
    columns: int
    width: int
    first: int


@loop
def scale_products(
    x: Any,
    x_scale: Any,
    scales: Any,
    bias: Any,
    y: Any,
    place: RowsOfDirection,
    tid: int,
    nt: int,
) -> None:
    """int32 products of one direction as float32, with scales and bias.

    Args:
        x: (rows, columns) sums of int32, flat.
        x_scale: The scale of the input, of one element.
        scales: That of each column of the weights.
        bias: Term of each column.
        y: Output, rows of `place.width`, flat.
        place: Which rows and columns of y are written.
        tid: This thread.
        nt: All threads; they share rows.
    """
    rows, columns, width, first = place
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source = x[row * columns : (row + 1) * columns]
        at = (first + row) * width
        target = y[at : at + columns]
        for i in range(target.size):
            target[i] = np.float32(source[i]) * (x_scale[0] * scales[i]) + bias[i]


def direction_panels(weights: Array) -> Array:
    """Panels of int8 of all directions, one behind the other."""
    return np.concatenate([byte_panels(signed(matrix)) for matrix in weights])


def column_totals(weights: Array) -> Array:
    """Sums of the columns of each direction, as moved to int8."""
    return np.asarray(signed(weights).sum(1, dtype=np.int32))


def _per_column(b: Builder, c: Cells, x: Operand, dtype: Any, shift: int = 0) -> Operand:
    """A parameter of each direction, or of each column, for all columns."""
    columns = 4 * c.hidden

    def spread(array: Array) -> Array:
        moved = array.reshape(c.directions, -1).astype(dtype) + np.dtype(dtype).type(shift)
        return np.ascontiguousarray(np.broadcast_to(moved, (c.directions, columns)))

    key = f"per column {columns} {shift} {np.dtype(dtype)}"
    return packed(b, x, key, spread, (c.directions, columns), dtype)


def _emit_input(
    b: Builder,
    c: Cells,
    x: Operand,
    weights: Operand,
    scales: Operand,
    zeros: Operand,
    bias: Operand,
) -> Operand:
    """The products of the quantized input, as float32 rows of whole panels.

    Args:
        b: The builder.
        c: Sizes.
        x: The input (step, batch, element).
        weights: Quantized weights of the input.
        scales: Theirs.
        zeros: Their zero points.
        bias: Terms of the gates.
    """
    out = b.empty((c.directions, c.steps * c.batch, c.width), np.float32)
    if not out.size:
        return out
    levels, x_scale, x_zero = emit_dynamic_quantize(b, x)
    rows, columns = c.steps * c.batch, 4 * c.hidden
    levels = b.view(levels, (rows, x.shape[-1]))
    for direction in range(c.directions):
        matrix, scale, zero, term = (
            _of_direction(b, c, operand, direction) for operand in (weights, scales, zeros, bias)
        )
        sums = emit_byte_product(b, ByteOperands(levels, matrix, x_zero, zero))
        tensors = (b.flat(sums), b.flat(x_scale), b.flat(scale), b.flat(term), b.flat(out))
        place = RowsOfDirection(rows, columns, c.width, direction * rows)
        b.call(scale_products, *tensors, place)
    return out


def _of_direction(b: Builder, c: Cells, x: Operand, direction: int) -> Operand:
    """What belongs to one direction: the index of the first axis."""

    def cut(array: Array) -> Array:
        return np.ascontiguousarray(array[direction])

    return packed(b, x, f"direction {direction}", cut, x.shape[1:])


class DynamicQuantizeLstmInputs(NamedTuple):
    """Inputs of DynamicQuantizeLSTM."""

    x: Operand
    w: Operand
    r: Operand
    bias: Operand | None
    lengths: Operand | None
    initial_h: Operand | None
    initial_c: Operand | None
    peepholes: Operand | None
    w_scale: Operand
    w_zero: Operand
    r_scale: Operand
    r_zero: Operand


@kernel(
    "DynamicQuantizeLSTM",
    domain="com.microsoft",
    dtypes={1: BYTES, 2: BYTES, 4: LENGTHS, **dict.fromkeys((0, 3, 5, 6, 7, 8, 10), F32)},
    check=known_activations,
)
@with_inputs(DynamicQuantizeLstmInputs)
def dynamic_quantize_lstm(
    b: Builder, node: Node, inputs: DynamicQuantizeLstmInputs
) -> tuple[Operand, ...]:
    """An LSTM whose input and states are quantized by their range, on weights of 8 bits."""
    x, w, r, bias = inputs.x, inputs.w, inputs.r, inputs.bias
    c = cells(node, x, w.shape[0], r.shape[1], (4,))
    columns = (c.directions, 4 * c.hidden)
    if bias is None:
        joined = b.constant(np.zeros(columns, np.float32))
    else:
        joined = packed(b, bias, "joined", joined_bias, columns)
    scales, zeros = (
        _per_column(b, c, inputs.w_scale, np.float32),
        _per_column(b, c, inputs.w_zero, w.dtype),
    )
    products = _emit_input(b, c, x, w, scales, zeros, joined)
    quads = -(-c.hidden // QUAD)
    size = c.directions * c.width * quads * QUAD
    panels = packed(b, r, "byte panels", direction_panels, (size,), np.int8)
    totals = packed(b, r, "byte totals", column_totals, columns, np.int32)
    r_scales = _per_column(b, c, inputs.r_scale, np.float32)
    r_zeros = _per_column(b, c, inputs.r_zero, np.int32, -SHIFT if r.dtype == np.uint8 else 0)
    memory = lstm_memory(
        b,
        c,
        inputs.lengths,
        inputs.initial_h,
        inputs.initial_c,
        inputs.peepholes,
        np.dtype(np.float32),
    )
    levels = b.empty((c.directions * c.batch * quads * QUAD,), np.uint8)
    sums = b.empty((c.directions * PANEL,), np.int32)
    scratch = (levels, sums, b.constant(byte_kernels(level_of(b))))
    factors = (products, panels, r_scales, r_zeros, totals)
    return emit_lstm(b, node, c, lstm_bytes_loop, factors, memory, scratch)

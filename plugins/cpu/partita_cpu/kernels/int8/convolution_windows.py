"""8-bit convolutions by im2col: the windows of all pixels as rows of one 8-bit product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.reached_taps import without_padding
from partita.lowering.geometry.windows import resolve
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.jit.intrinsics.address_call import address, call_runs
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.int8.convolution_lines import emit_lines
from partita_cpu.kernels.int8.product import (
    ByteOperands,
    Result,
    emit_packed_product,
    emit_rows,
    empty_rows,
    row_bytes,
)
from partita_cpu.kernels.movement.rearrange import transposed


@loop(inline=True)
def _copy_run(x: Any, start: int, n: int, packed: Any, at: int, shift: int) -> None:
    """Some levels from one array to the other, as uint8.

    Args:
        x: Levels.
        start: The first one.
        n: How many.
        packed: Gets them.
        at: Where.
        shift: Added to each: 128 if levels are int8, else 0.
    """
    flipped = np.uint8(shift)  # adding 128 to a byte turns its highest bit over
    for i in range(n):
        packed[np.uint64(at + i)] = np.uint8(x[np.uint64(start + i)]) ^ flipped


class GatheredRows(NamedTuple):
    """Sizes of rows that hold windows.

    Attributes:
        images: How many.
        channels: Of the input.
        length: Of a row; it is filled up with zeros.
        shift: What makes the input uint8: 128, or 0.
        counted: Whether rows are added up.
        copy: Address of a kernel that copies runs, or 0.
    """

    images: int
    channels: int
    length: int
    shift: int
    counted: int
    copy: int


@loop
def gather_windows(
    x: Any,
    zero: Any,
    packed: Any,
    totals: Any,
    table: Any,
    rows: GatheredRows,
    tid: int,
    nt: int,
) -> None:
    """The windows of pixels with channels last as rows of uint8, and the rows' sums.

    Padding is the zero point. ``table`` is that of the window.

    Args:
        x: (images, D, H, W, channels) levels, flat.
        zero: Their zero point, of one element.
        packed: Output (pixels, length) uint8, flat; zeros behind a window's terms.
        totals: Output: the sum of each row, where rows are counted.
        table: `Window.table`: what the window is like, and sizes of input and output.
        rows: How rows are laid out.
        tid: This thread.
        nt: All threads; they share lines of output pixels.
    """
    images, channels, length, shift, counted, copy = rows
    out_d, out_h, out_w = table[15], table[16], table[17]
    across, stride, left = table[5], table[8], table[14]
    terms = table[3] * table[4] * across * channels
    # Between these columns all taps of a row of the kernel are one run of the image.
    inner, inner_end = 0, 0
    if copy and table[11] == 1:
        inner = min(max(-(-left // stride), 0), out_w)
        inner_end = max(min((table[2] + left - across) // stride + 1, out_w), inner)
    lines = images * out_d * out_h
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        row = line * out_w
        if inner_end > inner:
            _gather_line(x, zero, packed, table, rows, line, inner, inner_end)
        for column in range(out_w):
            if not inner <= column < inner_end:
                _gather_pixel(x, zero, packed, table, channels, length, shift, line, column)
            at = (row + column) * length
            for i in range(at + terms, at + length):
                packed[np.uint64(i)] = 0
            if counted:
                total = np.int32(0)
                for i in range(at, at + terms):
                    total = np.int32(total + np.int32(packed[np.uint64(i)]))
                totals[row + column] = total


@loop
def _gather_line(
    x: Any,
    zero: Any,
    packed: Any,
    table: Any,
    rows: GatheredRows,
    line: int,
    inner: int,
    inner_end: int,
) -> None:
    """Windows of neighbouring output pixels, one row of the kernel after another.

    Args:
        x: The image, flat.
        zero: Its zero point.
        packed: Gets the windows.
        table: Sizes of the window.
        rows: How windows lie.
        line: The output line.
        inner: The first pixel.
        inner_end: Behind the last one.
    """
    channels, length, shift = rows.channels, rows.length, rows.shift
    depth, height, width = table[0], table[1], table[2]
    out_d, out_h, out_w = table[15], table[16], table[17]
    image, od, oh = line // (out_d * out_h), line // out_h % out_d, line % out_h
    run = table[5] * channels
    first = inner * table[8] - table[14]
    blank = np.uint8(np.int32(zero[0]) + np.int32(shift))
    row = line * out_w + inner
    at = row * length
    for kd in range(table[3]):
        d = od * table[6] + kd * table[9] - table[12]
        for kh in range(table[4]):
            h = oh * table[7] + kh * table[10] - table[13]
            if 0 <= d < depth and 0 <= h < height:
                pixel = ((image * depth + d) * height + h) * width + first
                places = (address(x) + pixel * channels, table[8] * channels)
                to = (address(packed) + at, length)
                call_runs(rows.copy, (*places, *to, inner_end - inner, run, shift))
            else:
                for column in range(inner_end - inner):
                    begin = at + column * length
                    packed[begin : begin + run] = blank
            at += run


@loop
def _gather_pixel(
    x: Any,
    zero: Any,
    packed: Any,
    table: Any,
    channels: int,
    length: int,
    shift: int,
    line: int,
    column: int,
) -> None:
    """The window of one output pixel, tap by tap.

    Args:
        x: The image, flat.
        zero: Its zero point.
        packed: Gets the window.
        table: Sizes of the window.
        channels: Of the image.
        length: Bytes of a window.
        shift: Added to each level.
        line: The output line.
        column: The pixel in it.
    """
    depth, height, width = table[0], table[1], table[2]
    out_d, out_h, out_w = table[15], table[16], table[17]
    image, od, oh = line // (out_d * out_h), line // out_h % out_d, line % out_h
    across, next_to = table[5], table[11]
    blank = np.int32(np.int32(zero[0]) + np.int32(shift))
    first = column * table[8] - table[14]
    whole = next_to == 1 and first >= 0 and first + across <= width
    at = (line * out_w + column) * length
    for kd in range(table[3]):
        d = od * table[6] + kd * table[9] - table[12]
        for kh in range(table[4]):
            h = oh * table[7] + kh * table[10] - table[13]
            inside = 0 <= d < depth and 0 <= h < height
            start = ((image * depth + d) * height + h) * width
            if inside and whole:
                run = across * channels
                _copy_run(x, (start + first) * channels, run, packed, at, shift)
                at += run
                continue
            for kw in range(across):
                w = first + kw * next_to
                if inside and 0 <= w < width:
                    _copy_run(x, (start + w) * channels, channels, packed, at, shift)
                else:
                    for i in range(at, at + channels):
                        packed[np.uint64(i)] = blank
                at += channels


def _runs(b: Builder) -> int:
    """The address of the kernel that copies runs, or 0 where there is none."""
    policy = native_policy(b.options)
    return 0 if policy is None else addresses(policy.level).get("copy_runs", 0)


def taps_first(weights: Array) -> Array:
    """Weights (outputs, channels, taps...) as a matrix (taps and channels, outputs)."""
    outputs = weights.shape[0]
    return weights.reshape(*weights.shape[:2], -1).transpose(2, 1, 0).reshape(-1, outputs)


def emit_byte_convolution(
    b: Builder, node: Node, operands: ByteOperands, result: Result | None = None
) -> Operand:
    """The convolution of images with channels second, of one group.

    Args:
        b: Records it.
        node: Has the window.
        operands: Images (n, channels, ...) and weights (outputs, channels, ...).
        result: What sums become; ``None`` leaves them int32.
    """
    x = operands.x
    last = transposed(b, x, (0, *range(2, x.ndim), 1))
    y = emit_windows(b, node, replace(operands, x=last), result)
    return transposed(b, y, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def emit_windows(
    b: Builder, node: Node, operands: ByteOperands, result: Result | None = None
) -> Operand:
    """`emit_byte_convolution` of images (n, ..., channels)."""
    x = operands.x
    window, w = without_padding(b, resolve(node, x.shape[1:-1], operands.w.shape[2:]), operands.w)
    operands = replace(operands, w=w)
    images, channels, outputs = x.shape[0], x.shape[-1], w.shape[0]
    shape = (images, *window.out_shape, outputs)
    rows, terms = images * window.pixels, window.taps * channels
    if not rows * outputs:
        return b.empty(shape, np.int32 if result is None else result.dtype)
    if window.is_pointwise:
        return b.view(emit_rows(b, operands, taps_first, channels, result), shape)
    through_lines = emit_lines(b, window, operands, result)
    if through_lines is not None:
        return b.view(through_lines, shape)
    packed = empty_rows(b, rows, terms)
    totals = operands.row_totals(b, rows)
    counted = int(operands.needs_row_totals)
    sizes = GatheredRows(images, channels, row_bytes(b, terms), operands.shift, counted, _runs(b))
    table = b.constant(window.table)
    b.call(gather_windows, b.flat(x), operands.zero_level(b), packed, totals, table, sizes)
    y = emit_packed_product(b, operands, (packed, totals), taps_first, terms, result)
    return b.view(y, shape)

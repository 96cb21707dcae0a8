"""DeformConv: convolutions of images whose taps are moved by what other tensors hold.

Each tap of each output pixel reads between four pixels (bilinear), 0 beside the image. What is read
becomes columns, as windows of other convolutions do, and a matrix product follows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.windows import resolve
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.conv.convolution import Convolution, multiply_piece, pieces
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.epilogue import BIAS_PER_ROW, finish
from partita_cpu.kernels.operator_table import ALL_FLOATS, kernel


class TapOffsets(NamedTuple):
    """Where taps read; channels fall into groups that share this.

    Attributes:
        offsets: Rows and columns (N, groups, taps, 2, output pixels) to add, flat.
        masks: Factors (N, groups, taps, output pixels), flat.
        groups: Of channels.
        masked: Whether there are factors.
    """

    offsets: KernelArray
    masks: KernelArray
    groups: int
    masked: int


class Piece(NamedTuple):
    """Output pixels whose columns are made at a time.

    Attributes:
        first: The first image.
        images: How many.
        row: The first row of output pixels.
        rows: How many.
    """

    first: int
    images: int
    row: int
    rows: int


@jit
def deformed_columns(
    x: Array,
    columns: Array,
    moves: TapOffsets,
    table: Array,
    channels: int,
    piece: Piece,
    tid: int,
    nt: int,
) -> None:
    """``columns[image, channel x tap, output pixel]`` is what that tap reads of x.

    Args:
        x: Input (N, channels, H, W), flat.
        columns: Output (images, channels x taps, rows x output width), flat.
        moves: Where taps read.
        table: `Window.table`.
        channels: Of the input.
        piece: Which output pixels.
        tid: This thread.
        nt: All threads; they share the output pixels.
    """
    ih, iw = table[1], table[2]
    kh, kw = table[4], table[5]
    sh, sw = table[7], table[8]
    dh, dw = table[10], table[11]
    ph, pw = table[13], table[14]
    oh, ow = table[16], table[17]
    taps = kh * kw
    width = piece.rows * ow
    each = channels // moves.groups
    total = piece.images * width
    low, high = total * tid // nt, total * (tid + 1) // nt
    for group in range(moves.groups):
        for tap in range(taps):
            for point in range(low, high):
                image = point // width
                pixel = point - image * width
                row = pixel // ow
                column = pixel - row * ow
                row += piece.row
                n = piece.first + image
                move = (n * moves.groups + group) * taps + tap
                at = move * 2 * oh * ow + row * ow + column
                y = row * sh - ph + tap // kw * dh + moves.offsets[at]
                z = column * sw - pw + tap % kw * dw + moves.offsets[at + oh * ow]
                first = image * channels + group * each
                to = (first * taps + tap) * width + pixel
                factor = 1.0
                if moves.masked:
                    factor = moves.masks[move * oh * ow + row * ow + column]
                if not (y > -1 and y < ih and z > -1 and z < iw):  # nor where it is no number
                    for c in range(each):
                        columns[to + c * taps * width] = 0.0 * factor
                    continue
                top, left = math.floor(y), math.floor(z)
                down, across = y - top, z - left
                plane = (n * channels + group * each) * ih
                for c in range(each):
                    line = (plane + c * ih + top) * iw + left
                    value = 0.0
                    if top >= 0:
                        if left >= 0:
                            value += (1 - down) * (1 - across) * x[line]
                        if left + 1 < iw:
                            value += (1 - down) * across * x[line + 1]
                    if top + 1 < ih:
                        if left >= 0:
                            value += down * (1 - across) * x[line + iw]
                        if left + 1 < iw:
                            value += down * across * x[line + iw + 1]
                    columns[to + c * taps * width] = value * factor


def _check(node: Node) -> Reason | None:
    x = node.input(0)
    if x is not None and x.shape is not None and len(x.shape) != 4:
        return Reason(
            ReasonCode.UNSUPPORTED_SHAPE, f"input of {len(x.shape)} dimensions; takes images of 4"
        )
    return None


@kernel("DeformConv", dtypes=ALL_FLOATS, since=19, check=_check)
@through_float32
def deform_conv(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    offsets: Operand,
    bias: Operand | None = None,
    masks: Operand | None = None,
) -> Operand:
    """Columns of what moved taps read, piece by piece, and each piece one matrix product."""
    window = resolve(node, x.shape[2:], w.shape[2:])
    groups, parts = node.attrs.get("group", 1), node.attrs.get("offset_group", 1)
    c = Convolution(x.shape[0], x.shape[1], w.shape[0], groups, window)
    for name, given, count in (("offset", offsets, 2), ("mask", masks, 1)):
        due = c.batch, parts * window.taps * count, *window.out_shape
        if given is not None and given.shape != due:
            raise OperandError(
                f"Operation '{node.name}' ({node.model_kind}) has the {name} of shape "
                f"{list(given.shape)}; {list(due)} fits its input, weights and attributes."
            )
    y = b.empty(c.out_shape, x.dtype)
    if not y.size:
        return y
    flat = b.flat(offsets)
    factors = flat if masks is None else b.flat(masks)
    moves = TapOffsets(flat, factors, parts, int(masks is not None))
    depth, table = c.channels // groups * window.taps, b.constant(window.table)
    weights = b.view(w, (groups, c.outputs // groups, depth))
    out = b.view(y, (c.batch, groups, c.outputs // groups, window.pixels))
    for first, images, row, rows in pieces(c, x.dtype.itemsize):
        width = rows * window.out[2]
        columns = b.empty((images, groups, depth, width), x.dtype)
        place = Piece(first, images, row, rows)
        b.call(
            deformed_columns,
            b.flat(x),
            b.flat(columns),
            moves,
            table,
            c.channels,
            place,
            work=columns.size * 4,
        )
        work = c.work // c.batch * images
        position = first, row * window.out[2]
        b.call_numpy(multiply_piece, weights, columns, out, *position, work=work, exec_type="blas")
    finish(b, y, window.pixels, bias, BIAS_PER_ROW, None, None)
    return y

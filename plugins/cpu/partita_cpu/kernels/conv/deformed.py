"""DeformConv: convolutions of images whose taps are moved by what other tensors hold.

Each tap of each output pixel reads between four pixels (bilinear), 0 beside the image. What is read
becomes columns, as windows of other convolutions do, and a matrix product follows. The image has
its channels last meanwhile: those that are moved alike lie side by side, and are read as vectors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.windows import resolve
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.conv.convolution import Convolution, multiply_piece, pieces
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.epilogue import BIAS_PER_ROW, finish
from partita_cpu.kernels.movement.rearrange import transposed
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


class Channels(NamedTuple):
    """Channels of the input.

    Attributes:
        all: Of an image.
        groups: In how many groups, each of which has weights of its own.
    """

    all: int
    groups: int


class Corners(NamedTuple):
    """The four pixels that a tap reads between, and how much it takes of each.

    Attributes:
        top: Row of the upper two.
        left: Column of the left two.
        shares: Of the upper left, upper right, lower left and lower right one.
        factor: Of what it reads.
    """

    top: int
    left: int
    shares: tuple[float, float, float, float]
    factor: float


@jit(inline=True)
def read_between(
    x: Array, columns: Array, corners: Corners, plane: int, size: Any, to: int, count: int
) -> None:
    """Writes what a tap reads of neighbouring channels; 0 is beside the image.

    Args:
        x: Images with their channels last, flat.
        columns: Output, flat.
        corners: Where it reads.
        plane: The place in `x` of the first of these channels of the image's first pixel.
        size: Rows, columns and channels of an image.
        to: The first place in `columns`.
        count: Of channels.
    """
    rows, wide, step = size
    one, two, three, four = corners.shares
    factor = corners.factor
    start = plane + (corners.top * wide + corners.left) * step
    under = start + wide * step
    if 0 <= corners.top < rows - 1 and 0 <= corners.left < wide - 1:
        for c in range(count):
            columns[np.uint64(to + c)] = factor * (
                one * x[np.uint64(start + c)]
                + two * x[np.uint64(start + step + c)]
                + three * x[np.uint64(under + c)]
                + four * x[np.uint64(under + step + c)]
            )
        return
    for c in range(count):
        columns[np.uint64(to + c)] = 0
    for corner in range(4):
        row, column = corners.top + corner // 2, corners.left + corner % 2
        if 0 <= row < rows and 0 <= column < wide:
            share = corners.shares[corner]
            at = plane + (row * wide + column) * step
            for c in range(count):
                columns[np.uint64(to + c)] += share * x[np.uint64(at + c)]
    for c in range(count):
        columns[np.uint64(to + c)] *= factor  # no number beside the image, too, where it is none


@jit
def deformed_columns(
    x: Array,
    columns: Array,
    moves: TapOffsets,
    table: Array,
    channels: Channels,
    piece: Piece,
    tid: int,
    nt: int,
) -> None:
    """``columns[image, group, output pixel, tap, channel]`` is what that tap reads of x.

    Args:
        x: Input (N, H, W, channels), flat.
        columns: Output (images, groups, rows x output width, taps, channels of a group), flat.
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
    alike = channels.all // moves.groups
    inner = channels.all // channels.groups
    total = piece.images * width
    number = x.dtype.type
    for point in range(total * tid // nt, total * (tid + 1) // nt):
        image = point // width
        pixel = point - image * width
        row = pixel // ow
        column = pixel - row * ow
        row += piece.row
        n = piece.first + image
        for part, tap_row, tap_column in np.ndindex(moves.groups, kh, kw):
            tap = tap_row * kw + tap_column
            move = (n * moves.groups + part) * taps + tap
            at = move * 2 * oh * ow + row * ow + column
            y = row * sh - ph + tap_row * dh + moves.offsets[at]
            z = column * sw - pw + tap_column * dw + moves.offsets[at + oh * ow]
            factor = number(1)
            if moves.masked:
                factor = moves.masks[move * oh * ow + row * ow + column]
            top, left = -2, -2  # where nothing is read; so where it is no number
            down, across = number(0), number(0)
            if y > -1 and y < ih and z > -1 and z < iw:
                top, left = math.floor(y), math.floor(z)
                down, across = number(y - top), number(z - left)
            above, before = number(1) - down, number(1) - across
            shares = above * before, above * across, down * before, down * across
            first = part * alike
            while first < (part + 1) * alike:  # channels that one group of weights reads
                group = first // inner
                count = min((group + 1) * inner, (part + 1) * alike) - first
                to = ((image * channels.groups + group) * width + pixel) * taps + tap
                read_between(
                    x,
                    columns,
                    Corners(top, left, shares, factor),
                    n * ih * iw * channels.all + first,
                    (ih, iw, channels.all),
                    to * inner + first - group * inner,
                    count,
                )
                first += count


def _multiply(w: Array, columns: Array, y: Array, image: int, pixel: int) -> None:
    """The product of weights and columns that lie one after another."""
    multiply_piece(w, columns.swapaxes(-1, -2), y, image, pixel)


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
    inner = c.channels // groups
    weights = transposed(b, b.view(w, (c.outputs, inner, window.taps)), (0, 2, 1))
    weights = b.view(weights, (groups, c.outputs // groups, depth))
    image = b.flat(transposed(b, x, (0, 2, 3, 1)))
    out = b.view(y, (c.batch, groups, c.outputs // groups, window.pixels))
    for first, images, row, rows in pieces(c, x.dtype.itemsize):
        width = rows * window.out[2]
        columns = b.empty((images, groups, width, depth), x.dtype)
        place = Piece(first, images, row, rows)
        b.call(
            deformed_columns,
            image,
            b.flat(columns),
            moves,
            table,
            Channels(c.channels, groups),
            place,
            work=columns.size * 4,
        )
        work = c.work // c.batch * images
        position = first, row * window.out[2]
        b.call_numpy(_multiply, weights, columns, out, *position, work=work, exec_type="blas")
    finish(b, y, window.pixels, bias, BIAS_PER_ROW, None, None)
    return y

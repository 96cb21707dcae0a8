"""Compiled loops that move pixels and channels of images: transposed, put in place, in blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.intrinsics.address_call import address, call_narrow
from partita_cpu.jit.loop_kernel import loop

_FEW_BLOCKS = 4
"""Of a thread: with fewer blocks of columns, these are cut in bands of rows that threads share."""


@loop
def swap_axes(x: Array, y: Array, rows: int, columns: int, pitch: int, tid: int, nt: int) -> None:
    """``y[n, j, i] = x[n, i, j]``, with zeros behind.

    Threads share blocks of columns, cut into bands of rows where blocks are few.

    Args:
        x: Input (N, rows, columns), flat.
        y: Output (N, columns, pitch), flat.
        rows: Rows of x.
        columns: Columns of x.
        pitch: Length of a row of y, at least `rows`.
        tid: This thread.
        nt: All threads.
    """
    block = 32
    pieces = -(-columns // block)
    images = x.size // (rows * columns)
    blocks = -(-rows // block)
    bands = 1 if images * pieces >= _FEW_BLOCKS * nt else min(blocks, nt)
    count = images * pieces * bands
    for number in range(count * tid // nt, count * (tid + 1) // nt):
        piece = number // bands
        band = number - piece * bands
        image = piece // pieces
        first = (piece - image * pieces) * block
        last = min(first + block, columns)
        source, target = image * rows * columns, image * columns * pitch
        if rows == 3 and pitch == 4:
            # Pictures: loops of three would take most of the time.
            for j in range(first, last):
                to, at = target + 4 * j, source + j
                y[np.uint64(to)] = x[np.uint64(at)]
                y[np.uint64(to + 1)] = x[np.uint64(at + columns)]
                y[np.uint64(to + 2)] = x[np.uint64(at + 2 * columns)]
                y[np.uint64(to + 3)] = np.float32(0)
            continue
        last_top = blocks * (band + 1) // bands * block
        for top in range(blocks * band // bands * block, last_top, block):
            bottom = min(top + block, rows)
            for j in range(first, last):
                to, at = target + j * pitch, source + j
                for i in range(top, bottom):
                    y[np.uint64(to + i)] = x[np.uint64(at + i * columns)]
        for j in range(first, last if last_top >= rows else first):
            for i in range(rows, pitch):
                y[target + j * pitch + i] = np.float32(0)


@loop
def put_channels(
    x: Array,
    y: Array,
    kernel: Array,
    channels: int,
    x_first: int,
    y_first: int,
    y_pitch: int,
    tid: int,
    nt: int,
) -> None:
    """Copies some channels of each pixel to their place among those of y.

    Args:
        x: Input (pixels, at least channels), flat; of the same type as y.
        y: Output (pixels, y_pitch), flat.
        kernel: The copy.
        channels: How many.
        x_first: The first of them in x.
        y_first: The first of them in y.
        y_pitch: Elements from one output pixel to the next.
        tid: This thread.
        nt: All threads; they share the pixels.
    """
    pixels = y.size // y_pitch
    x_pitch = x.size // pixels
    for pixel in range(pixels * tid // nt, pixels * (tid + 1) // nt):
        source = address(x) + x.itemsize * (pixel * x_pitch + x_first)
        to = address(y) + y.itemsize * (pixel * y_pitch + y_first)
        call_narrow(kernel[0], (source, channels, to, 0, channels))


class Blocks(NamedTuple):
    """Sizes of blocks of pixels, each made from one pixel.

    Attributes:
        height: Lines of blocks of a slice.
        width: Blocks of a line.
        deep: Slices of a block.
        down: Its rows.
        across: Pixels of a row.
        channels: Of a pixel.
        y_pitch: Elements from one output pixel to the next.
        y_first: The channel that the first result is written to.
    """

    height: int
    width: int
    deep: int
    down: int
    across: int
    channels: int
    y_pitch: int
    y_first: int


@loop
def spread_blocks(x: Array, y: Array, blocks: Blocks, tid: int, nt: int) -> None:
    """``y[d, e, i, a, j, b, :] = x[d, i, j, e, a, b, :]``: the pixels of blocks in their places.

    Args:
        x: Input (slices, height, width, deep, down, across, channels), flat.
        y: Output (slices, deep, height, down, width, across, y_pitch), flat.
        blocks: The sizes.
        tid: This thread.
        nt: All threads; they share the lines of blocks.
    """
    height, width, deep, down, across, channels, y_pitch, y_first = blocks
    run, pixels = channels, across
    if y_pitch == channels:
        run, pixels = channels * across, 1
    rows = deep * down
    lines = x.size // (width * rows * across * channels)
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        upper = line // height
        for row in range(rows):
            e = row // down
            below = ((upper * deep + e) * height + line - upper * height) * down + row - e * down
            to = below * width * across * y_pitch + y_first
            for j in range(width):
                source = ((line * width + j) * rows + row) * across * channels
                for _ in range(pixels):
                    for i in range(run):
                        y[np.uint64(to + i)] = x[np.uint64(source + i)]
                    source += run
                    to += y_pitch * across // pixels


@loop
def interleave_groups(x: Array, y: Array, groups: int, others: int, tid: int, nt: int) -> None:
    """``y[p, i, g] = x[p, g, i]``; threads share the pixels.

    Args:
        x: Input (pixels, groups, others), flat.
        y: Output (pixels, others, groups), flat.
        groups: Groups of channels.
        others: Channels of a group.
        tid: This thread.
        nt: All threads.
    """
    channels = groups * others
    pixels = x.size // channels
    for pixel in range(pixels * tid // nt, pixels * (tid + 1) // nt):
        source = x[pixel * channels : (pixel + 1) * channels]
        target = y[pixel * channels : (pixel + 1) * channels]
        for g in range(groups):
            for i in range(others):
                target[np.uint64(i * groups + g)] = source[np.uint64(g * others + i)]

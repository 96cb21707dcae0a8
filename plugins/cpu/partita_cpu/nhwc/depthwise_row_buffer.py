"""Depthwise convolution of images with channels last: rows are laid out once, padded, and reused.

Each thread has a ring of as many rows as the kernel is high. Where it does not pay (strides, small
kernels in float32) or is not covered, windows slide over the image as it is; see `sliding`.
"""

from __future__ import annotations

import functools

import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.intrinsics.address_call import address, call_depthwise, call_lay
from partita_cpu.jit.kernel import jit
from partita_cpu.llvm.images.depthwise_rows import MOST_PIXELS
from partita_cpu.llvm.levels import Level

RING_BYTES = 512 << 10
"""Rings larger than this would not stay in the second-level cache."""

MANY_TAPS = 25
"""From so many taps on it pays to lay out rows of float32 as well."""

LAY = MOST_PIXELS + 1
"""Place of the kernel that lays out a row, behind those for 1 to `MOST_PIXELS` pixels."""

FEW_ROWS = 16
"""Threads share channels and not rows where there are fewer rows than this for each."""


def row_bytes(window: Window, channels: int, lanes: int) -> int:
    """Size of a laid out row."""
    return -(-channels // lanes) * padded_width(window) * 4 * lanes


def padded_width(window: Window) -> int:
    """Pixels of a laid out row."""
    return max(window.out[2] + window.kernel[2] - 1, window.begin[2] + window.size[2])


def fits(window: Window, channels: int, level: Level, half: bool) -> bool:
    """Whether rows are to be laid out for this window; `half` for images in bfloat16."""
    dense = window.stride[1:] == window.dilation[1:] == (1, 1)
    plain = dense and min(window.begin + window.end) >= 0
    ring = window.kernel[1] * row_bytes(window, channels, level.lanes)
    return plain and ring <= RING_BYTES and (half or window.taps >= MANY_TAPS)


@functools.cache
def row_kernels(level: Level, half: bool) -> Array:
    """Kernels by number of pixels, and at `LAY` the one that lays out rows."""
    known = llvm_kernel.addresses(level)
    kind = "_halves" if half else ""
    table = np.zeros(MOST_PIXELS + 2, np.int64)
    for pixels in range(1, MOST_PIXELS + 1):
        table[pixels] = known[f"depthwise{kind}_{pixels}"]
    table[LAY] = known[f"lay_row{kind}"]
    return table


@jit
def convolve_rows(
    x: Array,
    w: Array,
    bias: Array,
    y: Array,
    scratch: Array,
    kernels: Array,
    table: Array,
    lanes: int,
    channels: int,
    x_pitch: int,
    x_first: int,
    y_pitch: int,
    y_first: int,
    padded_width: int,
    thread_bytes: int,
    low: float,
    high: float,
    gate: int,
    tid: int,
    nt: int,
) -> None:
    """Every channel's weighted sums, bounded and perhaps gated.

    Args:
        x: Input (N, H, W, x_pitch), flat; float32, or bfloat16 as uint16.
        w: `pack_taps`.
        bias: `pack_row`.
        y: Output (N, rows, columns, y_pitch), flat; of the same type.
        scratch: Bytes; `thread_bytes` for each thread.
        kernels: `row_kernels`.
        table: `Window.table`, of depth 1.
        lanes: Floats of a vector.
        channels: Channels.
        x_pitch: Elements from one input pixel to the next.
        x_first: The first channel that is read.
        y_pitch: Elements from one output pixel to the next.
        y_first: The channel that the first result is written to.
        padded_width: Pixels of a laid out row.
        thread_bytes: A ring, a list of its rows, and room to align them.
        low: Lower bound.
        high: Upper bound.
        gate: 1 for HardSwish, else 0.
        tid: This thread.
        nt: All threads; they share rows of the output, or channels where there are few rows.
    """
    height, width = table[1], table[2]
    down, across = table[4], table[5]
    top, left, oh, ow = table[13], table[14], table[16], table[17]
    threads = min(nt, scratch.size // thread_bytes)
    rows, all_blocks = y.size // (ow * y_pitch), -(-channels // lanes)
    row, last_row, block, last_block = 0, rows, 0, all_blocks
    if tid >= threads:
        return
    if rows < FEW_ROWS * threads and all_blocks >= threads:
        block, last_block = all_blocks * tid // threads, all_blocks * (tid + 1) // threads
    else:
        row, last_row = rows * tid // threads, rows * (tid + 1) // threads
    if row == last_row or block == last_block:
        return
    blocks, vector = last_block - block, 4 * lanes
    begin = block * lanes
    exist = min(channels - begin, blocks * lanes)
    unit = x.itemsize
    lines = scratch[tid * thread_bytes : (tid + 1) * thread_bytes]
    base = address(lines)
    shift = -base % 64
    block_bytes = padded_width * vector
    line_bytes = blocks * block_bytes
    # Behind the ring, the addresses of the rows that a row of the output needs.
    floats = lines[shift : shift + down * line_bytes].view(np.float32)
    for number in range(down * blocks):
        pad = number * padded_width * lanes
        floats[pad : pad + left * lanes] = np.float32(0)
        floats[pad + (left + width) * lanes : pad + padded_width * lanes] = np.float32(0)
    list_at = shift + down * line_bytes
    places = lines[list_at : list_at + 8 * down].view(np.int64)
    bottom, ceiling = np.float32(low), np.float32(high)
    weights = address(w) + block * down * across * vector
    offset = address(bias) + begin * 4
    groups = -(-ow // MOST_PIXELS)
    image, laid = -1, 0
    for r in range(row, last_row):
        if r // oh != image:
            image, laid = r // oh, 0
        start = r % oh - top
        first, last = max(start, 0), min(start + down, height)
        for line in range(max(first, laid), last):
            source = x_first + begin + (image * height + line) * width * x_pitch
            to = base + shift + line % down * line_bytes + left * vector
            from_ = address(x) + unit * source
            call_lay(kernels[LAY], (from_, width, unit * x_pitch, exist, to, block_bytes))
        laid = max(laid, last)
        for line in range(first, last):
            places[line - first] = base + shift + line % down * line_bytes
        taps = weights + (first - start) * across * vector
        for g in range(groups):
            column = ow * g // groups
            pixels = ow * (g + 1) // groups - column
            to = address(y) + unit * ((r * ow + column) * y_pitch + y_first + begin)
            call_depthwise(
                kernels[pixels],
                (
                    address(places),
                    column * vector,
                    max(last - first, 0),
                    across,
                    block_bytes,
                    taps,
                    down * across * vector,
                    offset,
                    blocks,
                    exist,
                    to,
                    unit * y_pitch,
                    bottom,
                    ceiling,
                    gate,
                ),
            )


def thread_bytes(window: Window, channels: int, lanes: int) -> int:
    """Scratch memory of a thread."""
    return window.kernel[1] * (row_bytes(window, channels, lanes) + 8) + 128

"""Depthwise convolution with channels last, with a ring buffer of padded rows per thread.

The ring has as many rows as the kernel is high, of as many channels as fit a part of the cache: an
image of more is computed by some channels after others. Where it does not pay (strides, kernels
one column wide, small ones in float32) or is not covered, windows slide over the image as it is;
see `nhwc.window`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import evaluated
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.intrinsics.address_call import address, call_depthwise_rows, call_pack_pixels
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.llvm.images.depthwise_rows import MOST_PIXELS
from partita_cpu.llvm.levels import Level
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc.channel_slice import ChannelSlice

RING_SHARE = 1 / 4
"""Of the second-level cache, for a ring: rows of the image and of the result run through it too."""

MANY_TAPS = 25
"""From so many taps on it pays to lay out rows of float32 as well."""

PACK = MOST_PIXELS + 1
"""Place of the kernel that lays out a row, behind those for 1 to `MOST_PIXELS` pixels."""

FEW_ROWS = 16
"""Threads share channels and not rows where there are fewer rows than this for each."""


def padded_width(window: Window) -> int:
    """Pixels of a laid out row."""
    return max(window.out[2] + window.kernel[2] - 1, window.begin[2] + window.size[2])


def ring_blocks(window: Window, channels: int, machine: MachineModel) -> int:
    """Vectors of channels whose rows lie in a ring at a time; 0 if the rows of one are too long."""
    lanes = machine.level.lanes
    room = machine.l2_bytes(RING_SHARE) // (window.kernel[1] * 4 * lanes)
    blocks: int = evaluated(_ring_blocks, room, padded_width(window), -(-channels // lanes))
    return blocks


def _ring_blocks(room: int, padded: int, blocks: int) -> int:
    rounds = -(-blocks // max(room // padded, 1))  # each takes as many as the others
    return -(-blocks // rounds) if padded <= room else 0


def fits(window: Window, machine: MachineModel, half: bool) -> bool:
    """Whether rows are to be laid out for this window; `half` for images in bfloat16."""
    dense = window.stride[1:] == window.dilation[1:] == (1, 1)
    plain = dense and min(window.begin + window.end) >= 0 and window.kernel[2] > 1
    if not plain or not (half or window.taps >= MANY_TAPS):
        return False  # the same for all sizes, which the next lines tell apart
    ring = window.kernel[1] * padded_width(window) * 4 * machine.level.lanes
    return ring <= machine.l2_bytes(RING_SHARE)


@functools.cache
def row_kernels(level: Level, half: bool) -> Array:
    """Kernels by number of pixels, and at `PACK` the one that lays out rows."""
    known = llvm_kernel.addresses(level, "_windows")
    kind = "_halves" if half else ""
    table = np.zeros(MOST_PIXELS + 2, np.int64)
    for pixels in range(1, MOST_PIXELS + 1):
        table[pixels] = known[f"depthwise{kind}_{pixels}"]
    table[PACK] = known[f"pack_pixels{kind}"]
    return table


class RowBuffer(NamedTuple):
    """A depthwise convolution whose input rows are laid out first.

    Attributes:
        taps: `depthwise_direct.pack_taps`.
        bias: `depthwise_direct.pack_row`.
        kernels: `row_kernels`.
        table: `Window.table`, of depth 1.
        lanes: Floats of a vector.
        padded_width: Pixels of a laid out row.
        ring_blocks: Vectors of channels in a ring, at most.
        thread_bytes: A ring, a list of its rows, and room to align them.
        low: Lower bound.
        high: Upper bound.
        gate: `gate_word` for HardSwish, else 0.
    """

    taps: KernelArray
    bias: KernelArray
    kernels: KernelArray
    table: KernelArray
    lanes: int
    padded_width: int
    ring_blocks: int
    thread_bytes: int
    low: float
    high: float
    gate: int


class _Share(NamedTuple):
    """What one thread computes by one filling of its ring, and its memory.

    Attributes:
        row: The first output row, counted through all images.
        last_row: Behind the last one.
        block: The first vector of channels.
        blocks: How many there are.
        ring: Address of the rows that are laid out.
        places: For an output row, the addresses of the rows that it needs.
    """

    row: int
    last_row: int
    block: int
    blocks: int
    ring: int
    places: Array


@loop
def convolve_rows(
    x: Array,
    rows: RowBuffer,
    y: Array,
    scratch: Array,
    channels: ChannelSlice,
    tid: int,
    nt: int,
) -> None:
    """Every channel's weighted sums, bounded and perhaps gated.

    Args:
        x: Input (N, H, W, x_pitch), flat; float32, or bfloat16 as uint16.
        rows: The convolution.
        y: Output (N, rows, columns, y_pitch), flat; of the same type.
        scratch: Bytes; `RowBuffer.thread_bytes` for each thread.
        channels: Which ones are read and written.
        tid: This thread.
        nt: All threads; they share rows of the output, or channels where there are few rows.
    """
    table, lanes = rows.table, rows.lanes
    threads = min(nt, scratch.size // rows.thread_bytes)
    count, all_blocks = y.size // (table[17] * channels.y_pitch), -(-channels.number // lanes)
    row, last_row, block, last_block = 0, count, 0, all_blocks
    if tid >= threads:
        return
    if count < FEW_ROWS * threads and all_blocks >= threads:
        block, last_block = all_blocks * tid // threads, all_blocks * (tid + 1) // threads
    else:
        row, last_row = count * tid // threads, count * (tid + 1) // threads
    if row == last_row or block == last_block:
        return
    most = min(rows.ring_blocks, last_block - block)
    lines = scratch[tid * rows.thread_bytes : (tid + 1) * rows.thread_bytes]
    shift = -address(lines) % 64
    down, line_bytes = table[4], most * rows.padded_width * 4 * lanes
    floats = lines[shift : shift + down * line_bytes].view(np.float32)
    _clear_edges(floats, rows, down * most)
    # Behind the ring, the addresses of the rows that a row of the output needs.
    list_at = shift + down * line_bytes
    places = lines[list_at : list_at + 8 * down].view(np.int64)
    while block < last_block:
        blocks = min(most, last_block - block)
        share = _Share(row, last_row, block, blocks, address(lines) + shift, places)
        _convolve_share(x, rows, y, channels, share)
        block += blocks


@loop(inline=True)
def _clear_edges(floats: Array, rows: RowBuffer, count: int) -> None:
    """Writes the zeros before and behind each laid out row."""
    lanes, padded_width = rows.lanes, rows.padded_width
    left, width = rows.table[14], rows.table[2]
    for number in range(count):
        pad = number * padded_width * lanes
        floats[pad : pad + left * lanes] = np.float32(0)
        floats[pad + (left + width) * lanes : pad + padded_width * lanes] = np.float32(0)


@loop
def _convolve_share(
    x: Array, rows: RowBuffer, y: Array, channels: ChannelSlice, share: _Share
) -> None:
    """A thread's rows and channels; lays out each input row once."""
    table, lanes, places = rows.table, rows.lanes, share.places
    height, width = table[1], table[2]
    down, across = table[4], table[5]
    top, left, oh, ow = table[13], table[14], table[16], table[17]
    vector, begin = 4 * lanes, share.block * lanes
    exist = min(channels.number - begin, share.blocks * lanes)
    unit, y_pitch = x.itemsize, channels.y_pitch
    block_bytes = rows.padded_width * vector
    line_bytes = share.blocks * block_bytes
    bottom, ceiling = np.float32(rows.low), np.float32(rows.high)
    weights = address(rows.taps) + share.block * down * across * vector
    offset = address(rows.bias) + begin * 4
    groups = -(-ow // MOST_PIXELS)
    image, laid = -1, 0
    for r in range(share.row, share.last_row):
        if r // oh != image:
            image, laid = r // oh, 0
        start = r % oh - top
        first, last = max(start, 0), min(start + down, height)
        for line in range(max(first, laid), last):
            pixel = (image * height + line) * width
            from_ = address(x) + unit * (pixel * channels.x_pitch + channels.x_first + begin)
            to = share.ring + line % down * line_bytes + left * vector
            args = (from_, width, unit * channels.x_pitch, exist, to, block_bytes)
            call_pack_pixels(rows.kernels[PACK], args)
        laid = max(laid, last)
        for line in range(first, last):
            places[line - first] = share.ring + line % down * line_bytes
        taps = weights + (first - start) * across * vector
        for g in range(groups):
            column = ow * g // groups
            pixels = ow * (g + 1) // groups - column
            to = address(y) + unit * ((r * ow + column) * y_pitch + channels.y_first + begin)
            call_depthwise_rows(
                rows.kernels[pixels],
                (
                    address(places),
                    column * vector,
                    max(last - first, 0),
                    across,
                    block_bytes,
                    taps,
                    down * across * vector,
                    offset,
                    share.blocks,
                    exist,
                    to,
                    unit * y_pitch,
                    bottom,
                    ceiling,
                    rows.gate,
                ),
            )


def thread_bytes(window: Window, blocks: int, lanes: int) -> int:
    """Scratch memory of a thread whose ring has so many vectors of channels."""
    return window.kernel[1] * (blocks * padded_width(window) * 4 * lanes + 8) + 128

"""Transposed depthwise convolution: every output plane adds up taps of one input plane.

Elements of an output line that lie a stride apart read the same taps of neighbouring elements. They
are summed side by side, phase by phase of the stride, and dealt out to the line at the end. A
product of matrices would have one term for each of its elements, which all would be written first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.conv.depthwise import MAX_THREADS


class TransposedTaps(NamedTuple):
    """A transposed depthwise convolution.

    Attributes:
        w: Weights (channels, multiplier, taps), flat.
        table: `Window.table` of the window that slides over the output.
        multiplier: Output channels per input channel.
    """

    w: KernelArray
    table: KernelArray
    multiplier: int


def line_elements(window: Window) -> int:
    """Size of the scratch memory of one thread: a line, in phases of the stride across."""
    return window.stride[2] * -(-window.size[2] // window.stride[2])


@jit
def depthwise_transposed(
    x: Array, taps: TransposedTaps, y: Array, memory: Array, tid: int, nt: int
) -> None:
    """Writes lines of the output; each input element adds its multiple of the weights.

    Args:
        x: Input (N, channels, D, H, W), flat.
        taps: The convolution.
        y: Output (N, channels * multiplier, D, H, W), flat.
        memory: `MAX_THREADS` times `line_elements`.
        tid: This thread.
        nt: All threads; they share the lines.
    """
    threads = min(nt, MAX_THREADS)
    if tid >= threads:
        return
    size = memory.size // MAX_THREADS
    sums = memory[tid * size : (tid + 1) * size]
    table = taps.table
    depth, height, width, across = table[0], table[1], table[2], table[8]
    length = size // across
    channels = taps.w.size // (taps.multiplier * table[3] * table[4] * table[5])
    lines = y.size // width
    for line in range(lines * tid // threads, lines * (tid + 1) // threads):
        plane = line // (depth * height)
        place = line - plane * depth * height
        weights = plane % (channels * taps.multiplier) * table[3] * table[4] * table[5]
        sums[:] = y.dtype.type(0)
        _add_taps(x, taps, sums, length, plane // taps.multiplier, place, weights)
        target = y[line * width : (line + 1) * width]
        for phase in range(across):
            count = max(0, (width - phase + across - 1) // across)
            for i in range(count):
                target[np.uint64(i * across + phase)] = sums[np.uint64(phase * length + i)]


@jit
def _add_taps(
    x: Array,
    taps: TransposedTaps,
    sums: Array,
    length: int,
    plane: int,
    place: int,
    weights: int,
) -> None:
    """Adds to one line what reaches it.

    Args:
        x: The input.
        taps: The convolution.
        sums: The line, a phase behind another.
        length: From phase to phase.
        plane: Of the input.
        place: Of the line in its plane.
        weights: Where those of the plane begin.
    """
    table = taps.table
    height, width = table[1], table[2]
    kh, kw = table[4], table[5]
    sd, sh, sw = table[6], table[7], table[8]
    od, oh, ow = table[15], table[16], table[17]
    z, r = place // height, place % height
    for a in range(table[3]):
        down = z + table[12] - a * table[9]
        if down < 0 or down % sd or down // sd >= od:
            continue
        for b in range(kh):
            row = r + table[13] - b * table[10]
            if row < 0 or row % sh or row // sh >= oh:
                continue
            source = ((plane * od + down // sd) * oh + row // sh) * ow
            for c in range(kw):
                value = taps.w[weights + (a * kh + b) * kw + c]
                shift = c * table[11] - table[14]
                phase = shift % sw
                first = (shift - phase) // sw  # where the first element of the source lies
                low = max(0, -first)
                high = min(ow, (width - 1 - phase) // sw + 1 - first)
                to = phase * length + first
                for i in range(low, high):
                    sums[np.uint64(to + i)] += x[np.uint64(source + i)] * value

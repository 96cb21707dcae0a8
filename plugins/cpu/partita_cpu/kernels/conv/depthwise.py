"""Depthwise convolution of images: every output plane reads one input plane.

A padded input plane is cut into one plane per phase of the stride (four for stride 2), so that each
tap reads consecutive elements whatever the stride. All planes have one pitch: the result of a tap
is then one long vector over many rows, with a few columns too many, which the last pass drops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.scalar.activations import ActivationFields, activate
from partita_cpu.scalar.instructions import like

MAX_THREADS = 64
"""Threads beyond this number get no work: scratch memory is laid out for so many."""

BLOCK = 1024
"""Elements summed up at a time, so that sums stay in the first-level cache."""


def scratch_elements(window: Window) -> int:
    """Size of the scratch memory of one thread."""
    rows = window.out[1] + (window.kernel[1] - 1) * window.dilation[1] // window.stride[1]
    spare = (window.kernel[2] - 1) * window.dilation[2] // window.stride[2]
    pitch = window.out[2] + spare
    phases = window.stride[1] * window.stride[2]
    return phases * rows * pitch + spare + max(BLOCK, pitch) + 2 * pitch


@jit
def _lay_phases(x: Array, scratch: Array, table: Array, start: int, rows: int, pitch: int) -> None:
    """Copy the plane at `start` into its padded phase planes, each of (rows, pitch).

    Args:
        x: Planes, flat.
        scratch: Gets the phase planes.
        table: Sizes of the window.
        start: Where the plane begins.
        rows: Of a phase plane.
        pitch: Of a phase plane: elements from row to row.
    """
    ih, iw = table[1], table[2]
    sh, sw = table[7], table[8]
    reach_h = (table[4] - 1) * table[10]
    reach_w = (table[5] - 1) * table[11]
    ph, pw = table[13], table[14]
    zero = x.dtype.type(0)
    for a in range(min(sh, reach_h + 1)):
        for b in range(min(sw, reach_w + 1)):
            to = (a * sw + b) * rows * pitch
            shift = b - pw
            low = min(max(0, (sw - 1 - shift) // sw), pitch)
            high = max(min(pitch, (iw - 1 - shift) // sw + 1), low)
            for r in range(rows):
                line = r * sh + a - ph
                if line < 0 or line >= ih:
                    for i in range(pitch):
                        scratch[to + i] = zero
                else:
                    source = start + line * iw + shift
                    for i in range(low):
                        scratch[to + i] = zero
                    if sw == 1:
                        for i in range(low, high):
                            scratch[np.uint64(to + i)] = x[np.uint64(source + i)]
                    else:
                        for i in range(low, high):
                            scratch[np.uint64(to + i)] = x[np.uint64(source + i * sw)]
                    for i in range(high, pitch):
                        scratch[to + i] = zero
                to += pitch


@jit(reassociate=True)
def _sum_taps(
    scratch: Array, w: Array, table: Array, weight: int, at: int, n: int, rows: int, pitch: int
) -> None:
    """The sums of all taps for `n` elements from `at` on, into the end of the scratch memory.

    Args:
        scratch: Phase planes, and room behind them.
        w: Weights, flat.
        table: Sizes of the window.
        weight: Where those of the plane begin.
        at: The first element, of a phase plane.
        n: How many.
        rows: Of a phase plane.
        pitch: Elements from row to row.
    """
    kh, kw = table[4], table[5]
    sh, sw = table[7], table[8]
    dh, dw = table[10], table[11]
    plane = rows * pitch
    total = scratch[scratch.size - max(n, 1) :]
    zero = w.dtype.type(0)
    if kh == 3 and kw == 3 and dw == 1 and sw <= 2:
        r0 = scratch[at : at + n + 2]
        tap = (dh % sh) * sw * plane + (dh // sh) * pitch + at
        r1 = scratch[tap : tap + n + 2]
        tap = (2 * dh % sh) * sw * plane + (2 * dh // sh) * pitch + at
        r2 = scratch[tap : tap + n + 2]
        w0, w1, w2 = w[weight], w[weight + 1], w[weight + 2]
        w3, w4, w5 = w[weight + 3], w[weight + 4], w[weight + 5]
        w6, w7, w8 = w[weight + 6], w[weight + 7], w[weight + 8]
        if sw == 1:
            for i in range(n):
                upper = r0[i] * w0 + r0[i + 1] * w1 + r0[i + 2] * w2
                middle = r1[i] * w3 + r1[i + 1] * w4 + r1[i + 2] * w5
                lower = r2[i] * w6 + r2[i + 1] * w7 + r2[i + 2] * w8
                total[i] = upper + middle + lower
        else:
            tap = plane + at
            o0 = scratch[tap : tap + n]
            tap = ((dh % sh) * sw + 1) * plane + (dh // sh) * pitch + at
            o1 = scratch[tap : tap + n]
            tap = ((2 * dh % sh) * sw + 1) * plane + (2 * dh // sh) * pitch + at
            o2 = scratch[tap : tap + n]
            for i in range(n):
                upper = r0[i] * w0 + o0[i] * w1 + r0[i + 1] * w2
                middle = r1[i] * w3 + o1[i] * w4 + r1[i + 1] * w5
                lower = r2[i] * w6 + o2[i] * w7 + r2[i + 1] * w8
                total[i] = upper + middle + lower
        return
    for i in range(n):
        total[i] = zero
    for a in range(kh):
        row = (a * dh % sh) * sw * plane + (a * dh // sh) * pitch + at
        left = 0
        if kw >= 5 and sw == 1 and dw == 1:
            w0, w1, w2 = w[weight], w[weight + 1], w[weight + 2]
            w3, w4 = w[weight + 3], w[weight + 4]
            r0 = scratch[row : row + n + 4]
            for i in range(n):
                near = r0[i] * w0 + r0[i + 1] * w1 + r0[i + 2] * w2
                total[i] += near + r0[i + 3] * w3 + r0[i + 4] * w4
            left = 5
        elif kw >= 5 and sw == 2 and dw == 1:
            w0, w1, w2 = w[weight], w[weight + 1], w[weight + 2]
            w3, w4 = w[weight + 3], w[weight + 4]
            r0 = scratch[row : row + n + 2]
            o0 = scratch[row + plane : row + plane + n + 1]
            for i in range(n):
                near = r0[i] * w0 + o0[i] * w1 + r0[i + 1] * w2
                total[i] += near + o0[i + 1] * w3 + r0[i + 2] * w4
            left = 5
        for b in range(left, kw):
            tap = row + (b * dw % sw) * plane + b * dw // sw
            value = w[weight + b]
            r0 = scratch[tap : tap + n]
            for i in range(n):
                total[i] += r0[i] * value
        weight += kw


class DepthwiseTaps(NamedTuple):
    """A depthwise convolution.

    Attributes:
        w: Weights (outputs, taps), flat.
        bias: One value per output channel; not read unless has_bias.
        table: `Window.table`, of depth 1.
        has_bias: 0 or 1.
        channels: Input channels.
        multiplier: Output channels per input channel.
    """

    w: KernelArray
    bias: KernelArray
    table: KernelArray
    has_bias: int
    channels: int
    multiplier: int


@jit
def depthwise(
    x: Array,
    taps: DepthwiseTaps,
    y: Array,
    memory: Array,
    activation: ActivationFields,
    tid: int,
    nt: int,
) -> None:
    """``y[n, o] = activation(x[n, o // multiplier] * w[o] + bias[o])``.

    Args:
        x: Input (N, channels, H, W), flat.
        taps: The convolution.
        y: Output (N, outputs, H, W), flat.
        memory: `MAX_THREADS` times `scratch_elements`.
        activation: What comes last.
        tid: This thread.
        nt: All threads; they share the input planes.
    """
    threads = min(nt, MAX_THREADS)
    if tid >= threads or y.size == 0:
        return
    w, bias, table, has_bias, channels, multiplier = taps
    size = memory.size // MAX_THREADS
    scratch = memory[tid * size : (tid + 1) * size]
    kh, kw, sh, sw = table[4], table[5], table[7], table[8]
    oh, ow = table[16], table[17]
    rows = oh + (kh - 1) * table[10] // sh
    pitch = ow + (kw - 1) * table[11] // sw
    step = max(1, BLOCK // pitch)
    code, a, b = activation.code, like(y[0], activation.alpha), like(y[0], activation.beta)
    planes = y.size // (oh * ow * multiplier)
    for plane in range(planes * tid // threads, planes * (tid + 1) // threads):
        _lay_phases(x, scratch, table, plane * table[1] * table[2], rows, pitch)
        for m in range(multiplier):
            o = plane % channels * multiplier + m
            offset = bias[o] if has_bias else y.dtype.type(0)
            out = (plane * multiplier + m) * oh * ow
            for first in range(0, oh, step):
                count = min(step, oh - first)
                n = count * pitch
                _sum_taps(scratch, w, table, o * kh * kw, first * pitch, n, rows, pitch)
                total = scratch[scratch.size - n :]
                target = y[out + first * ow : out + (first + count) * ow]
                for r in range(count):
                    for i in range(ow):
                        target[np.uint64(r * ow + i)] = total[np.uint64(r * pitch + i)] + offset
                if code:
                    activate(target, code, a, b)

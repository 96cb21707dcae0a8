"""Windows laid out as columns, so that a convolution becomes a matrix product, and back."""

from __future__ import annotations

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.kernel import jit


@jit
def im2col(
    x: Array,
    columns: Array,
    table: Array,
    channels: int,
    first_image: int,
    images: int,
    first_row: int,
    rows: int,
    tid: int,
    nt: int,
) -> None:
    """``columns[image, channel x tap, output pixel] = x`` under that tap, 0 in the padding.

    Args:
        x: Input (N, channels, D, H, W), flat.
        columns: Output (images, channels x taps, rows x output width), flat.
        table: `Window.table`.
        channels: Of the input.
        first_image: The first image to lay out.
        images: How many.
        first_row: The first row of output pixels (rows of all depths counted through).
        rows: How many.
        tid: This thread.
        nt: All threads; they share the lines of `columns`.
    """
    id_, ih, iw = table[0], table[1], table[2]
    kd, kh, kw = table[3], table[4], table[5]
    sd, sh, sw = table[6], table[7], table[8]
    dd, dh, dw = table[9], table[10], table[11]
    pd, ph, pw = table[12], table[13], table[14]
    oh, ow = table[16], table[17]
    taps = kd * kh * kw
    lines = images * channels * taps
    zero = x.dtype.type(0)
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        plane = line // taps
        tap = line - plane * taps
        a = tap // (kh * kw)
        b = tap // kw - a * kh
        shift = (tap % kw) * dw - pw
        plane += first_image * channels
        low = min(max(0, (sw - 1 - shift) // sw), ow)
        high = max(min(ow, (iw - 1 - shift) // sw + 1), low)
        for r in range(rows):
            z = (first_row + r) // oh
            y = (first_row + r) - z * oh
            z = z * sd - pd + a * dd
            y = y * sh - ph + b * dh
            to = (line * rows + r) * ow
            if z < 0 or z >= id_ or y < 0 or y >= ih:
                for i in range(ow):
                    columns[to + i] = zero
                continue
            source = ((plane * id_ + z) * ih + y) * iw + shift
            for i in range(low):
                columns[to + i] = zero
            if sw == 1:
                for i in range(low, high):
                    columns[np.uint64(to + i)] = x[np.uint64(source + i)]
            else:
                for i in range(low, high):
                    columns[np.uint64(to + i)] = x[np.uint64(source + i * sw)]
            for i in range(high, ow):
                columns[to + i] = zero


@jit
def col2im(
    columns: Array, y: Array, table: Array, first: int, planes: int, tid: int, nt: int
) -> None:
    """The transpose of `im2col`: every tap of every window is added to where it lies.

    Args:
        columns: Input (planes, taps, windows), flat.
        y: Output (planes, D, H, W), flat.
        table: `Window.table` of the window that slides over y.
        first: The plane of y that the first plane of columns belongs to.
        planes: How many planes to write; threads share them.
        tid: This thread.
        nt: All threads.
    """
    id_, ih, iw = table[0], table[1], table[2]
    kd, kh, kw = table[3], table[4], table[5]
    sd, sh, sw = table[6], table[7], table[8]
    dd, dh, dw = table[9], table[10], table[11]
    pd, ph, pw = table[12], table[13], table[14]
    od, oh, ow = table[15], table[16], table[17]
    taps = kd * kh * kw
    zero = y.dtype.type(0)
    for plane in range(planes * tid // nt, planes * (tid + 1) // nt):
        begin = (first + plane) * id_ * ih * iw
        for i in range(begin, begin + id_ * ih * iw):
            y[i] = zero
        for tap in range(taps):
            a = tap // (kh * kw)
            b = tap // kw - a * kh
            shift = (tap % kw) * dw - pw
            low = min(max(0, (sw - 1 - shift) // sw), ow)
            high = max(min(ow, (iw - 1 - shift) // sw + 1), low)
            for row in range(od * oh):
                z = row // oh
                r = (row - z * oh) * sh - ph + b * dh
                z = z * sd - pd + a * dd
                if z < 0 or z >= id_ or r < 0 or r >= ih:
                    continue
                source = ((plane * taps + tap) * od * oh + row) * ow
                to = begin + (z * ih + r) * iw + shift
                if sw == 1:
                    for i in range(low, high):
                        y[np.uint64(to + i)] += columns[np.uint64(source + i)]
                else:
                    for i in range(low, high):
                        y[np.uint64(to + i * sw)] += columns[np.uint64(source + i)]

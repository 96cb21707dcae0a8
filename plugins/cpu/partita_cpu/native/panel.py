"""Input pixels laid out for the tile kernels: padded, and in the arithmetic that they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.kernels.numba_jit import jit
from partita_cpu.native.invoke import address, call_narrow
from partita_cpu.native.plan import (
    ARITHMETIC,
    CELL,
    CHANNELS,
    DEPTH,
    DILATION_ACROSS,
    DILATION_DOWN,
    GROUP_CHANNELS,
    HEIGHT,
    LEFT,
    OUT_HEIGHT,
    OUT_WIDTH,
    PITCH,
    PLANE_BYTES,
    STEP,
    STRIDE_ACROSS,
    STRIDE_DOWN,
    TAPS_ACROSS,
    TAPS_DOWN,
    TOP,
    TRAIL,
    WIDTH,
)
from partita_cpu.native.table import NARROW


@jit
def _put(
    x: Array, source: int, n: int, panel: Array, to: int, padded: int, kernels: Array, p: Array
) -> Any:
    """`n` elements of x, then zeros up to `padded`, to element `to` of the panel."""
    if p[ARITHMETIC]:
        target = address(panel) + 2 * to
        place = address(x) + 4 * source
        return call_narrow(kernels[NARROW], (place, n, target, p[PLANE_BYTES], padded))
    for i in range(n):
        panel[np.uint64(to + i)] = x[np.uint64(source + i)]
    for i in range(n, padded):
        panel[to + i] = np.float32(0)
    return 0


@jit
def lay_halo(
    x: Array, panel: Array, kernels: Array, p: Array, group: int, first: int, stop: int
) -> int:
    """Image rows that the output rows `first` to `stop` need, padding included.

    Returns:
        The largest absolute value, as bits; 0 in float32.
    """
    height, width, channels = p[HEIGHT], p[WIDTH], p[CHANNELS]
    cell, pitch, left, taken = p[CELL], p[PITCH], p[LEFT], p[GROUP_CHANNELS]
    image = first // p[OUT_HEIGHT]
    top = first % p[OUT_HEIGHT] - p[TOP]
    rows = stop - first + (p[TAPS_DOWN] - 1) * p[DILATION_DOWN]
    largest = 0
    for r in range(rows):
        to = r * pitch * cell
        row = top + r
        if row < 0 or row >= height:
            _put(x, 0, 0, panel, to, pitch * cell, kernels, p)
            continue
        _put(x, 0, 0, panel, to, left * cell, kernels, p)
        to += left * cell
        source = (image * height + row) * width * channels + group * taken
        if cell == channels:
            largest = max(
                largest, _put(x, source, width * cell, panel, to, width * cell, kernels, p)
            )
        else:
            for i in range(width):
                found = _put(
                    x, source + i * channels, taken, panel, to + i * cell, cell, kernels, p
                )
                largest = max(largest, found)
        to += width * cell
        _put(x, 0, 0, panel, to, (pitch - left - width) * cell, kernels, p)
    _put(x, 0, 0, panel, rows * pitch * cell, p[TRAIL] * cell, kernels, p)
    return largest


@jit
def lay_columns(
    x: Array, panel: Array, kernels: Array, p: Array, group: int, first: int, stop: int
) -> int:
    """For each output pixel from `first` to `stop` all the elements that its sums are made of.

    Returns:
        The largest absolute value, as bits; 0 in float32.
    """
    height, width, channels, taken = p[HEIGHT], p[WIDTH], p[CHANNELS], p[GROUP_CHANNELS]
    down, across = p[TAPS_DOWN], p[TAPS_ACROSS]
    dilation = p[DILATION_ACROSS]
    run = down * across * taken
    padded = p[DEPTH] * STEP if p[ARITHMETIC] else run
    together = dilation == 1 and taken == channels
    largest = 0
    for pixel in range(first, stop):
        column = pixel % p[OUT_WIDTH]
        line = pixel // p[OUT_WIDTH]
        image = line // p[OUT_HEIGHT]
        top = (line % p[OUT_HEIGHT]) * p[STRIDE_DOWN] - p[TOP]
        left = column * p[STRIDE_ACROSS] - p[LEFT]
        to = (pixel - first) * padded
        end = to + padded
        for a in range(down):
            row = top + a * p[DILATION_DOWN]
            if row < 0 or row >= height:
                _put(x, 0, 0, panel, to, across * taken, kernels, p)
                to += across * taken
                continue
            source = (image * height + row) * width * channels + group * taken
            if together:
                low = min(max(0, -left), across)
                high = max(min(across, width - left), low)
                _put(x, 0, 0, panel, to, low * taken, kernels, p)
                at = source + (left + low) * channels
                n = (high - low) * taken
                rest = (across - low) * taken
                found = _put(x, at, n, panel, to + low * taken, rest, kernels, p)
                largest = max(largest, found)
                to += across * taken
                continue
            for b in range(across):
                place = left + b * dilation
                n = taken if 0 <= place < width else 0
                found = _put(x, source + place * channels, n, panel, to, taken, kernels, p)
                largest = max(largest, found)
                to += taken
        _put(x, 0, 0, panel, to, end - to, kernels, p)
    return largest

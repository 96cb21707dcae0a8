"""Copies the input of a panel for its tiles, padded and converted, unless it is read in place.

Of the forms that `tile_fields.SOURCE` names, `HALO` is a copy of image rows with padding, and
`COLUMNS` the windows of all pixels, one behind another (im2col).
"""

from __future__ import annotations

from typing import Any

from partita.lowering import Array
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    CELL,
    CHANNELS,
    DILATION_ACROSS,
    DILATION_DOWN,
    DIRECT,
    FIRST_SLICE,
    GROUP_CHANNELS,
    HALO,
    HEIGHT,
    IN_PLACE,
    LAST_SLICE,
    LEFT,
    OUT_HEIGHT,
    OUT_WIDTH,
    PADDED,
    PITCH,
    PLANAR,
    PLANE_BYTES,
    ROW,
    SCALED,
    SLICE_BYTES,
    SLICE_STEP,
    SOLID,
    SOURCE,
    STRIDE_ACROSS,
    STRIDE_DOWN,
    TAPS_ACROSS,
    TAPS_DOWN,
    TOP,
    TRAIL,
    WIDTH,
    X_BYTES,
    X_FIRST,
    X_PITCH,
)
from partita_cpu.gemm.tile_kernels import INTERLEAVE, NARROW, NARROW_ROWS, ROUND, SCALE
from partita_cpu.jit.intrinsics.address_call import (
    call_interleave,
    call_narrow,
    call_narrow_rows,
    call_round,
    call_scale,
)
from partita_cpu.jit.loop_kernel import loop

# Addresses and not arrays are handed on here: numba passes an array as seven numbers and counts
# references, which takes longer than to copy a short run.

Scaling = tuple[int, int, Any, Any]


@loop(inline=True)
def copy_run(copy: int, x: int, n: int, to: int, plane: int, padded: int) -> Any:
    """Copies elements to a panel; returns the largest absolute value, as bits.

    Args:
        copy: Address of the kernel that copies, and splits floats in parts of bfloat16.
        x: Address of the first element.
        n: Elements to copy.
        to: Address to write to.
        plane: Bytes from one part of an element to the next.
        padded: Elements to write; those behind `n` are 0.
    """
    if padded <= 0:
        return 0
    return call_narrow(copy, (x, n, to, plane, padded))


@loop(inline=True)
def copy_pixel(
    kernels: Array,
    p: Array,
    x: int,
    n: int,
    to: int,
    padded: int,
    scaling: Scaling,
    channel: int,
) -> Any:
    """As `copy_run` for the channels of one pixel, scaled if the plan says so.

    Args:
        kernels: `tile_kernels.tile_kernels`.
        p: `Plan.table`.
        x: Address of the pixel's first channel.
        n: Channels to copy.
        to: Address to write to.
        padded: Elements to write; those behind `n` are 0.
        scaling: As for `copy_rows_padded`.
        channel: The first of the channels, which `scaling` is read from on.
    """
    if not p[SCALED]:
        return copy_run(kernels[NARROW], x, n, to, p[PLANE_BYTES], padded)
    if padded <= 0:
        return 0
    factor, shift, low, high = scaling
    place = 4 * channel
    run = (x, n, to, p[PLANE_BYTES], padded, factor + place, shift + place, low, high)
    return call_scale(kernels[SCALE], run)


@loop
def copy_rows_padded(
    x: int,
    panel: int,
    kernels: Array,
    p: Array,
    scaling: Scaling,
    group: int,
    first: int,
    stop: int,
) -> Any:
    """Image rows that the output rows `first` to `stop` need, padding included.

    Args:
        x: Address of the input.
        panel: Address to write to.
        kernels: `tile_kernels.tile_kernels`.
        p: `Plan.table`.
        scaling: Addresses of a factor and a summand per channel, and bounds; read if the plan says
            so.
        group: The group whose channels are taken.
        first: First output row, counted through all images.
        stop: Behind the last one, which is of the same image.

    Returns:
        The largest absolute value, as bits; 0 in float32.
    """
    height, width, channels, pixel = p[HEIGHT], p[WIDTH], p[CHANNELS], p[X_PITCH]
    cell, pitch, left, taken = p[CELL], p[PITCH], p[LEFT], p[GROUP_CHANNELS]
    copy, plane = kernels[NARROW], p[PLANE_BYTES]
    unit, wide = 2 if p[ARITHMETIC] else 4, p[X_BYTES]
    image = first // p[OUT_HEIGHT]
    top = (first - image * p[OUT_HEIGHT]) * p[STRIDE_DOWN] - p[TOP]
    rows = (stop - first - 1) * p[STRIDE_DOWN] + 1 + (p[TAPS_DOWN] - 1) * p[DILATION_DOWN]
    largest = 0
    to, r = panel, 0
    while r < rows:
        row = top + r
        if row < 0 or row >= height:
            copy_run(copy, x, 0, to, plane, pitch * cell)
            to += pitch * cell * unit
            r += 1
            continue
        # Without padding between them, lines lie behind one another here as there.
        lines = min(rows - r, height - row) if pitch == width else 1
        pixels = lines * width
        copy_run(copy, x, 0, to, plane, left * cell)
        to += left * cell * unit
        source = x + wide * ((image * height + row) * width * pixel + p[X_FIRST] + group * taken)
        if p[PLANAR]:
            apart = 4 * p[PLANAR]
            source = x + image * channels * apart + 4 * (row * width + p[X_FIRST])
            largest = max(
                largest, call_interleave(kernels[INTERLEAVE], (source, apart, pixels, to, plane))
            )
        elif cell == taken == channels and p[SOLID]:
            found = copy_run(copy, source, pixels * cell, to, plane, pixels * cell)
            largest = max(largest, found)
        else:
            for i in range(pixels):
                at, place = source + wide * i * pixel, to + i * cell * unit
                found = copy_pixel(kernels, p, at, taken, place, cell, scaling, group * taken)
                largest = max(largest, found)
        to += pixels * cell * unit
        copy_run(copy, x, 0, to, plane, (pitch - left - width) * cell)
        to += (pitch - left - width) * cell * unit
        r += lines
    copy_run(copy, x, 0, to, plane, p[TRAIL] * cell)
    return largest


@loop
def copy_windows(
    x: int,
    panel: int,
    kernels: Array,
    p: Array,
    scaling: Scaling,
    group: int,
    first: int,
    stop: int,
) -> Any:
    """For each output pixel from `first` to `stop` all the elements that its sums are made of.

    Args:
        x: Address of the image.
        panel: Address of the panel.
        kernels: Addresses of kernels that copy.
        p: The table.
        scaling: Factors of the image's channels.
        group: The group of channels.
        first: The first output pixel.
        stop: Behind the last one.

    Returns:
        The largest bit pattern of an absolute value.
    """
    if kernels[NARROW_ROWS] and _reads_single_pixels(p):
        return _copy_pixels(x, panel, kernels[NARROW_ROWS], p, group, first, stop)
    height, width, pixel, taken = p[HEIGHT], p[WIDTH], p[X_PITCH], p[GROUP_CHANNELS]
    down, across = p[TAPS_DOWN], p[TAPS_ACROSS]
    dilation, dilation_down = p[DILATION_ACROSS], p[DILATION_DOWN]
    copy, plane = kernels[NARROW], p[PLANE_BYTES]
    unit, wide = 2 if p[ARITHMETIC] else 4, p[X_BYTES]
    run = down * across * taken
    padded = p[PADDED]
    together = dilation == 1 and taken == p[CHANNELS] and p[SOLID]
    line = first // p[OUT_WIDTH]
    column = first - line * p[OUT_WIDTH]
    image = line // p[OUT_HEIGHT]
    line -= image * p[OUT_HEIGHT]
    largest = 0
    for pixel_number in range(stop - first):
        to = panel + pixel_number * p[ROW]
        top = line * p[STRIDE_DOWN] - p[TOP]
        left = column * p[STRIDE_ACROSS] - p[LEFT]
        low = min(max(0, -left), across)
        high = max(min(across, width - left), low)
        for a in range(down):
            row = top + a * dilation_down
            if row < 0 or row >= height:
                copy_run(copy, x, 0, to, plane, across * taken)
                to += across * taken * unit
                continue
            line_start = (image * height + row) * width * pixel
            source = x + wide * (line_start + p[X_FIRST] + group * taken)
            if together:
                copy_run(copy, x, 0, to, plane, low * taken)
                to += low * taken * unit
                at = source + wide * (left + low) * pixel
                n, rest = (high - low) * taken, (across - low) * taken
                if a == down - 1:
                    rest += padded - run
                found = copy_run(copy, at, n, to, plane, rest)
                largest = max(largest, found)
                to += (across - low) * taken * unit
                continue
            for b in range(across):
                place = left + b * dilation
                n = taken if 0 <= place < width else 0
                at = source + wide * place * pixel
                if n:
                    found = copy_pixel(kernels, p, at, n, to, taken, scaling, group * taken)
                else:
                    found = copy_run(copy, x, 0, to, plane, taken)
                largest = max(largest, found)
                to += taken * unit
        lowest = top + (down - 1) * dilation_down
        if not together or not 0 <= lowest < height:
            copy_run(copy, x, 0, to, plane, padded - run)
        column += 1
        if column == p[OUT_WIDTH]:
            column = 0
            line += 1
            if line == p[OUT_HEIGHT]:
                line = 0
                image += 1
    return largest


@loop(inline=True)
def copy_input(
    x: int,
    panel: int,
    kernels: Array,
    p: Array,
    scaling: Scaling,
    group: int,
    rows: tuple[int, int, int],
) -> Any:
    """Where tiles find their input, laid out if need be, and its largest absolute value if so.

    Args:
        x: Address of the input.
        panel: Address to lay it out at.
        kernels: `tile_kernels.tile_kernels`.
        p: `Plan.table`.
        scaling: What happens to the input first.
        group: Whose channels are taken.
        rows: First row of the panel; which of its rows are laid out, from there on, and behind
            which one that ends.
    """
    unit, first, last = rows[0], rows[0] + rows[1], rows[0] + rows[2]
    if p[IN_PLACE]:
        return x + _place_of_line(p, unit, group), 0
    if p[SOURCE] == DIRECT:
        first = p[X_FIRST] + group * p[GROUP_CHANNELS]
        return x + unit * p[ROW] + p[X_BYTES] * first, 0
    halo, largest = p[SOURCE] == HALO, 0
    beyond = rows[1] * (line_bytes(p) if halo else p[ROW])
    for n in range(p[FIRST_SLICE], p[LAST_SLICE]):
        source, to = x + n * p[SLICE_STEP], panel + n * p[SLICE_BYTES] + beyond
        if halo:
            found = copy_rows_padded(source, to, kernels, p, scaling, group, first, last)
        else:
            found = copy_windows(source, to, kernels, p, scaling, group, first, last)
        largest = max(largest, found)
    if kernels[ROUND]:
        call_round(kernels[ROUND], (panel, p[PLANE_BYTES] // 4))
    return panel, largest


@loop(inline=True)
def _place_of_line(p: Array, unit: int, group: int) -> Any:
    """Bytes to what the first tap meets under the first pixel of a line, if the image went on."""
    image = unit // p[OUT_HEIGHT]
    line = (unit - image * p[OUT_HEIGHT]) * p[STRIDE_DOWN] - p[TOP]
    pixel = (image * p[HEIGHT] + line) * p[WIDTH] - p[LEFT]
    return 4 * (pixel * p[X_PITCH] + p[X_FIRST] + group * p[GROUP_CHANNELS])


@loop(inline=True)
def line_bytes(p: Array) -> Any:
    """Of a laid out image, from the input of one row of the result to that of the next."""
    return p[STRIDE_DOWN] * p[PITCH] * p[CELL] * (2 if p[ARITHMETIC] else 4)


@loop(inline=True)
def _reads_single_pixels(p: Array) -> Any:
    """Whether every window is one pixel of the image, which is not scaled."""
    single = p[TAPS_DOWN] == 1 and p[TAPS_ACROSS] == 1 and p[SCALED] == 0
    begins = p[TOP] == 0 and p[LEFT] == 0
    right, bottom = (p[OUT_WIDTH] - 1) * p[STRIDE_ACROSS], (p[OUT_HEIGHT] - 1) * p[STRIDE_DOWN]
    return single and begins and right < p[WIDTH] and bottom < p[HEIGHT]


@loop
def _copy_pixels(
    x: int, panel: int, narrow: int, p: Array, group: int, first: int, stop: int
) -> Any:
    """What `copy_windows` does with single pixels: those of a line, or all, in one call.

    Args:
        x: Address of the image.
        panel: Address of the panel.
        narrow: Address of the kernel that makes rows bfloat16.
        p: The table.
        group: The group of channels.
        first: The first output pixel.
        stop: Behind the last one.

    Returns:
        The largest bit pattern of an absolute value.
    """
    taken, plane, padded = p[GROUP_CHANNELS], p[PLANE_BYTES], p[PADDED]
    pixel_bytes = 4 * p[X_PITCH]
    source = x + 4 * (p[X_FIRST] + group * taken)
    width, height, apart = p[OUT_WIDTH], p[OUT_HEIGHT], p[STRIDE_ACROSS]
    if p[WIDTH] == width and p[HEIGHT] == height:
        # Every pixel is read: lines lie behind one another.
        width, height, apart = stop, 1, 1
    largest, to = 0, panel
    while first < stop:
        line = first // width
        column = first - line * width
        image = line // height
        above = image * p[HEIGHT] + (line - image * height) * p[STRIDE_DOWN]
        count = min(width - column, stop - first)
        at = source + (above * p[WIDTH] + column * apart) * pixel_bytes
        rows = at, apart * pixel_bytes, count, taken, to, p[ROW], plane, padded
        largest = max(largest, call_narrow_rows(narrow, rows))
        to += count * p[ROW]
        first += count
    return largest

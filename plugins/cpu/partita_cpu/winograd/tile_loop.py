"""The compiled loop over tiles of Winograd's minimal filtering; `tile_plan` has its sizes.

Tiles are numbered through the rows of all images. Threads share them panel by panel: the pixels of
a panel are transformed, then one column of outputs after another is multiplied at all points and
finished, so that what is transformed stays in the second-level cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.program import flattened
from partita_cpu.gemm.input_panel import Scaling, copy_pixel, copy_run
from partita_cpu.gemm.macrokernel.tile_epilogue import finish_rows
from partita_cpu.gemm.product_records import (
    Column,
    Epilogue,
    InputScaling,
    Panel,
    PanelContext,
    ProductAddresses,
    ProductArrays,
    TileContext,
    addresses_of,
    own_memory,
)
from partita_cpu.gemm.shares import own_share
from partita_cpu.gemm.tile_fields import (
    BLOCKS,
    CHANNELS,
    HEIGHT,
    LEFT,
    OUT_HEIGHT,
    OUT_WIDTH,
    OUTPUTS,
    SCALED,
    TILE_COLUMNS,
    TILE_ROWS,
    TOP,
    WIDTH,
    X_BYTES,
    X_FIRST,
    X_PITCH,
    Y_BYTES,
    Y_FIRST,
    Y_PITCH,
)
from partita_cpu.gemm.tile_kernels import FIRST, NARROW
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_input_transform,
    call_output_transform,
    call_tile,
    float_at,
    half_at,
)
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.epilogue import VECTORS
from partita_cpu.scalar.half_floats import bfloat16_to_float32
from partita_cpu.threads.claims import LINE, claim, least_taken, word_of
from partita_cpu.winograd.tile_plan import (
    ACROSS,
    DEPTH,
    DOWN,
    IN_PAIRS,
    MEMORY_BYTES,
    PANEL,
    PANELS,
    PIXEL_BYTES,
    PIXELS_AT,
    PLANE_BYTES,
    POINT_BYTES,
    ROW_BYTES,
    RUN,
    SHARES,
    SHEET_AT,
    SIDE,
    SUM_PLANE_BYTES,
    SUMS_AT,
    TAPS_AT,
    TILES,
    TRANSFORM_COPIED_INPUT,
    TRANSFORM_INPUT,
    TRANSFORM_OUTPUT,
    ZEROS_AT,
)

_TAPS = 3


class WinogradContext(NamedTuple):
    """What belongs to a convolution by minimal filtering, beside what every product needs.

    Attributes:
        kernels: `tile_plan.transform_kernels`.
        products: `tile_plan.point_kernels`.
        sizes: `WinogradPlan.table`.
        recovery: `point_weights.recovery`, flat.
        place: Zero: where the only run of a row begins.
    """

    kernels: Any
    products: Any
    sizes: Any
    recovery: Any
    place: Any


class _ThreadContext(NamedTuple):
    """The same for one thread.

    Attributes:
        memory: Address of its scratch memory.
        kernels: `WinogradContext.kernels`.
        products: `WinogradContext.products`.
        sizes: `WinogradContext.sizes`.
        recovery: `WinogradContext.recovery`.
        place: Address of the place of a run.
    """

    memory: int
    kernels: Array
    products: Array
    sizes: Array
    recovery: Array
    place: int


@loop(effort=Effort.LOOPS)
def filter_tiles(
    x: Array,
    arrays: ProductArrays,
    scaling: InputScaling,
    context: TileContext,
    transforms: WinogradContext,
    epilogue: Epilogue,
    tid: int,
    nt: int,
) -> None:
    """What `multiply_tiles` computes of a convolution of 3 x 3 taps, by minimal filtering.

    Args:
        x: Input pixels, flat; bfloat16 as uint16.
        arrays: Transformed weights, bias, residual, result.
        scaling: What happens to x first, if the plan says so.
        context: Memory, kernels and plan.
        transforms: What is needed beside it.
        epilogue: What happens to sums.
        tid: This thread.
        nt: All threads; they share panels of tiles and columns of outputs.
    """
    p, sizes, scratch = context.p, transforms.sizes, context.scratch
    threads = min(nt, scratch.size // sizes[MEMORY_BYTES], context.claims.size // LINE)
    if tid >= threads:
        return
    memory = own_memory(scratch, sizes[MEMORY_BYTES], tid)
    zeros = floats_at(memory + sizes[ZEROS_AT], p[TILE_COLUMNS])
    for i in range(zeros.size):
        zeros[i] = np.float32(0)
    bounds_in = np.float32(scaling.low), np.float32(scaling.high)
    scales = (address(scaling.factor), address(scaling.shift), bounds_in[0], bounds_in[1])
    places = addresses_of(arrays)
    own = _ThreadContext(
        memory,
        transforms.kernels,
        transforms.products,
        sizes,
        transforms.recovery,
        address(transforms.place),
    )
    panels = PanelContext(memory, address(context.offsets), context.kernels, p)
    words, share = address(context.claims), tid
    while share >= 0:
        top, bottom, first, last = own_share(
            sizes[SHARES], share, threads, sizes[PANELS], p[BLOCKS]
        )
        word = word_of(words, share) if threads > 1 else 0
        pieces = bottom - top if last > first else 0
        more = True
        while more:
            piece, behind = 0, pieces
            if word:
                piece, behind = claim(word, pieces, 1, share != tid)
            more = word != 0 and piece < behind
            for number in range(top + piece, top + behind):
                _transform_input(address(x), scales, panels, own, number)
                for block in range(first, last):
                    _multiply_column(places, panels, own, number, block)
                    _transform_output(
                        address(x), scales, places, panels, own, epilogue, number, block
                    )
        share = least_taken(words, threads) if threads > 1 else -1


@loop(inline=True)
def _place_of(tile: int, sizes: Array) -> Any:
    """Image, row and column of tiles."""
    line = tile // sizes[ACROSS]
    image = line // sizes[DOWN]
    return image, line - image * sizes[DOWN], tile - line * sizes[ACROSS]


@loop
def _transform_input(
    x: int, scaling: Scaling, context: PanelContext, own: _ThreadContext, number: int
) -> None:
    """Transforms the pixels of a panel: a row of channels for each tile at each point."""
    p, sizes = context.p, own.sizes
    side, first = sizes[SIDE], number * sizes[PANEL]
    n = side + _TAPS - 1
    stop, tile = min(first + sizes[PANEL], sizes[TILES]), first
    pixel = p[X_BYTES] * p[X_PITCH]
    while tile < stop:
        image, row, column = _place_of(tile, sizes)
        top, left = row * side - p[TOP], column * side - p[LEFT]
        to = own.memory + (tile - first) * sizes[ROW_BYTES]
        inside = top >= 0 and top + n <= p[HEIGHT] and left >= 0 and left + n <= p[WIDTH]
        if inside and p[SCALED] == 0:
            run = min(stop - tile, sizes[ACROSS] - column, (p[WIDTH] - n - left) // side + 1)
            at = x + ((image * p[HEIGHT] + top) * p[WIDTH] + left) * pixel + p[X_BYTES] * p[X_FIRST]
            kernel, apart, line = own.kernels[TRANSFORM_INPUT], pixel, p[WIDTH] * pixel
        else:
            run, at = 1, own.memory + sizes[PIXELS_AT]
            kernel, apart, line = (
                own.kernels[TRANSFORM_COPIED_INPUT],
                sizes[PIXEL_BYTES],
                n * sizes[PIXEL_BYTES],
            )
            _copy_pixels(x, scaling, context, own, tile)
        rest = (to, sizes[ROW_BYTES], sizes[PLANE_BYTES])
        call_input_transform(kernel, (at, line, apart, run, p[CHANNELS], *rest))
        tile += run


@loop
def _copy_pixels(
    x: int, scaling: Scaling, context: PanelContext, own: _ThreadContext, tile: int
) -> None:
    """Copies the pixels of a tile in float32, padding too, and scales them if need be."""
    p, sizes, kernels = context.p, own.sizes, context.kernels
    n = sizes[SIDE] + _TAPS - 1
    image, row, column = _place_of(tile, sizes)
    top, left = row * sizes[SIDE] - p[TOP], column * sizes[SIDE] - p[LEFT]
    to, channels = own.memory + sizes[PIXELS_AT], p[CHANNELS]
    for down in range(top, top + n):
        for across in range(left, left + n):
            if 0 <= down < p[HEIGHT] and 0 <= across < p[WIDTH]:
                pixel = (image * p[HEIGHT] + down) * p[WIDTH] + across
                at = x + p[X_BYTES] * (pixel * p[X_PITCH] + p[X_FIRST])
                copy_pixel(kernels, p, at, channels, to, channels, scaling, 0)
            else:
                copy_run(kernels[NARROW], x, 0, to, 0, channels)
            to += sizes[PIXEL_BYTES]


@loop(effort=Effort.LOOPS)
def _multiply_column(
    places: ProductAddresses,
    context: PanelContext,
    own: _ThreadContext,
    number: int,
    block: int,
) -> None:
    """Multiplies a panel's channels by the weights of a column of outputs, at every point."""
    kernels, p, sizes = own.products, context.p, own.sizes
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    side = sizes[SIDE]
    points = (side + _TAPS - 1) * (side + _TAPS - 1)
    count = min(sizes[PANEL], sizes[TILES] - number * sizes[PANEL])
    pieces = -(-count // p[TILE_ROWS])
    even, longer = count // pieces, count % pieces
    row, weight_bytes = sizes[ROW_BYTES], sizes[POINT_BYTES]
    of_rows = FIRST if _is_half(p, block) else 0
    weights = places.w + block * points * weight_bytes
    for point in range(points):
        source = own.memory + point * sizes[PLANE_BYTES]
        to = own.memory + sizes[SUMS_AT] + point * sizes[SUM_PLANE_BYTES]
        for n in range(pieces):
            rows = even + (1 if n < longer else 0)
            ahead = weights
            if point + 1 < points or block + 1 < p[BLOCKS]:
                ahead += weight_bytes + min(n, 3) * (weight_bytes // 4)
            sums = (source, row, own.place, 1, sizes[DEPTH], weights, 0, rows, 0, ahead)
            call_tile(kernels[of_rows + rows], (*sums, to, 0, 0, 0, 0, 0, lowest, highest, 0))
            source += rows * row
            to += rows * 4 * p[TILE_COLUMNS]
        weights += weight_bytes


@loop(inline=True)
def _is_half(p: Array, block: int) -> Any:
    """Whether the outputs of a column fit the first vector of its tiles."""
    return 2 * (p[OUTPUTS] - block * p[TILE_COLUMNS]) <= p[TILE_COLUMNS]


@loop
def _transform_output(
    x: int,
    scaling: Scaling,
    places: ProductAddresses,
    context: PanelContext,
    own: _ThreadContext,
    epilogue: Epilogue,
    number: int,
    block: int,
) -> None:
    """Makes results of the sums of a panel and a column of outputs, and finishes them.

    Args:
        x: Address of the image.
        scaling: Factors of the image's channels.
        places: Addresses of weights, bias, residual and result.
        context: What holds for all panels.
        own: What this thread has.
        epilogue: What is done with sums.
        number: The panel.
        block: The column of outputs.
    """
    p, sizes = context.p, own.sizes
    side, first, columns = sizes[SIDE], number * sizes[PANEL], p[TILE_COLUMNS]
    stop, tile = min(first + sizes[PANEL], sizes[TILES]), first
    outputs = min(columns, p[OUTPUTS] - block * columns)
    at = p[Y_BYTES] * (p[Y_FIRST] + block * columns)
    column = Column(0, places.bias + 4 * block * columns, outputs, at)
    sheet, zeros = own.memory + sizes[SHEET_AT], own.memory + sizes[ZEROS_AT]
    width, vectors = p[OUT_WIDTH], 1 if _is_half(p, block) else VECTORS
    while tile < stop:
        image, down, across = _place_of(tile, sizes)
        run = min(stop - tile, sizes[ACROSS] - across, sizes[RUN])
        sums = own.memory + sizes[SUMS_AT] + 4 * (tile - first) * columns
        line = 4 * run * side * columns
        found = sums, sizes[SUM_PLANE_BYTES], run, sheet, line, vectors
        odd = call_output_transform(own.kernels[TRANSFORM_OUTPUT], found)
        if odd:
            _sum_directly(x, scaling, places, context, own, tile, run, block)
        pixel = across * side
        for n in range(min(side, p[OUT_HEIGHT] - down * side)):
            start = (image * p[OUT_HEIGHT] + down * side + n) * width
            panel = Panel(
                sheet + n * line,
                zeros,
                0,
                False,
                1,
                0,
                0,
                0,
                0,
                0,
                width,
                width,
                start,
                p[Y_BYTES] * p[Y_PITCH],
            )
            rows = min(run * side, width - pixel)
            finish_rows(rows, 0, pixel, panel.tile, places, panel, column, context, epilogue)
        tile += run


@loop
def _sum_directly(
    x: int,
    scaling: Scaling,
    places: ProductAddresses,
    context: PanelContext,
    own: _ThreadContext,
    tile: int,
    run: int,
    block: int,
) -> None:
    """Sums of tiles as they are defined, where some of the transformed ones are not finite.

    Infinity and NaN, and what overflows where it is transformed, would reach all results of a
    tile. The weights are those that were transformed but for rounding; what is no larger than
    that is zero, which matters where it meets infinity.

    Args:
        x: Address of the image.
        scaling: Factors of the image's channels.
        places: Addresses of weights, bias, residual and result.
        context: What holds for all panels.
        own: What this thread has.
        tile: The first tile.
        run: How many.
        block: The column of outputs.
    """
    p, sizes = context.p, own.sizes
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    side, channels, row = sizes[SIDE], p[CHANNELS], sizes[PIXEL_BYTES]
    n, kernel = side + _TAPS - 1, context.kernels[side]
    of_tile = 4 * side * p[TILE_COLUMNS]
    weights = places.w + block * n * n * sizes[POINT_BYTES]
    taps = own.memory + sizes[TAPS_AT]
    for tap in range(_TAPS * _TAPS):
        down, across = tap // _TAPS, tap % _TAPS
        _recover(weights, p, own, down, across, taps)
        for number in range(run):
            _copy_pixels(x, scaling, context, own, tile + number)
            for line in range(side):
                pixels = own.memory + sizes[PIXELS_AT] + ((line + down) * n + across) * row
                sums = own.memory + sizes[SHEET_AT] + (line * run + number) * of_tile
                product = (pixels, row, own.place, 1, channels, taps, 0, side)
                start = sums if tap else 0
                rest = (sums, 0, 0, 0, 0, 0, lowest, highest, 0)
                call_tile(kernel, (*product, start, taps, *rest))


_NOISE, _NOISE_OF_PAIRS = 2.0**-21, 2.0**-8
"""A weight that is so much smaller than what it is the difference of may as well be zero."""


@loop
def _recover(points: int, p: Array, own: _ThreadContext, down: int, across: int, to: int) -> None:
    """The weights of one tap of a column of outputs, out of those at the points.

    Args:
        points: Address of those of the first point.
        p: `Plan.table`.
        own: Sizes, and the matrix.
        down: Row of the tap.
        across: Its column.
        to: Address where they are put, as tile kernels of float32 read them.
    """
    n, matrix, in_pairs = own.sizes[SIDE] + _TAPS - 1, own.recovery, own.sizes[IN_PAIRS]
    top, bottom = _points_of(down, n)
    left, right = _points_of(across, n)
    noise = _NOISE_OF_PAIRS if in_pairs else _NOISE
    columns = p[TILE_COLUMNS]
    taps = floats_at(to, p[CHANNELS] * columns)
    for at in range(taps.size):
        total, size = 0.0, 0.0
        for i in range(top, bottom):
            for j in range(left, right):
                factor = matrix[down * n + i] * matrix[across * n + j]
                point = points + (i * n + j) * own.sizes[POINT_BYTES]
                if in_pairs:
                    channel = at // columns
                    place = 2 * (channel // 2 * columns + at % columns) + channel % 2
                    value = bfloat16_to_float32(half_at(point + 2 * place))
                else:
                    value = float_at(point + 4 * at)
                term = factor * value
                total += term
                size += abs(term)
        taps[at] = np.float32(total if abs(total) > noise * size else 0.0)


@loop(inline=True)
def _points_of(tap: int, n: int) -> Any:
    """The points that `recovery` takes a tap from: the first one, and behind the last."""
    if tap == 0:
        return 0, 1
    return (n - 3, n - 1) if tap == 1 else (n - 1, n)


_FLOATS, _SHORTS = np.zeros(0, np.float32), np.zeros(0, np.uint16)
_BYTES, _WORDS = np.zeros(0, np.uint8), np.zeros(0, np.int64)
_CONVOLUTION = (
    _FLOATS,
    ProductArrays(_SHORTS, _FLOATS, _FLOATS, _FLOATS),
    InputScaling(_FLOATS, _FLOATS),
    TileContext(_BYTES, *[_WORDS] * 4),
    WinogradContext(_WORDS, _WORDS, _WORDS, np.zeros(0), _WORDS),
    Epilogue(0, 0.0, 0.0, 0, 0, 0.0, 0.0),
)
CALLS = ((filter_tiles, flattened(_CONVOLUTION)),)
"""What most models need of what is compiled here, and arguments like those it is called with."""

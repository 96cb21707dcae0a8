"""The loop over tiles: what every matrix product and convolution with packed weights runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.program import flattened
from partita_cpu.gemm.input_panel import Scaling, copy_rows_padded, copy_windows
from partita_cpu.gemm.nonfinite import LARGEST, exact_tile
from partita_cpu.gemm.product_records import (
    ALL_TILES,
    Epilogue,
    InputScaling,
    PanelContext,
    ProductAddresses,
    ProductArrays,
    TileContext,
    TileRange,
)
from partita_cpu.gemm.shares import (
    Area,
    area_of,
    panel_end,
    pieces_of,
    pieces_of_column,
    rows_under,
    tiles_of,
)
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    BLOCK_BYTES,
    BLOCKS,
    CELL,
    CHUNK,
    COLUMN_STEP,
    DEPTH,
    DILATION_ACROSS,
    DILATION_DOWN,
    DIRECT,
    EVEN,
    FIRST_LAID,
    FLAT,
    GROUP_CHANNELS,
    GROUP_OUTPUTS,
    HALO,
    HEIGHT,
    IN_PLACE,
    LAST_LAID,
    LEAST_TILES,
    LEFT,
    OUT_HEIGHT,
    OUT_WIDTH,
    PARTIAL_BYTES,
    PITCH,
    PLANE_BYTES,
    RESULT_STEP,
    RESULTS,
    ROW,
    RUN,
    SLICE_BYTES,
    SLICE_STEP,
    SLICES,
    SOURCE,
    STEP_BYTES,
    STRIDE_ACROSS,
    STRIDE_DOWN,
    TAP_BYTES,
    TAPS,
    TAPS_ACROSS,
    TAPS_DOWN,
    THREAD_BYTES,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    TOP,
    W_FIRST,
    WIDTH,
    X_BYTES,
    X_FIRST,
    X_PITCH,
    Y_BYTES,
    Y_FIRST,
    Y_PITCH,
    ZERO_BYTES,
)
from partita_cpu.gemm.tile_kernels import (
    ACTIVATE,
    ACTIVATE_NARROW,
    CONFIG,
    CONFIGURE,
    EPILOGUE,
    EPILOGUE_F32,
    FIRST,
    RELEASE,
    ROUND,
    WIDE,
    WIDEN,
    Arithmetic,
)
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_activate,
    call_activate_narrow,
    call_convert,
    call_epilogue,
    call_plain,
    call_round,
    call_tile,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.activations import activate_floats
from partita_cpu.threads.claims import LINE, claim, least_taken, word_of

_LOWEST, _HIGHEST = np.float32(-np.inf), np.float32(np.inf)
_FETCHED = 4
"""A tile asks for one in so many of the bytes of weights that it reads."""
_MANY = 3
"""Tiles from which on weights are widened once for all of them."""
_SPLIT = int(Arithmetic.BF16X3)  # this and those beyond it have several planes


@loop(drives=True)
def multiply_tiles(
    x: Array,
    arrays: ProductArrays,
    scaling: InputScaling,
    context: TileContext,
    epilogue: Epilogue,
    tid: int,
    nt: int,
) -> None:
    """``y = activation(min(max(conv(x, w) + bias + residual, low), high))``, channels last.

    Tiles are finished where they are computed, unless the activation needs more than bounds, a gate
    and the kernel in the place of `ACTIVATE`, or rows of a tile lie between image rows. Sums that
    an activation follows and that end in bfloat16 are stored first.

    Args:
        x: Input pixels, flat; bfloat16 as uint16.
        arrays: Weights, bias, residual, result.
        scaling: What happens to x first, if the plan says so.
        context: Memory, kernels and plan.
        epilogue: What happens to sums.
        tid: This thread.
        nt: All threads; they share rows and columns of tiles.
    """
    kernels, p, scratch = context.kernels, context.p, context.scratch
    threads = min(nt, scratch.size // p[THREAD_BYTES], context.claims.size // LINE)
    if tid >= threads:
        return
    if kernels[CONFIGURE]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    bounds_in = np.float32(scaling.low), np.float32(scaling.high)
    scales = (address(scaling.factor), address(scaling.shift), bounds_in[0], bounds_in[1])
    memory = own_memory(scratch, p[THREAD_BYTES], tid)
    own = PanelContext(memory, address(context.offsets), kernels, p)
    places, words, share = addresses_of(arrays), address(context.claims), tid
    while share >= 0:
        word = word_of(words, share) if threads > 1 else 0
        area = area_of(p, share, threads)
        _multiply_area(address(x), places, scales, own, epilogue, area, word, share != tid)
        share = least_taken(words, threads) if threads > 1 else -1
    if kernels[CONFIGURE]:
        call_plain(kernels[RELEASE], (0,))


@loop(inline=True)
def _multiply_area(
    x: int,
    places: ProductAddresses,
    scales: Scaling,
    own: PanelContext,
    epilogue: Epilogue,
    area: Area,
    word: int,
    from_end: bool,
) -> None:
    """Computes tiles of a share as long as some are left, panel by panel, there column by column.

    Args:
        x: Address of the input.
        places: Weights, bias, residual, result.
        scales: What happens to the input first.
        own: Memory, kernels and plan.
        epilogue: What happens to sums.
        area: The share.
        word: Where threads note which of its tiles they take; 0: there are no others.
        from_end: Whether the share is another thread's.
    """
    kernels, p = own.kernels, own.p
    pieces = pieces_of(area, kernels, p)
    columns = area.last_block - area.first_block
    # A panel is laid out whole, to know its largest value; by others in float32 what they need.
    partly = from_end and p[ARITHMETIC] == 0 and kernels[ROUND] == 0 and kernels[WIDEN] == 0
    # The panel at hand, the pieces before it and in each of its columns; the group laid out, and
    # of which of its rows.
    unit, stop, before, of_column, laid = area.unit, area.unit, 0, 0, -1
    a, largest, first_laid, last_laid = 0, 0, 0, 0
    more = True
    while more:
        piece, last = 0, pieces
        if word:
            piece, last = claim(word, pieces, p[LEAST_TILES], from_end)
        more = word != 0 and piece < last
        if piece < before:
            unit, stop, before, of_column, laid = area.unit, area.unit, 0, 0, -1
        while piece < last:
            while piece >= before + columns * of_column:
                before += columns * of_column
                unit, laid = stop, -1
                stop = panel_end(p, unit, area.end)
                of_column = pieces_of_column(kernels, p, stop - unit)
            tiles = tiles_of(area, p, unit, stop, piece - before, last - before, of_column)
            top, bottom = 0, stop - unit
            if partly:
                top, bottom = rows_under(p, tiles, of_column)
            if tiles.group != laid or top < first_laid or bottom > last_laid:
                laid, first_laid, last_laid = tiles.group, top, bottom
                its = unit, top, bottom
                a, largest = _copy_input(x, own.memory, kernels, p, scales, laid, its)
            for n in range(p[RESULTS]):
                window = a + n * p[RESULT_STEP] * p[SLICE_BYTES]
                result, its_tiles = _slice_of(places, p, n), _added(p, tiles, n)
                multiply_panel(window, largest, result, own, epilogue, its_tiles)
            if tiles.last_tile == ALL_TILES:
                piece += (tiles.last_block - tiles.first_block) * of_column
            else:
                piece += tiles.last_tile - tiles.first_tile


@loop(inline=True)
def own_memory(scratch: Array, size: int, tid: int) -> Any:
    """Address of a thread's part of scratch memory, from where a cache line starts."""
    start = address(scratch) + tid * size
    return start + -start % 64


@loop(inline=True)
def addresses_of(arrays: ProductArrays) -> Any:
    """Where arrays start."""
    return ProductAddresses(
        address(arrays.w), address(arrays.bias), address(arrays.residual), address(arrays.y)
    )


@loop(inline=True)
def _slice_of(at: ProductAddresses, p: Array, n: int) -> Any:
    """The same arrays, seen from one of the slices of the result that are computed together."""
    further = n * p[OUT_HEIGHT] * p[OUT_WIDTH] * p[Y_PITCH] * p[Y_BYTES]
    return ProductAddresses(at.w, at.bias, at.residual + further, at.y + further)


@loop(inline=True)
def _added(p: Array, tiles: TileRange, n: int) -> Any:
    """The same tiles, made of those slices under a window that are slices of the input."""
    first = n * p[RESULT_STEP]
    low, high = max(p[FIRST_LAID] - first, 0), min(p[LAST_LAID] - first, p[SLICES])
    of_slice = p[TAPS] // p[SLICES]
    return TileRange(
        tiles.group,
        tiles.first_block,
        tiles.last_block,
        tiles.unit,
        tiles.stop,
        tiles.first_tile,
        tiles.last_tile,
        tiles.goes_on,
        low * of_slice,
        high * of_slice,
    )


@loop(inline=True)
def _copy_input(
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
    beyond = rows[1] * (_line_bytes(p) if halo else p[ROW])
    for n in range(p[FIRST_LAID], p[LAST_LAID]):
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
def _line_bytes(p: Array) -> Any:
    """Of a laid out image, from the input of one row of the result to that of the next."""
    return p[STRIDE_DOWN] * p[PITCH] * p[CELL] * (2 if p[ARITHMETIC] else 4)


class Panel(NamedTuple):
    """What the tiles of a panel have in common.

    Attributes:
        tile: Address of memory for a finished tile.
        zeros: Address of a bias of zeros.
        partials: Address of tiles whose sums are not complete.
        exact: Whether the input is infinite, NaN or nearly so; see `nonfinite`.
        lines: Image rows that tiles do not run on over, or 1.
        line_bytes: Of the input, from one of them to the next.
        length: Rows of tiles that lie one after another in a line.
        tiles: Tiles of a line.
        even_rows: Rows of a tile, where all have as many, or one more.
        longer: How many have one more, which come first.
        width: Those of an image row that are results.
        pitch: Those from one image row to the next.
        first_pixel: Of the result.
        pixel_bytes: From one pixel of the result to the next.
    """

    tile: int
    zeros: int
    partials: int
    exact: bool
    lines: int
    line_bytes: int
    length: int
    tiles: int
    even_rows: int
    longer: int
    width: int
    pitch: int
    first_pixel: int
    pixel_bytes: int


class Column(NamedTuple):
    """A column of tiles.

    Attributes:
        weights: Their address.
        bias: Its address.
        exist: Columns of a tile that are results.
        at: Bytes from a pixel of the result to the first of them.
    """

    weights: int
    bias: int
    exist: int
    at: int


_PRODUCT = *["int"] * 8, "<i8 1", "<i8 1"
_EPILOGUE = "int", "float", "float", "int", "int", "float", "float"


@loop(apart=(*_PRODUCT, *_EPILOGUE, *["int"] * 10), drives=True)
def multiply_panel(
    a: int,
    largest: int,
    at: ProductAddresses,
    context: PanelContext,
    epilogue: Epilogue,
    tiles: TileRange,
) -> None:
    """Some rows of the input times some columns of one group.

    Args:
        a: Address of the first row that tiles read.
        largest: The largest absolute value among what was laid out there, as bits.
        at: Weights, bias, residual, result.
        context: Memory, kernels and plan.
        epilogue: What happens to sums.
        tiles: Which rows and columns.
    """
    kernels, p = context.kernels, context.p
    panel = _panel_of(largest, context, tiles)
    bottom, top = np.float32(epilogue.low), np.float32(epilogue.high)
    wide = kernels[WIDEN] != 0 and panel.lines * panel.tiles >= _MANY
    parts = 2 if kernels[CONFIGURE] or wide else 4  # tiles that ask for what comes next of b
    apart = p[PLANE_BYTES] if p[ARITHMETIC] >= _SPLIT else p[STEP_BYTES]
    row, depth, activate = p[ROW], p[DEPTH], kernels[ACTIVATE]
    flat, by_lines = _line_kinds(p)
    direct = (epilogue.code == 0 or activate != 0) and not panel.exact
    last_tile = min(tiles.last_tile, panel.lines * panel.tiles)
    start_tap = tiles.first_tap // p[CHUNK] * p[CHUNK]
    first_line, last_line = tiles.first_tile // panel.tiles, -(-last_tile // panel.tiles)
    for block in range(tiles.first_block, tiles.last_block):
        column, read = _column_of(at, p, tiles.group, block), a + block * p[COLUMN_STEP]
        of_rows = (FIRST if 2 * column.exist <= p[TILE_COLUMNS] else 0) + (WIDE if wide else 0)
        for first_tap in range(start_tap, tiles.last_tap, p[CHUNK]):
            taps = min(p[CHUNK], tiles.last_tap - first_tap)
            ends = first_tap + taps == tiles.last_tap
            packed = b = column.weights + first_tap * p[TAP_BYTES]
            tap_bytes = p[TAP_BYTES] * (2 if wide else 1)
            if wide:
                b = panel.partials + p[PARTIAL_BYTES]
                call_convert(kernels[WIDEN], (packed, taps * p[TAP_BYTES] // 2, b))
            for line in range(first_line, last_line):
                begin, behind = max(first_tap, tiles.first_tap), first_tap + taps
                if by_lines:
                    begin, behind = _taps_inside(p, tiles.unit + line, begin, behind)
                places, count = context.offsets + 8 * begin, behind - begin
                weights = b + (begin - first_tap) * tap_bytes
                before = line * panel.tiles
                for n in range(max(before, tiles.first_tile), min(before + panel.tiles, last_tile)):
                    pixel, rows = _rows_of(n - before, panel, p, tiles.unit)
                    source = read + line * panel.line_bytes + pixel * row
                    kernel = kernels[of_rows + rows]
                    ahead = packed
                    if n < parts and (not ends or block + 1 < tiles.last_block + tiles.goes_on):
                        ahead += taps * p[TAP_BYTES] + n * (taps * p[TAP_BYTES] // parts)
                    partial = panel.partials + n * TILE_BYTES
                    start = partial if first_tap > start_tap else 0
                    if p[IN_PLACE]:
                        tile = source, pixel, rows, of_rows, panel.tile, ahead
                        begin, count, start, ahead = _edge_taps(tile, tiles.unit + line, b, context)
                        places, weights = context.offsets + 8 * begin, b + begin * tap_bytes
                    sums = (source, row, places, count, depth, weights, apart, rows, start, ahead)
                    if not ends:
                        if not panel.exact:
                            call_tile(kernel, (*sums, partial, 0, 0, 0, 0, 0, _LOWEST, _HIGHEST, 0))
                        continue
                    at_line = pixel // panel.pitch if flat else line
                    pixel -= at_line * panel.pitch if flat else 0
                    if direct and pixel + rows <= panel.width:
                        to, other = _result(at, panel, column, epilogue, at_line, pixel)
                        rest = (to, panel.pixel_bytes, column.exist, bottom, top, epilogue.gate)
                        call_tile(kernel, (*sums, panel.tile, column.bias, other, *rest))
                        if activate:
                            call_activate(activate, (rows, to, panel.pixel_bytes, column.exist))
                        continue
                    if panel.exact:
                        exact_tile(source, column.weights, tiles, panel.tile, context, rows)
                    else:
                        call_tile(kernel, (*sums, panel.tile, 0, 0, 0, 0, 0, _LOWEST, _HIGHEST, 0))
                    finish_rows(rows, at_line, pixel, at, panel, column, context, epilogue)


@loop(inline=True)
def _line_kinds(p: Array) -> Any:
    """Whether tiles run on over the ends of lines, and whether lines leave out rows of taps."""
    halo = p[SOURCE] == HALO
    return halo and p[FLAT] != 0, halo and p[FLAT] + p[IN_PLACE] == 0


@loop(inline=True)
def _panel_of(largest: int, context: PanelContext, tiles: TileRange) -> Any:
    """Where a panel's tiles lie; clears the bias of zeros."""
    p = context.p
    arithmetic = p[ARITHMETIC]
    # Infinity has no lower half, and may not meet the zeros that fill up a run.
    filled = p[RUN] != p[DEPTH] * p[STEP_BYTES] // 2
    exact = largest >= LARGEST and (arithmetic >= _SPLIT or filled)
    tile = context.memory + p[PLANE_BYTES] * max(arithmetic, 1)
    zeros = tile + TILE_BYTES
    row_of_zeros = floats_at(zeros, p[TILE_COLUMNS])
    for i in range(row_of_zeros.size):
        row_of_zeros[i] = np.float32(0)
    units = tiles.stop - tiles.unit
    lines, length, width, pitch, first_pixel = 1, units, units, units, tiles.unit
    if p[SOURCE] == HALO:
        width, pitch, first_pixel = p[OUT_WIDTH], p[PITCH], tiles.unit * p[OUT_WIDTH]
        if p[FLAT]:
            length = (units - 1) * pitch + width
        else:
            lines, length = units, width
    count = -(-length // p[TILE_ROWS])
    return Panel(
        tile,
        zeros,
        zeros + ZERO_BYTES,
        exact,
        lines,
        _line_bytes(p),
        length,
        count,
        length // count,
        length % count,
        width,
        pitch,
        first_pixel,
        p[Y_BYTES] * p[Y_PITCH],
    )


@loop(inline=True)
def _column_of(at: ProductAddresses, p: Array, group: int, block: int) -> Any:
    """A column of tiles of a group."""
    number, columns = group * p[BLOCKS] + block, p[TILE_COLUMNS]
    first = p[Y_FIRST] + group * p[GROUP_OUTPUTS] + block * columns
    exist = min(columns, p[GROUP_OUTPUTS] - block * columns)
    weights = at.w + number * p[BLOCK_BYTES] + p[W_FIRST]
    return Column(weights, at.bias + 4 * number * columns, exist, p[Y_BYTES] * first)


@loop(inline=True)
def _rows_of(t: int, panel: Panel, p: Array, unit: int) -> Any:
    """The first row of a tile, counted from that of its line, and how many rows it has."""
    length, most = panel.length, p[TILE_ROWS]
    if p[EVEN]:
        more = 1 if t < panel.longer else 0
        return t * panel.even_rows + min(t, panel.longer), panel.even_rows + more
    first = t * most
    rows = min(most, length - first)
    if p[ARITHMETIC] and p[SOURCE] == DIRECT and rows < most and rows != 16:
        # Tiles are read as a whole: the last one begins before the one ends.
        first = max(length - (most if rows > 16 else 16), -unit)
        rows = length - first
    return first, rows


@loop(inline=True)
def _lines_inside(p: Array, line: int) -> Any:
    """Which rows of taps lie on the image under a line of the result: first, and behind the last.

    Args:
        p: `Plan.table`.
        line: Of the result, counted through all images.
    """
    place = line % p[OUT_HEIGHT] * p[STRIDE_DOWN] - p[TOP]
    down, apart = p[TAPS_DOWN], p[DILATION_DOWN]
    low, high = 0, down
    if place < 0:
        low = min(-(place // apart), down)
    if place + (down - 1) * apart >= p[HEIGHT]:
        high = max((p[HEIGHT] - 1 - place) // apart + 1, low)
    return low, high


@loop(inline=True)
def _taps_inside(p: Array, line: int, first: int, behind: int) -> Any:
    """Which of some taps a line of the result needs: those at both ends may lie in the padding.

    Args:
        p: `Plan.table`.
        line: Of the result, counted through all images.
        first: The first tap.
        behind: Behind the last one.

    Returns:
        The first one that is left, and behind the last one.
    """
    down = p[TAPS_DOWN]
    low, high = _lines_inside(p, line)
    if low == 0 and high == down:
        return first, behind
    of_slice = p[TAPS] // p[SLICES]
    across = of_slice // down
    begin, end = first % of_slice, (behind - 1) % of_slice + 1
    begin = min(first + max(low * across - begin, 0), behind)
    return begin, max(behind - max(end - high * across, 0), begin)


@loop
def _edge_taps(
    tile: tuple[int, int, int, int, int, int], line: int, b: int, context: PanelContext
) -> Any:
    """Adds up columns of taps that lie beside the image under some of a tile's pixels.

    They are added up for the others before the columns that lie on it under all pixels.

    Args:
        tile: Address of what the first tap meets under its first pixel, that pixel, how many there
            are, in front of which place the kernels for so many rows are, where sums go, and what
            is needed next of the weights.
        line: Of the result, counted through all images.
        b: Address of the packed weights.
        context: Kernels and plan.

    Returns:
        The first tap that is left, how many are, the sums to go on from or 0, and what is needed
        next of the weights.
    """
    kernels, p = context.kernels, context.p
    source, pixel, rows, of_rows, sums, ahead = tile
    down, across, step, apart = p[TAPS_DOWN], p[TAPS_ACROSS], p[STRIDE_ACROSS], p[DILATION_ACROSS]
    low, high = _lines_inside(p, line)
    first = pixel * step - p[LEFT]
    last, width = first + (rows - 1) * step, p[WIDTH]
    begin = p[LEFT] // apart
    behind = begin + 1
    if low == 0 and high == down:
        while begin > 0 and first + (begin - 1) * apart >= 0:
            begin -= 1
        while behind < across and last + behind * apart < width:
            behind += 1
    start, row_bytes = 0, 4 * p[TILE_COLUMNS]
    for column in range(across):
        place = first + column * apart
        top = max(0, -(place // step))
        bottom = rows - max(0, -((width - 1 - last - column * apart) // step))
        if begin <= column < behind or top >= bottom or low == high:
            continue
        if start == 0 and bottom - top < rows:
            cleared = floats_at(sums, rows * p[TILE_COLUMNS])
            for i in range(cleared.size):
                cleared[i] = np.float32(0)
            start = sums
        tap, further = column * down + low, top * row_bytes
        places, weights = context.offsets + 8 * tap, b + tap * p[TAP_BYTES]
        its = source + top * p[ROW], p[ROW], places, high - low, p[DEPTH], weights, p[STEP_BYTES]
        from_here = start + further if start else 0
        rest = (sums + further, 0, 0, 0, 0, 0, _LOWEST, _HIGHEST, 0)
        kernel = kernels[of_rows + bottom - top]
        call_tile(kernel, (*its, bottom - top, from_here, ahead, *rest))
        start = sums
        ahead += (high - low) * p[TAP_BYTES] // _FETCHED
    return begin * down + low, (behind - 1 - begin) * down + high - low, start, ahead


@loop(inline=True)
def _result(
    at: ProductAddresses, panel: Panel, column: Column, epilogue: Epilogue, line: int, pixel: int
) -> Any:
    """Addresses of the result's and the residual's elements; 0 where there is no residual."""
    place = (panel.first_pixel + line * panel.width + pixel) * panel.pixel_bytes + column.at
    return at.y + place, at.residual + place if epilogue.has_residual else 0


@loop
def finish_rows(
    rows: int,
    line: int,
    pixel: int,
    at: ProductAddresses,
    panel: Panel,
    column: Column,
    context: PanelContext,
    epilogue: Epilogue,
) -> None:
    """Finishes a tile of sums; its rows that lie between image rows are dropped."""
    kernel, activate = context.kernels[EPILOGUE], context.kernels[ACTIVATE]
    narrow = context.kernels[ACTIVATE_NARROW]
    bottom, top = np.float32(epilogue.low), np.float32(epilogue.high)
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    columns, outputs = context.p[TILE_COLUMNS], panel.pixel_bytes
    done = 0
    while done < rows:
        run = min(rows - done, panel.pitch - pixel)
        count = min(run, panel.width - pixel)
        if count > 0:
            to, other = _result(at, panel, column, epilogue, line, pixel)
            piece = panel.tile + 4 * done * columns
            if epilogue.code == 0 or activate:
                rest = (column.bias, other, to, outputs, column.exist, bottom, top, epilogue.gate)
                call_epilogue(kernel, (count, piece, *rest))
                if activate:
                    call_activate(activate, (count, to, outputs, column.exist))
            elif narrow and not other:
                call_activate_narrow(narrow, (count, piece, column.bias, to, outputs, column.exist))
            else:
                _activate_piece(piece, count, other, panel, column, context, epilogue)
                rest = (panel.zeros, 0, to, outputs, column.exist, lowest, highest, 0)
                call_epilogue(kernel, (count, piece, *rest))
        done += run
        pixel += run
        if pixel == panel.pitch:
            pixel = 0
            line += 1


@loop
def _activate_piece(
    piece: int,
    count: int,
    residual: int,
    panel: Panel,
    column: Column,
    context: PanelContext,
    epilogue: Epilogue,
) -> None:
    """Adds bias and residual to rows of a tile, and applies the activation where they lie."""
    kernel, columns = context.kernels[EPILOGUE_F32], context.p[TILE_COLUMNS]
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    # Residuals lie as y does, so they are added row by row.
    together = 1 if epilogue.has_residual else count
    for r in range(0, count, together):
        at = piece + 4 * r * columns
        beside = residual + r * panel.pixel_bytes if epilogue.has_residual else 0
        rest = (column.bias, beside, at, 4 * columns, column.exist, lowest, highest, 0)
        call_epilogue(kernel, (together, at, *rest))
    alpha, beta = np.float32(epilogue.alpha), np.float32(epilogue.beta)
    activate_floats(piece, count * columns, epilogue.code, alpha, beta)


_FLOATS, _SHORTS = np.zeros(0, np.float32), np.zeros(0, np.uint16)
_BYTES, _WORDS = np.zeros(0, np.uint8), np.zeros(0, np.int64)
_PRODUCT_OF_FLOATS = (
    _FLOATS,
    ProductArrays(_SHORTS, _FLOATS, _FLOATS, _FLOATS),
    InputScaling(_FLOATS, _FLOATS),
    TileContext(_BYTES, *[_WORDS] * 4),
    Epilogue(0, 0.0, 0.0, 0, 0, 0.0, 0.0),
)
CALLS = ((multiply_tiles, flattened(_PRODUCT_OF_FLOATS)),)
"""What most models need of what is compiled here, and arguments like those it is called with."""

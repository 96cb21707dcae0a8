"""The outer loops of a product: each thread's share of tiles, panel by panel."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita.lowering.program import flattened
from partita_cpu.gemm.input_panel import Scaling, copy_input
from partita_cpu.gemm.macrokernel.panel_loop import multiply_panel
from partita_cpu.gemm.product_records import (
    ALL_TILES,
    Epilogue,
    InputScaling,
    PanelContext,
    ProductAddresses,
    ProductArrays,
    TileContext,
    TileRange,
    addresses_of,
    own_memory,
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
    FIRST_SLICE,
    LAST_SLICE,
    LEAST_TILES,
    OUT_HEIGHT,
    OUT_WIDTH,
    RESULT_STEP,
    RESULTS,
    SLICE_BYTES,
    SLICES,
    TAPS,
    THREAD_BYTES,
    Y_BYTES,
    Y_PITCH,
)
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE, ROUND, WIDEN
from partita_cpu.jit.intrinsics.address_call import address, call_plain
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.threads.claims import LINE, claim, least_taken, word_of


@loop(effort=Effort.CALLS)
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
    unit, stop, before, of_column, copied = area.unit, area.unit, 0, 0, -1
    a, largest, first_copied, last_copied = 0, 0, 0, 0
    more = True
    while more:
        piece, last = 0, pieces
        if word:
            piece, last = claim(word, pieces, p[LEAST_TILES], from_end)
        more = word != 0 and piece < last
        if piece < before:
            unit, stop, before, of_column, copied = area.unit, area.unit, 0, 0, -1
        while piece < last:
            while piece >= before + columns * of_column:
                before += columns * of_column
                unit, copied = stop, -1
                stop = panel_end(p, unit, area.end)
                of_column = pieces_of_column(kernels, p, stop - unit)
            tiles = tiles_of(area, p, unit, stop, piece - before, last - before, of_column)
            top, bottom = 0, stop - unit
            if partly:
                top, bottom = rows_under(p, tiles, of_column)
            if tiles.group != copied or top < first_copied or bottom > last_copied:
                copied, first_copied, last_copied = tiles.group, top, bottom
                its = unit, top, bottom
                a, largest = copy_input(x, own.memory, kernels, p, scales, copied, its)
            for n in range(p[RESULTS]):
                window = a + n * p[RESULT_STEP] * p[SLICE_BYTES]
                result, its_tiles = _slice_of(places, p, n), _added(p, tiles, n)
                multiply_panel(window, largest, result, own, epilogue, its_tiles)
            if tiles.last_tile == ALL_TILES:
                piece += (tiles.last_block - tiles.first_block) * of_column
            else:
                piece += tiles.last_tile - tiles.first_tile


@loop(inline=True)
def _slice_of(at: ProductAddresses, p: Array, n: int) -> Any:
    """The same arrays, seen from one of the slices of the result that are computed together."""
    further = n * p[OUT_HEIGHT] * p[OUT_WIDTH] * p[Y_PITCH] * p[Y_BYTES]
    return ProductAddresses(at.w, at.bias, at.residual + further, at.y + further)


@loop(inline=True)
def _added(p: Array, tiles: TileRange, n: int) -> Any:
    """The same tiles, made of those slices under a window that are slices of the input."""
    first = n * p[RESULT_STEP]
    low, high = max(p[FIRST_SLICE] - first, 0), min(p[LAST_SLICE] - first, p[SLICES])
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

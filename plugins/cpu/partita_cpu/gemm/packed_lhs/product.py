"""Packs the left side as tiles, and loops over the shares of the result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.program import flattened
from partita_cpu.gemm.packed_lhs.chunk_loop import (
    Chunk,
    PackedLhs,
    Weights,
    is_unusual,
    multiply_chunk,
)
from partita_cpu.gemm.packed_lhs.packed_lhs_table import (
    BLOCKS,
    CHUNK,
    COLUMNS,
    GROUP,
    HALF,
    PANEL,
    PLANES,
    ROWS,
    SHARES_ACROSS,
    STEPS,
    TILE,
)
from partita_cpu.gemm.product_records import Epilogue, ProductArrays
from partita_cpu.gemm.shares import own_share
from partita_cpu.gemm.tile_fields import STEP, TILE_BYTES
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, NARROW, RELEASE
from partita_cpu.jit.intrinsics.address_array import sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_pack_tile,
    call_plain,
)
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.threads.claims import LINE, claim, least_taken, word_of


@loop
def pack_lhs(
    x: Array, out: Array, kernels: Array, rows: int, depth: int, planes: int, tid: int, nt: int
) -> None:
    """Lays a matrix out as tiles.

    Args:
        x: (rows, depth), flat.
        out: `packed_lhs_size` numbers.
        kernels: `tile_kernels.packed_lhs_kernels`.
        rows: Of x.
        depth: Of x.
        planes: Parts of an element.
        tid: This thread.
        nt: All threads.
    """
    blocks, steps = -(-rows // HALF), -(-depth // STEP)
    size = steps * planes * TILE
    sizes = sizes_at(address(out) + 2 * blocks * size, blocks * steps)
    tile, end = blocks * steps * tid // nt, blocks * steps * (tid + 1) // nt
    while tile < end:
        block = tile // steps
        step = tile - block * steps
        count = min(end - tile, steps - step)
        place = address(x) + 4 * (block * HALF * depth + step * STEP)
        to = address(out) + 2 * tile * planes * TILE
        there, across = min(HALF, rows - block * HALF), min(count * STEP, depth - step * STEP)
        found = call_pack_tile(kernels[NARROW], (place, 4 * depth, there, across, to))
        sizes[tile : tile + count] = np.int32(found)
        tile += count


@loop(effort=Effort.LOOPS)
def multiply_packed(
    x: Array,
    arrays: ProductArrays,
    out: Array,
    scratch: Array,
    kernels: Array,
    p: Array,
    claims: Array,
    epilogue: Epilogue,
    tid: int,
    nt: int,
) -> None:
    """``y = activation(min(max(x @ w + bias + residual, low), high))``.

    Args:
        x: The left side, laid out as tiles.
        arrays: Weights, bias, residual and the result (rows, columns), which is not written to if
            the result is laid out as tiles.
        out: The result then: `packed_lhs_size` numbers. There is no residual then.
        scratch: Bytes; `thread_bytes` for each thread.
        kernels: `tile_kernels.packed_lhs_kernels`.
        p: `packed_lhs_table`.
        claims: Words in which threads note which tiles they take; see `threads.claims`.
        epilogue: What happens to sums.
        tid: This thread.
        nt: All threads; they share rows and columns of tiles.
    """
    steps, planes = p[STEPS], p[PLANES]
    room = 1 if p[CHUNK] == steps else 1 + p[GROUP] * p[PANEL]
    room = room * TILE_BYTES + 64
    threads = min(nt, scratch.size // room, claims.size // LINE)
    if tid >= threads:
        return
    start = tid * room
    start += -(address(scratch) + start) % 64
    halves = -(-p[ROWS] // HALF)
    sizes = sizes_at(address(x) + 2 * halves * steps * planes * TILE, halves * steps)
    lhs = PackedLhs(x, sizes, out, address(scratch) + start)
    words, share = address(claims), tid
    call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    while share >= 0:
        area = own_share(p[SHARES_ACROSS], share, threads, -(-p[ROWS] // COLUMNS), p[BLOCKS])
        pieces = (area[1] - area[0]) * (area[3] - area[2])
        more = True
        while more:
            piece, last = 0, pieces
            if threads > 1:
                piece, last = claim(word_of(words, share), pieces, 1, share != tid)
            more = threads > 1 and piece < last
            while piece < last:
                part = _part_of(p, area, piece, last)
                _multiply_part(lhs, arrays, kernels, p, epilogue, part)
                piece += (part.stop - part.panel) * (part.end - part.group)
        share = least_taken(words, threads) if threads > 1 else -1
    call_plain(kernels[RELEASE], (0,))


class _Part(NamedTuple):
    """Tiles of a panel that are computed at once.

    Attributes:
        panel: The first tile down.
        stop: Behind the last one.
        group: The first tile across.
        end: Behind the last one.
        last: Behind the last one of the share.
    """

    panel: int
    stop: int
    group: int
    end: int
    last: int


@loop(inline=True)
def _part_of(p: Array, area: Any, piece: int, behind: int) -> Any:
    """Some tiles of a share from one on: whole columns of a panel, or some tiles of one column.

    Args:
        p: `packed_lhs_table`.
        area: The share: first tile down and behind the last one, the same across.
        piece: The first tile; they are counted panel by panel, there column by column.
        behind: Behind the last one that is wanted.
    """
    top, bottom, first, last = area
    before = piece // (p[PANEL] * (last - first)) * p[PANEL]
    panel = top + before
    height = min(p[PANEL], bottom - panel)
    inside = piece - before * (last - first)
    column = inside // height
    down = inside - column * height
    group = first + column
    columns = min(min((behind - piece) // height, p[GROUP]), last - group)
    if down == 0 and columns > 0:
        return _Part(panel, panel + height, group, group + columns, last)
    stop = min(down + behind - piece, height)
    return _Part(panel + down, panel + stop, group, group + 1, last)


@loop(inline=True)
def _multiply_part(
    lhs: PackedLhs,
    arrays: ProductArrays,
    kernels: Array,
    p: Array,
    epilogue: Epilogue,
    part: _Part,
) -> None:
    """Computes some tiles, chunk by chunk along k.

    Args:
        lhs: The left side.
        arrays: Weights, bias, residual and result.
        kernels: `packed_lhs_kernels`.
        p: The table.
        epilogue: What is done with sums.
        part: The tiles.
    """
    steps, step_bytes = p[STEPS], 2 * 2 * TILE * p[PLANES]
    unusual = False
    if p[PLANES] > 1:
        unusual = is_unusual(
            lhs.sizes, 2 * part.panel * steps, 2 * (part.stop - part.panel) * steps
        )
    for chunk in range(0, steps, p[CHUNK]):
        w = address(arrays.w) + (part.group * steps + chunk) * step_bytes
        following = step_bytes * min(p[CHUNK], steps - chunk)
        if chunk + p[CHUNK] >= steps:
            behind = (part.end - part.group) * steps - chunk
            following = step_bytes * behind if part.end < part.last else 0
        weights = Weights(w, steps * step_bytes, w + following)
        cut = Chunk(part.panel, part.stop, part.group, part.end, chunk, unusual)
        multiply_chunk(lhs, arrays, weights, kernels, p, epilogue, cut)


_FLOATS, _SHORTS = np.zeros(0, np.float32), np.zeros(0, np.uint16)

_BYTES, _WORDS = np.zeros(0, np.uint8), np.zeros(0, np.int64)

_PRODUCT = (
    _SHORTS,
    ProductArrays(_SHORTS, _FLOATS, _FLOATS, _FLOATS),
    *(_SHORTS, _BYTES, _WORDS, _WORDS, _WORDS),
    Epilogue(0, 0.0, 0.0, 0, 0, 0.0, 0.0),
)

CALLS = ((multiply_packed, flattened(_PRODUCT)), (pack_lhs, (_FLOATS, _SHORTS, _WORDS, 0, 0, 0)))
"""What products of split numbers need, and arguments like those it is called with."""

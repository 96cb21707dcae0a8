"""Two products of the same rows on AMX, one activated and multiplied by the other (SwiGLU).

``activation(x @ gate + bias) * (x @ other + bias)`` is written directly as the bfloat16 tiles that
the next product reads. This takes a half or a quarter of the memory of both results in float32, and
saves laying them out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import integer
from partita_cpu.gemm.packed_lhs.chunk_loop import is_unusual
from partita_cpu.gemm.packed_lhs.packed_lhs_table import (
    BLOCKS,
    CHUNK,
    COLUMNS,
    GROUP,
    HALF,
    OUTPUTS,
    PANEL,
    PLANES,
    ROWS,
    SHARES_ACROSS,
    STEPS,
    TILE,
)
from partita_cpu.gemm.shares import own_share
from partita_cpu.gemm.tile_fields import TILE_BYTES
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.jit.intrinsics.address_array import floats_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_gate_tiles,
    call_plain,
    call_tile,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.quantized_weights.row_products import (
    BlockArrays,
    RowSizes,
    add_up_floats,
    floats_of_thread,
    panel_of,
    sums_at,
)
from partita_cpu.kernels.quantized_weights.tile_products import (
    UnpackPart,
    unpack_panel,
    widen_row,
)

PRODUCTS = 2
"""Tiles of sums that a tile of the result is made of; each has half of the columns of both."""


def gated_bytes(table: Array) -> int:
    """Scratch memory of each thread: tiles of sums."""
    size: int = integer(table[GROUP] * table[PANEL]) * PRODUCTS * TILE_BYTES + 64
    return size


def interleaved_bias(gate: Array, other: Array) -> Array:
    """Both in the order of columns of tiles of sums, filled up with zeros."""
    steps = -(-gate.size // COLUMNS)
    both = np.zeros((2, steps * COLUMNS), np.float32)
    both[0, : gate.size], both[1, : other.size] = gate.reshape(-1), other.reshape(-1)
    return both.reshape(2, -1, HALF).swapaxes(0, 1).reshape(-1).copy()


class GatedContext(NamedTuple):
    """Memory, kernels and plan.

    Attributes:
        scratch: Bytes; `gated_bytes` for each thread.
        unpacked: `unpacked_size` numbers for each thread.
        floats: Scratch memory as for `multiply_blocks`, for the larger blocks of both.
        kernels: `tile_kernels.packed_lhs_kernels`.
        unpack: The kernel that unpacks a step of the gate.
        unpack_other: That for what it is multiplied by.
        finish: `tile_kernels.gate_kernel`.
        rows: Floats; 16 rows for each thread where the left side is there as tiles alone.
        p: `unpacked_table`, as many tiles across as the result has.
    """

    scratch: KernelArray
    unpacked: KernelArray
    floats: KernelArray
    kernels: KernelArray
    unpack: KernelArray
    unpack_other: KernelArray
    finish: KernelArray
    rows: KernelArray
    p: KernelArray


class _Cut(NamedTuple):
    """Some steps along k of a tile of sums.

    Attributes:
        t: The tile down.
        step: The first step.
        depth: How many.
        weights: Their address.
        sums: Address of the sums.
    """

    t: int
    step: int
    depth: int
    weights: int
    sums: int


@loop
def multiply_gated(
    x: Any,
    tiles: Any,
    out: Any,
    gate: BlockArrays,
    other: BlockArrays,
    context: GatedContext,
    sizes: RowSizes,
    other_sizes: RowSizes,
    tid: int,
    nt: int,
) -> None:
    """``activation(x @ gate + bias) * (x @ other + bias)``, laid out as tiles.

    Args:
        x: The left side, flat; empty if it is there as tiles alone.
        tiles: The same, laid out as tiles.
        out: `packed_lhs_size` numbers.
        gate: Weights that are activated; its bias is `interleaved_bias`. There is no result in it.
        other: Weights beside it.
        context: Memory, kernels and plan.
        sizes: Of the gate; blocks are whole steps of 32 terms together.
        other_sizes: Of what it is multiplied by; as many rows, terms and columns.
        tid: This thread.
        nt: All threads.
    """
    p, kernels = context.p, context.kernels
    steps, planes = p[STEPS], p[PLANES]
    room = PRODUCTS * p[GROUP] * p[PANEL] * TILE_BYTES + 64
    many = p[GROUP] * p[CHUNK] * PRODUCTS * 2 * TILE * planes + 32
    threads = min(nt, context.scratch.size // room, context.unpacked.size // many)
    down = -(-p[ROWS] // COLUMNS)
    top, bottom, first, last = own_share(p[SHARES_ACROSS], tid, threads, down, p[BLOCKS])
    if tid >= threads or first == last or top == bottom:
        return
    sums = address(context.scratch) + tid * room
    sums += -sums % 64
    place = address(context.unpacked) + 2 * tid * many
    place += -place % 64
    call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    for panel in range(top, bottom, p[PANEL]):
        stop = min(panel + p[PANEL], bottom)
        for group in range(first, last, p[GROUP]):
            end = min(group + p[GROUP], last)
            for chunk in range(0, steps, p[CHUNK]):
                depth = min(p[CHUNK], steps - chunk)
                pitch = depth * 4 * TILE * planes
                for number in range(PRODUCTS * group, PRODUCTS * end):
                    to = place + (number - PRODUCTS * group) * pitch
                    part = UnpackPart(number, 0, chunk, depth, planes)
                    unpack_panel(gate, context.unpack[0], sizes, part, to)
                    part = UnpackPart(number, 1, chunk, depth, planes)
                    unpack_panel(other, context.unpack_other[0], other_sizes, part, to)
                for block in range(group, end):
                    weights = place + (block - group) * PRODUCTS * pitch
                    # All of one product come first, so that its weights stay in the nearest cache.
                    for n in range(PRODUCTS * (stop - panel)):
                        t, product = n % (stop - panel), n // (stop - panel)
                        beside = (block - group) * p[PANEL] + t
                        pair = sums + PRODUCTS * beside * TILE_BYTES
                        of_product = pair + product * TILE_BYTES
                        cut = _Cut(panel + t, chunk, depth, weights + product * pitch, of_product)
                        _multiply_tile(tiles, context, cut)
                        if product == PRODUCTS - 1 and chunk + depth == steps:
                            _finish_tile(out, gate.bias, context, pair, panel + t, block)
    call_plain(kernels[RELEASE], (0,))
    area = top, bottom, first, last
    both = sizes, other_sizes
    _repeat_unusual(x, tiles, out, gate, other, context, both, area, tid, sums)


@loop
def _multiply_tile(tiles: Any, context: GatedContext, cut: _Cut) -> None:
    """Some steps of a tile of sums."""
    p, planes = context.p, context.p[PLANES]
    rows = min(COLUMNS, p[ROWS] - cut.t * COLUMNS)
    kernel = context.kernels[2 if rows > HALF else 1]
    half_bytes = 2 * p[STEPS] * planes * TILE
    a = address(tiles) + 2 * cut.t * half_bytes + 2 * cut.step * planes * TILE
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    start = cut.sums if cut.step else 0
    given = (a, half_bytes, 0, 0, cut.depth, cut.weights, 0, rows, start, cut.weights)
    call_tile(kernel, (*given, cut.sums, 0, 0, 0, 0, 0, lowest, highest, 0))


@loop
def _finish_tile(out: Any, bias: Any, context: GatedContext, sums: int, t: int, block: int) -> None:
    """Lays out a tile of the result.

    Args:
        out: The result.
        bias: Terms of both products, by blocks.
        context: What holds for all tiles.
        sums: Address of the sums of both products.
        t: The tile of rows.
        block: The block of columns.
    """
    rows = min(COLUMNS, context.p[ROWS] - t * COLUMNS)
    for half in range(-(-rows // HALF)):
        of_half = sums + half * TILE_BYTES // 2
        _finish_half(out, bias, context, of_half, 2 * t + half, block)


@loop
def _finish_half(
    out: Any, bias: Any, context: GatedContext, sums: int, half: int, block: int
) -> None:
    """Lays out up to 16 rows of a tile of the result.

    Args:
        out: The result.
        bias: Terms of both products, by blocks.
        context: What holds for all tiles.
        sums: Address of the sums of both products.
        half: The half of a tile of rows.
        block: The block of columns.
    """
    p = context.p
    halves, blocks, tile_size = -(-p[ROWS] // HALF), p[BLOCKS], p[PLANES] * TILE
    place = half * blocks + block
    given = (
        sums,
        address(bias) + 4 * PRODUCTS * COLUMNS * block,
        min(HALF, p[ROWS] - half * HALF),
        min(COLUMNS, p[OUTPUTS] - block * COLUMNS),
        address(out) + 2 * place * tile_size,
    )
    sizes = sizes_at(address(out) + 2 * halves * blocks * tile_size, halves * blocks)
    sizes[place] = np.int32(call_gate_tiles(context.finish[0], given))


@loop
def _repeat_unusual(
    x: Any,
    tiles: Any,
    out: Any,
    gate: BlockArrays,
    other: BlockArrays,
    context: GatedContext,
    both: Any,
    area: Any,
    tid: int,
    sums: int,
) -> None:
    """Computes rows anew that hold infinity or NaN, which have no second parts.

    Args:
        x: Rows as floats; empty if they are there as tiles alone.
        tiles: Rows as tiles.
        out: The result.
        gate: Weights of the gate.
        other: Weights of what it gates.
        context: What holds for all tiles.
        both: Sizes of both.
        area: The first tile of rows and the one behind the last; likewise blocks of columns.
        tid: This thread.
        sums: Address of memory for sums.
    """
    top, bottom, first, last = area
    sizes, other_sizes = both
    p = context.p
    steps, halves = p[STEPS], -(-p[ROWS] // HALF)
    of_tiles = sizes_at(address(tiles) + 2 * halves * steps * p[PLANES] * TILE, halves * steps)
    each = max(floats_of_thread(sizes.size), floats_of_thread(other_sizes.size))
    own = address(context.floats) + 4 * tid * each
    for half in range(2 * top, min(2 * bottom, halves)):
        if not is_unusual(of_tiles, half * steps, steps):
            continue
        if not x.size:
            for r in range(min(HALF, p[ROWS] - half * HALF)):
                row = half * HALF + r
                widen_row(tiles, row, context.rows, HALF * tid + r, sizes.terms, p[PLANES])
        for number in range(PRODUCTS * first, PRODUCTS * last):
            to = sums + number % PRODUCTS * TILE_BYTES
            if x.size:
                _add_up_half(x, gate, sizes, own, half, half, number, to)
                _add_up_half(x, other, other_sizes, own, half, half, number, to + 4 * HALF)
            else:
                _add_up_half(context.rows, gate, sizes, own, tid, half, number, to)
                beside = to + 4 * HALF
                _add_up_half(context.rows, other, other_sizes, own, tid, half, number, beside)
            if number % PRODUCTS == PRODUCTS - 1:
                _finish_half(out, gate.bias, context, sums, half, number // PRODUCTS)


@loop
def _add_up_half(
    x: Any,
    arrays: BlockArrays,
    sizes: RowSizes,
    own: int,
    place: int,
    half: int,
    number: int,
    to: int,
) -> None:
    """Sums of up to 16 rows times a panel, anew in float32, to half of the columns of a tile.

    Args:
        x: Rows, flat.
        arrays: Weights.
        sizes: Of the product.
        own: Address of memory as for `multiply_blocks`.
        place: Which sixteen of x they are.
        half: Which sixteen of the product.
        number: Of the panel.
        to: Address of the sums.
    """
    panel = panel_of(arrays, sizes, min(number, -(-sizes.columns // HALF) - 1))
    start, count = place * HALF, min(HALF, sizes.rows - half * HALF)
    add_up_floats(x, sizes, panel, own, start, start + count)
    found = floats_at(sums_at(own, sizes.size), HALF * HALF)
    target = floats_at(to, COLUMNS * HALF)
    for r in range(count):
        for c in range(HALF):
            target[r * COLUMNS + c] = found[r * HALF + c]

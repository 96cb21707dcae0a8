"""Products of many rows with block-quantized weights on AMX.

Weights are unpacked to bfloat16 tiles, some steps along k at a time, into memory that stays in the
second-level cache while all rows of a thread are multiplied with them. Rows are laid out as tiles
once (`packed_lhs`). With two planes each float32 is the sum of two bfloat16, and three products are
added up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import evaluated, integer
from partita_cpu.gemm.nonfinite import joined_number
from partita_cpu.gemm.packed_lhs.chunk_loop import (
    Chunk,
    PackedLhs,
    Weights,
    is_unusual,
    multiply_chunk,
)
from partita_cpu.gemm.packed_lhs.packed_lhs_table import (
    CHUNK,
    COLUMNS,
    GROUP,
    HALF,
    PANEL,
    PLANES,
    ROWS,
    SHARES_ACROSS,
    STEPS,
    SUMS,
    TILE,
    MatrixSizes,
    packed_lhs_table,
)
from partita_cpu.gemm.product_records import Epilogue, ProductArrays
from partita_cpu.gemm.shares import own_share
from partita_cpu.gemm.tile_fields import STEP, TILE_BYTES
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.jit.intrinsics.address_array import sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_plain, call_unpack
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.quantized_weights.row_products import (
    BlockArrays,
    RowSizes,
    add_up_floats,
    floats_of_thread,
    panel_of,
    store_sums,
)
from partita_cpu.machine_model import MachineModel

ROWS_SHARE = 3 / 4
"""Of the second-level cache, for rows of a thread, which are read again for each column of tiles.
"""

COLUMN_SHARE = 3 / 4
"""Of the first-level cache, for weights of a column, before sums are put aside.

Rows pass by that cache, see `llvm.tiles.amx`; from the next one only one side comes in time. The
rest is for the sums, and for where they go.
"""

GROUP_SHARE = 1 / 4
"""Of the second-level cache, for unpacked weights of tiles across whose sums are put aside."""

PANEL_SHARE = 1 / 2
"""The same for rows that stay there from one tile across to the next, with all of their terms.

Tiles across then come one by one, and what is unpacked for one is all that is held.
"""

_HALF_BYTES = 2 * TILE


def unpacked_table(
    product: MatrixSizes, machine: MachineModel, threads: int, products: int = 1
) -> Array:
    """The table of `multiply_packed`, cut for weights that are unpacked for all rows of a thread.

    Args:
        product: What is multiplied.
        machine: What it is cut for.
        threads: Threads that share it.
        products: Of tiles of that many products a tile across consists.
    """
    table = packed_lhs_table(product, machine, threads)
    tiles, steps = -(-product.rows // COLUMNS), table[STEPS]
    most = -(-tiles // (threads // table[SHARES_ACROSS]))
    step_bytes = 2 * _HALF_BYTES * product.planes
    held = machine.l2_bytes(ROWS_SHARE)
    table[CHUNK] = evaluated(_chunk_steps, steps, step_bytes, machine.l1_bytes(COLUMN_SHARE))
    table[PANEL] = evaluated(_panel_tiles, most, table[CHUNK] * step_bytes, held)
    weights, group = table[CHUNK] * step_bytes * products, machine.l2_bytes(GROUP_SHARE)
    staying = machine.l2_bytes(PANEL_SHARE) // (steps * step_bytes)
    if table[CHUNK] == steps:
        table[GROUP] = 1
    else:
        table[GROUP] = evaluated(_group_tiles, table[PANEL], products, staying, group // weights)
    return table


def _chunk_steps(steps: int, step_bytes: int, held: int) -> int:
    """Of equal chunks, steps of one whose weights fit what they may have."""
    chunks = -(-steps // max(1, held // step_bytes))
    return -(-steps // chunks)


def _panel_tiles(tiles: int, tile_bytes: int, held: int) -> int:
    """Of equal panels, tiles down of one that fits."""
    panels = -(-tiles // max(1, held // tile_bytes))
    return -(-tiles // panels)


def _group_tiles(panel: int, products: int, staying: int, most: int) -> int:
    """Tiles across whose weights and sums are held together, one if a panel stays in the cache."""
    return 1 if panel <= staying else max(1, min(SUMS // (panel * products), most))


def unpacked_size(table: Array, products: int = 1) -> int:
    """16-bit numbers of the weights that a thread unpacks at a time."""
    size: int = integer(table[GROUP] * table[CHUNK] * 2 * TILE * table[PLANES]) * products + 32
    return size


class UnpackContext(NamedTuple):
    """Memory, kernels and plan.

    Attributes:
        scratch: Bytes; `packed_lhs.table.thread_bytes` for each thread.
        unpacked: `unpacked_size` numbers for each thread.
        floats: Scratch memory as for `multiply_blocks`.
        kernels: `tile_kernels.packed_lhs_kernels`.
        unpack: The kernel that unpacks a step.
        rows: Floats; a row for each thread where the left side is there as tiles alone.
        p: `unpacked_table`.
    """

    scratch: KernelArray
    unpacked: KernelArray
    floats: KernelArray
    kernels: KernelArray
    unpack: KernelArray
    rows: KernelArray
    p: KernelArray


@loop
def multiply_unpacked(
    x: Any,
    tiles: Any,
    arrays: BlockArrays,
    context: UnpackContext,
    epilogue: Epilogue,
    sizes: RowSizes,
    tid: int,
    nt: int,
) -> None:
    """``y = x @ w + bias``.

    Args:
        x: The left side, flat; empty if it is there as tiles alone.
        tiles: The same, laid out as tiles.
        arrays: Weights, bias and result; the bias is filled up to whole tiles.
        context: Memory, kernels and plan.
        epilogue: One that does nothing.
        sizes: Of the product; blocks are whole steps of 32 terms together.
        tid: This thread.
        nt: All threads.
    """
    p, kernels = context.p, context.kernels
    blocks, steps, down = -(-sizes.columns // COLUMNS), p[STEPS], -(-p[ROWS] // COLUMNS)
    room = TILE_BYTES + 64 + (0 if p[CHUNK] == steps else p[GROUP] * p[PANEL] * TILE_BYTES)
    many = p[GROUP] * p[CHUNK] * 2 * TILE * p[PLANES] + 32
    threads = min(nt, context.scratch.size // room, context.unpacked.size // many)
    top, bottom, first, last = own_share(p[SHARES_ACROSS], tid, threads, down, blocks)
    if tid >= threads or first == last or top == bottom:
        return
    tile = address(context.scratch) + tid * room
    place = address(context.unpacked) + 2 * tid * many
    place += -place % 64
    halves = -(-p[ROWS] // HALF)
    of_tiles = sizes_at(address(tiles) + 2 * halves * steps * p[PLANES] * TILE, halves * steps)
    lhs = PackedLhs(tiles, of_tiles, tiles, tile + -tile % 64)
    product = ProductArrays(context.unpacked, arrays.bias, arrays.y, arrays.y)
    call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    for panel in range(top, bottom, p[PANEL]):
        stop = min(panel + p[PANEL], bottom)
        for group in range(first, last, p[GROUP]):
            end = min(group + p[GROUP], last)
            for chunk in range(0, steps, p[CHUNK]):
                depth = min(p[CHUNK], steps - chunk)
                pitch = depth * 2 * _HALF_BYTES * p[PLANES]
                for block in range(group, end):
                    to = place + (block - group) * pitch
                    for half in range(2):
                        # What there is no panel for is not stored.
                        part = UnpackPart(2 * block + half, half, chunk, depth, p[PLANES])
                        unpack_panel(arrays, context.unpack[0], sizes, part, to)
                cut = Chunk(panel, stop, group, end, chunk, False)
                weights = Weights(place, pitch, place)
                multiply_chunk(lhs, product, weights, kernels, p, epilogue, cut)
    call_plain(kernels[RELEASE], (0,))
    _repeat_unusual(x, lhs, arrays, context, sizes, tid, (top, bottom, first, last))


class UnpackPart(NamedTuple):
    """Steps of a panel that become half of the columns of tiles.

    Attributes:
        panel: Which panel; the last one takes the place of those behind it.
        half: Which half.
        chunk: The first step.
        depth: How many.
        planes: In how many parts weights are laid out.
    """

    panel: int
    half: int
    chunk: int
    depth: int
    planes: int


@loop
def unpack_panel(
    arrays: BlockArrays, kernel: int, sizes: RowSizes, part: UnpackPart, to: int
) -> None:
    """Unpacks some steps of a panel into half of the tiles that begin at an address."""
    size, step_bytes = sizes.size, STEP * HALF * sizes.bits // 8
    panel = panel_of(arrays, sizes, min(part.panel, -(-sizes.columns // HALF) - 1))
    for step in range(part.chunk, part.chunk + part.depth):
        one, other = step * STEP // size * HALF, (step * STEP + HALF) // size * HALF
        target = to + ((step - part.chunk) * part.planes * 2 + part.half) * _HALF_BYTES
        call_unpack(
            kernel,
            (
                panel.w + step * step_bytes,
                panel.scales + one * sizes.scale_bytes,
                panel.zeros + one * panel.zero_bytes,
                panel.scales + other * sizes.scale_bytes,
                panel.zeros + other * panel.zero_bytes,
                np.float32(sizes.zero),
                target,
            ),
        )


@loop
def _repeat_unusual(
    x: Any,
    lhs: PackedLhs,
    arrays: BlockArrays,
    context: UnpackContext,
    sizes: RowSizes,
    tid: int,
    share: Any,
) -> None:
    """Computes rows anew that hold infinity or NaN, which have no second parts.

    Args:
        x: Rows as floats; empty if they are there as tiles alone.
        lhs: Rows as tiles.
        arrays: Weights, bias and result.
        context: What holds for all tiles.
        sizes: Of rows, columns and blocks.
        tid: This thread.
        share: The first tile of rows and the one behind the last; likewise blocks of columns.
    """
    top, bottom, first, last = share
    steps, panels = context.p[STEPS], -(-sizes.columns // HALF)
    own = address(context.floats) + 4 * tid * floats_of_thread(sizes.size)
    for half in range(2 * top, min(2 * bottom, -(-sizes.rows // HALF))):
        if not is_unusual(lhs.sizes, half * steps, steps):
            continue
        for row in range(half * HALF, min(half * HALF + HALF, sizes.rows)):
            if not x.size:
                widen_row(lhs.x, row, context.rows, tid, sizes.terms, context.p[PLANES])
            for number in range(2 * first, min(2 * last, panels)):
                panel = panel_of(arrays, sizes, number)
                if x.size:
                    add_up_floats(x, sizes, panel, own, row, row + 1)
                else:
                    add_up_floats(context.rows, sizes, panel, own, tid, tid + 1)
                store_sums(arrays, sizes, panel, own, row, row + 1)


@loop
def widen_row(tiles: Any, row: int, rows: Any, to: int, terms: int, planes: int) -> None:
    """Makes one of the rows in float32 of a row that is laid out as tiles.

    Args:
        tiles: bfloat16 as uint16: for each `HALF` rows and `STEP` terms as many tiles as planes.
        row: Which row of the tiles.
        rows: float32 (any, terms), flat.
        to: Which of these is written.
        terms: Of a row.
        planes: Tiles whose sums are the numbers.
    """
    steps = -(-terms // STEP)
    for k in range(terms):
        tile = row // HALF * steps + k // STEP
        at = tile * planes * TILE + row % HALF * STEP + k % STEP
        rows[to * terms + k] = joined_number(tiles, at, TILE, planes)

"""Products of many rows with quantized weights, on AMX: some weights are unpacked at a time.

Both sides become bfloat16, or sums of two of them; the left side is laid out as tiles once. What is
unpacked of the weights stays in the second-level cache while all rows of a thread meet it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.symbolic_size import evaluated, integer
from partita_cpu.gemm.packed_lhs import (
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
    Chunk,
    MatrixSizes,
    Sides,
    Weights,
    is_unusual,
    multiply_chunk,
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
    floats_of_thread,
    multiply_floats,
    panel_of,
)
from partita_cpu.machine_model import MachineModel

GROUP_SHARE = 1 / 4
"""Of the second-level cache, for unpacked weights of tiles across whose sums are put aside."""

_HALF_BYTES = 2 * TILE


def unpacked_table(product: MatrixSizes, machine: MachineModel, threads: int) -> Array:
    """The table of `multiply_packed`, with no more tiles across at a time than fit the cache."""
    table = packed_lhs_table(product, machine, threads)
    tile_bytes = 2 * _HALF_BYTES * product.planes * table[CHUNK]
    most = max(1, machine.l2_bytes(GROUP_SHARE) // tile_bytes)
    table[GROUP] = evaluated(min, table[GROUP], most)
    return table


def unpacked_size(table: Array) -> int:
    """16-bit numbers of the weights that a thread unpacks at a time."""
    size: int = integer(table[GROUP] * table[CHUNK] * 2 * TILE * table[PLANES]) + 32
    return size


class UnpackContext(NamedTuple):
    """Memory, kernels and plan.

    Attributes:
        scratch: Bytes; `packed_lhs.thread_bytes` for each thread.
        unpacked: `unpacked_size` numbers for each thread.
        floats: Scratch memory as for `multiply_blocks`.
        kernels: `tile_kernels.packed_lhs_kernels`.
        unpack: The kernel that unpacks a step.
        p: `unpacked_table`.
    """

    scratch: KernelArray
    unpacked: KernelArray
    floats: KernelArray
    kernels: KernelArray
    unpack: KernelArray
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
        x: The left side, flat.
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
    sides = Sides(tiles, of_tiles, tiles, tile + -tile % 64)
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
                    _unpack(arrays, context.unpack[0], p[PLANES], sizes, block, chunk, depth, to)
                cut = Chunk(panel, stop, group, end, chunk, False)
                weights = Weights(place, pitch, place)
                multiply_chunk(sides, product, weights, kernels, p, epilogue, cut)
    call_plain(kernels[RELEASE], (0,))
    _repeat_unusual(x, sides, arrays, context, sizes, tid, (top, bottom, first, last))


@loop
def _unpack(
    arrays: BlockArrays,
    kernel: int,
    planes: int,
    sizes: RowSizes,
    block: int,
    chunk: int,
    depth: int,
    to: int,
) -> None:
    """Unpacks some steps of a tile's columns, which are two panels."""
    size, step_bytes = sizes.size, STEP * HALF * sizes.bits // 8
    panels = -(-sizes.columns // HALF)
    for half in range(2):
        # Where there is no second panel the first one takes its place: those columns do not exist.
        panel = panel_of(arrays, sizes, min(2 * block + half, panels - 1))
        for step in range(chunk, chunk + depth):
            one, other = step * STEP // size * HALF, (step * STEP + HALF) // size * HALF
            target = to + ((step - chunk) * planes * 2 + half) * _HALF_BYTES
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
    sides: Sides,
    arrays: BlockArrays,
    context: UnpackContext,
    sizes: RowSizes,
    tid: int,
    share: Any,
) -> None:
    """Computes rows anew that hold infinity or NaN, which have no second parts."""
    top, bottom, first, last = share
    steps, panels = context.p[STEPS], -(-sizes.columns // HALF)
    own = address(context.floats) + 4 * tid * floats_of_thread(sizes.size)
    for half in range(2 * top, min(2 * bottom, -(-sizes.rows // HALF))):
        if not is_unusual(sides.sizes, half * steps, steps):
            continue
        for row in range(half * HALF, min(half * HALF + HALF, sizes.rows)):
            for number in range(2 * first, min(2 * last, panels)):
                panel = panel_of(arrays, sizes, number)
                multiply_floats(x, arrays, sizes, panel, own, row, row + 1)

"""Loops over experts: threads share the columns of each expert that has rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.gemm.tile_kernels import NARROW
from partita_cpu.jit.intrinsics.address_call import address, call_narrow, call_tile
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.quantized_weights.row_products import (
    BlockArrays,
    RowSizes,
    multiply_blocks,
)
from partita_cpu.kernels.quantized_weights.unpacked_products import (
    Unpacked,
    multiply_unpacked_rows,
)
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS

_TILE_BYTES = 4096
_ZERO_BYTES = 256
THREAD_BYTES = _TILE_BYTES + _ZERO_BYTES + 128
"""Of a thread: a tile, zeros to begin with, and what aligns them."""


class ExpertSizes(NamedTuple):
    """Sizes of one expert's product in blocks.

    Attributes:
        row_bytes: Of a quantized row; of one of float32, its elements.
        many_bytes: Of a row of an expert of many.
        weight_bytes: Of the packed weights.
        scale_bytes: Of the packed scales.
        zero_bytes: Of the packed zero points; 0 if one serves all.
        fewest: Rows from which on weights are unpacked.
    """

    row_bytes: int
    many_bytes: int
    weight_bytes: int
    scale_bytes: int
    zero_bytes: int
    fewest: int


class ExpertRows(NamedTuple):
    """Rows in the order of their experts.

    Attributes:
        x: Rows, flat.
        quantized: The same as `quantize_rows` leaves them, or as they are without kernels.
        of_many: The same for experts of many rows: as `quantize_groups` leaves them, or the same.
        starts: See `Routes`.
    """

    x: KernelArray
    quantized: KernelArray
    of_many: KernelArray
    starts: KernelArray


class ExpertKernels(NamedTuple):
    """Kernels by number of rows.

    Attributes:
        packed: `tile_kernels.block_kernels`.
        unpacked: `tile_kernels.pair_kernels` or `quad_kernels`, or anything if rows are never
            enough.
    """

    packed: KernelArray
    unpacked: KernelArray


@loop
def multiply_experts(
    left: ExpertRows,
    arrays: BlockArrays,
    kernels: ExpertKernels,
    sizes: RowSizes,
    of_expert: ExpertSizes,
    unpacked: Unpacked,
    floats: Any,
    tid: int,
    nt: int,
) -> None:
    """Rows times the weights of their experts.

    Args:
        left: The rows.
        arrays: Weights of all experts; one row of biases for all; the result.
        kernels: Kernels.
        sizes: Of one expert's product, of any number of rows.
        of_expert: The same in bytes.
        unpacked: What both sides become of many rows.
        floats: Scratch memory, `thread_floats` for each thread.
        tid: This thread.
        nt: All threads.
    """
    terms, columns = sizes.terms, sizes.columns
    for expert in range(left.starts.size - 1):
        first, last = left.starts[expert], left.starts[expert + 1]
        if first == last:
            continue
        own = RowSizes(
            last - first,
            terms,
            columns,
            sizes.size,
            sizes.bits,
            sizes.scale_bytes,
            sizes.zeros,
            sizes.zero,
            sizes.chunk,
            sizes.shares,
        )
        whole, of_many = of_expert.row_bytes, of_expert.many_bytes
        given = left.x[first * terms : last * terms]
        parts = BlockArrays(
            arrays.w[expert * of_expert.weight_bytes :],
            arrays.scales[expert * of_expert.scale_bytes :],
            arrays.zeros[expert * of_expert.zero_bytes :],
            arrays.bias,
            arrays.y[first * columns : last * columns],
        )
        if last - first >= of_expert.fewest:
            many = left.of_many[first * of_many : last * of_many]
            multiply_unpacked_rows(
                given, many, parts, kernels.unpacked, own, unpacked, floats, tid, nt
            )
        else:
            rows = left.quantized[first * whole : last * whole]
            multiply_blocks(given, rows, parts, kernels.packed, own, floats, tid, nt)


class PlainSizes(NamedTuple):
    """Sizes of one expert's product of floats.

    Attributes:
        terms: Of a row.
        columns: Of the weights.
        wide: Columns that lie side by side.
        most: Rows of a tile.
        weight_bytes: Of a weight.
    """

    terms: int
    columns: int
    wide: int
    most: int
    weight_bytes: int


@loop(effort=Effort.CALLS)
def multiply_plain(
    x: Any,
    starts: Any,
    w: Any,
    y: Any,
    scratch: Any,
    offsets: Any,
    kernels: Any,
    sizes: PlainSizes,
    tid: int,
    nt: int,
) -> None:
    """Rows times the weights of their experts, on kernels for tiles.

    Args:
        x: Rows, flat.
        starts: See `Routes`.
        w: `packed_plain`.
        y: The result, flat.
        scratch: Bytes; `THREAD_BYTES` for each thread.
        offsets: One zero.
        kernels: `tile_kernels.tile_kernels`.
        sizes: Of one expert's product.
        tid: This thread.
        nt: All threads.
    """
    terms, columns, wide = sizes.terms, sizes.columns, sizes.wide
    blocks = -(-columns // wide)
    threads = min(nt, scratch.size // THREAD_BYTES)
    if tid >= threads:
        return
    tile = address(scratch) + tid * THREAD_BYTES
    tile += -tile % 64
    zeros = tile + _TILE_BYTES
    call_narrow(kernels[NARROW], (tile, 0, zeros, 0, wide))
    block_bytes = terms * wide * sizes.weight_bytes
    low, high = np.float32(-np.inf), np.float32(np.inf)
    for expert in range(starts.size - 1):
        start, count = starts[expert], starts[expert + 1] - starts[expert]
        tiles = -(-count // sizes.most)
        for block in range(blocks * tid // threads, blocks * (tid + 1) // threads):
            b = address(w) + (expert * blocks + block) * block_bytes
            exist = min(wide, columns - block * wide)
            for t in range(tiles):
                row = start + count * t // tiles
                rows = start + count * (t + 1) // tiles - row
                to = address(y) + 4 * (row * columns + block * wide)
                call_tile(
                    kernels[rows],
                    (
                        address(x) + 4 * row * terms,
                        4 * terms,
                        address(offsets),
                        1,
                        terms,
                        b,
                        0,
                        rows,
                        0,
                        b + block_bytes,
                        tile,
                        zeros,
                        0,
                        to,
                        4 * columns,
                        exist,
                        low,
                        high,
                        0,
                    ),
                )


@loop
def multiply_columns(
    x: Any, starts: Any, w: Any, y: Any, sums: Any, terms: int, columns: int, tid: int, nt: int
) -> None:
    """The same without kernels for tiles, of weights in float32, 16 columns side by side.

    Args:
        x: Rows, flat.
        starts: See `Routes`.
        w: `packed_plain`.
        y: The result, flat.
        sums: 16 for each thread.
        terms: Of a row.
        columns: Of an expert's weights.
        tid: This thread.
        nt: All threads.
    """
    threads = min(nt, sums.size // COLUMNS)
    if tid >= threads:
        return
    blocks = -(-columns // COLUMNS)
    total = sums[tid * COLUMNS : (tid + 1) * COLUMNS]
    for expert in range(starts.size - 1):
        for block in range(blocks * tid // threads, blocks * (tid + 1) // threads):
            place = (expert * blocks + block) * terms * COLUMNS
            exist = min(COLUMNS, columns - block * COLUMNS)
            for row in range(starts[expert], starts[expert + 1]):
                for c in range(COLUMNS):
                    total[c] = np.float32(0)
                for k in range(terms):
                    factor = x[row * terms + k]
                    weights = w[place + k * COLUMNS : place + (k + 1) * COLUMNS]
                    for c in range(COLUMNS):
                        total[c] += factor * weights[c]
                target = y[row * columns + block * COLUMNS :]
                for c in range(exist):
                    target[c] = total[c]

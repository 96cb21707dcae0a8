"""Products of rows with the weights of their experts: see `routing` and `weights`.

How many rows an expert has is known at the run alone. Threads share the columns of each expert, so
that each reads its part of the weights once, and only those of experts that have rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.system.processors import usable_processors
from partita_cpu.gemm.precision_policy import PrecisionPolicy, native_policy
from partita_cpu.gemm.product_steps import BY_STORED
from partita_cpu.gemm.tile_kernels import (
    NARROW,
    Arithmetic,
    block_exec_type,
    block_kernels,
    quad_kernels,
    tile_columns,
    tile_kernels,
    tile_rows,
    unpacked_kernels,
)
from partita_cpu.jit.intrinsics.address_call import address, call_narrow, call_tile
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.mixture.routing import Routes
from partita_cpu.kernels.mixture.weights import (
    BlockWeights,
    PlainWeights,
    experts_together,
    packed_experts,
    packed_plain,
)
from partita_cpu.kernels.quantized_weights.matmul_nbits import (
    grouped_rows,
    quantized_rows,
    unpacked_sides,
)
from partita_cpu.kernels.quantized_weights.panels import BlockSizes
from partita_cpu.kernels.quantized_weights.row_products import (
    BlockArrays,
    RowSizes,
    multiply_blocks,
    row_bytes,
)
from partita_cpu.kernels.quantized_weights.split_rows import add_halves, split_rows
from partita_cpu.kernels.quantized_weights.unpacked_products import (
    Unpacked,
    chunk_rows,
    fewest_rows,
    multiply_unpacked_rows,
    thread_floats,
)
from partita_cpu.kernels.quantized_weights.unpacked_products import row_bytes as unpacked_row_bytes
from partita_cpu.llvm.levels import PORTABLE
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, Variant, Zeros
from partita_cpu.llvm.tiles.dot_unpacked import Factors
from partita_cpu.machine_model import MachineModel

_NO_ROWS = 1 << 40
"""More than any product has: weights are never unpacked."""

_TILE_BYTES = 4096
_ZERO_BYTES = 256
_ROOM = _TILE_BYTES + _ZERO_BYTES + 128
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
        unpacked: `tile_kernels.unpacked_kernels` or `quad_kernels`, or anything if rows are never
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
        scratch: Bytes; `_ROOM` for each thread.
        offsets: One zero.
        kernels: `tile_kernels.tile_kernels`.
        sizes: Of one expert's product.
        tid: This thread.
        nt: All threads.
    """
    terms, columns, wide = sizes.terms, sizes.columns, sizes.wide
    blocks = -(-columns // wide)
    threads = min(nt, scratch.size // _ROOM)
    if tid >= threads:
        return
    tile = address(scratch) + tid * _ROOM
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


def product(b: Builder, x: Operand, found: Routes, weights: BlockWeights | PlainWeights) -> Operand:
    """Rows (rows, terms) times the weights of their experts: (rows, columns)."""
    if isinstance(weights, PlainWeights):
        y = b.empty((found.rows, weights.columns), np.float32)
        _emit_plain(b, x, found, weights, y)
        return y
    y = b.empty((found.rows, weights.sizes.columns), np.float32)
    policy = native_policy(b.options)
    if policy is not None and policy.is_exact and not policy.group:
        _emit_exactly(b, x, found, weights, y)
    else:
        _emit_blocks(b, x, found.starts, weights, y)
    return y


def _emit_exactly(b: Builder, x: Operand, found: Routes, weights: BlockWeights, y: Operand) -> None:
    """Multiplies rows and what 16 bits lose of them, as rows of the same expert."""
    sizes, rows = weights.sizes, found.rows

    def split() -> Operand:
        out = b.empty((2 * rows, sizes.terms), np.float32)
        b.call(split_rows, b.flat(x), b.flat(out), rows, sizes.terms, sizes.size)
        return out

    def doubled() -> Operand:
        out = b.empty(found.starts.shape, np.int64)
        b.call_numpy(np.add, found.starts, found.starts, out)
        return out

    both = b.once(x, ("split", sizes.size), split)
    parts = b.empty((2 * rows, sizes.columns), np.float32)
    _emit_blocks(b, both, b.once(found.starts, "doubled", doubled), weights, parts)
    nothing = b.zeros(sizes.columns, np.float32)
    b.call(add_halves, b.flat(parts), nothing, b.flat(y), sizes.columns)


def _emit_blocks(
    b: Builder, x: Operand, starts: Operand, weights: BlockWeights, y: Operand
) -> None:
    known = b.options if isinstance(b.options, PrecisionPolicy) else None
    threads = usable_processors() if known is None else known.threads
    machine = MachineModel(PORTABLE) if known is None else known.machine
    native, sizes, rows = native_policy(b.options), weights.sizes, x.shape[0]
    panels = packed_experts(b, weights, threads)
    unpacked, fewest = _unpacked(native, sizes, rows)
    in_bytes = native is not None and unpacked.factor == Factors.QUADS.size
    packed_kernels = b.constant(block_kernels(machine.level, panels.variant))
    kernels = ExpertKernels(packed_kernels, packed_kernels)
    if native is not None and fewest < _NO_ROWS:
        many = _kernels_of_many(native, unpacked, panels.variant)
        kernels = ExpertKernels(packed_kernels, b.constant(many))
    count = experts_together(weights).columns // weights.experts * sizes.blocks
    of_row = sizes.terms if native is None else row_bytes(sizes.terms, sizes.size)
    quantized = grouped = b.flat(x)
    if native is not None:
        quantized = grouped = quantized_rows(b, native.level, x, panels, sizes)
    if native is not None and in_bytes:
        grouped = grouped_rows(b, x, unpacked, panels, sizes, native)
    of_expert = ExpertSizes(
        of_row,
        unpacked_row_bytes(sizes.terms, sizes.size, unpacked) if in_bytes else of_row,
        sizes.weight_bytes,
        panels.scales.size // weights.experts,
        0 if panels.zeros.size == 1 else panels.zeros.size // weights.experts,
        fewest,
    )
    variant = panels.variant
    b.call(
        multiply_experts,
        ExpertRows(
            b.flat(x),
            quantized,
            grouped,
            starts,
        ),
        BlockArrays(
            panels.w,
            panels.scales,
            panels.zeros,
            b.zeros(sizes.columns, np.float32),
            b.flat(y),
        ),
        kernels,
        RowSizes(
            0,
            *sizes,
            variant.scale_bytes,
            int(variant.zeros),
            panels.zero,
            chunk_rows(machine, unpacked),
            threads,
        ),
        of_expert,
        unpacked,
        b.empty((threads * thread_floats(sizes.size, unpacked),), np.float32),
        work=rows * count * sizes.size // 4,
        exec_type=block_exec_type(machine.level, sizes.bits),
    )


def _unpacked(policy: PrecisionPolicy | None, sizes: BlockSizes, rows: int) -> tuple[Unpacked, int]:
    """What both sides of many of some rows become, and how many that are."""
    found = None if policy is None else unpacked_sides(policy, sizes)
    if policy is None or found is None:
        return Unpacked(Factors.PAIRS.size, sizes.size, COLUMNS), _NO_ROWS
    fewest = fewest_rows(policy.level, found)
    if rows >= fewest:
        return found, fewest
    return Unpacked(Factors.PAIRS.size, sizes.size, COLUMNS), _NO_ROWS


def _kernels_of_many(policy: PrecisionPolicy, unpacked: Unpacked, variant: Variant) -> Array:
    """The kernels for weights that were unpacked."""
    if unpacked.factor == Factors.QUADS.size:
        return quad_kernels(policy.level, variant)
    has_terms = variant.zeros in (Zeros.HALVES, Zeros.FLOATS)
    return unpacked_kernels(policy.level, Factors.PAIRS, has_terms)


def _emit_plain(b: Builder, x: Operand, found: Routes, weights: PlainWeights, y: Operand) -> None:
    policy, terms, columns = native_policy(b.options), weights.terms, weights.columns
    work = found.rows * terms * columns
    if policy is None:
        threads = usable_processors()
        w = packed_plain(b, weights, COLUMNS, np.dtype(np.float32))
        sums = b.empty((threads * COLUMNS,), np.float32)
        b.call(
            multiply_columns,
            b.flat(x),
            found.starts,
            w,
            b.flat(y),
            sums,
            terms,
            columns,
            work=work,
        )
        return
    kind = weights.w.operands[0].dtype
    arithmetic = BY_STORED.get(kind, Arithmetic.F32)
    wide = tile_columns(policy.level)
    b.call(
        multiply_plain,
        b.flat(x),
        found.starts,
        packed_plain(b, weights, wide, kind),
        b.flat(y),
        b.empty((policy.threads * _ROOM,), np.uint8),
        b.constant(np.zeros(1, np.int64)),
        b.constant(tile_kernels(policy.level, arithmetic)),
        PlainSizes(terms, columns, wide, tile_rows(policy.level, arithmetic), kind.itemsize),
        work=work,
        exec_type=arithmetic.exec_type(policy.level),
    )

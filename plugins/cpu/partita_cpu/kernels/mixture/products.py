"""Products of sorted rows with the weights of their experts; see `routing` and `weights`.

How many rows an expert has is only known at run time. Threads share the columns of each expert, so
that each reads its part of the weights once, and only those of experts that have rows.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.system.processors import usable_processors
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns, tile_rows
from partita_cpu.gemm.precision_policy import PrecisionPolicy, native_policy
from partita_cpu.gemm.product_steps import BY_STORED
from partita_cpu.gemm.tile_kernels import (
    block_exec_type,
    block_kernels,
    pair_kernels,
    quad_kernels,
    tile_kernels,
)
from partita_cpu.kernels.mixture.expert_loops import (
    THREAD_BYTES,
    ExpertKernels,
    ExpertRows,
    ExpertSizes,
    PlainSizes,
    multiply_columns,
    multiply_experts,
    multiply_plain,
)
from partita_cpu.kernels.mixture.routing import Routes
from partita_cpu.kernels.mixture.weights import (
    BlockWeights,
    PlainWeights,
    experts_together,
    packed_experts,
    packed_plain,
)
from partita_cpu.kernels.quantized_weights.matmul_nbits import (
    exact_level,
    grouped_rows,
    quantized_rows,
    unpacked_sides,
)
from partita_cpu.kernels.quantized_weights.panels import BlockSizes
from partita_cpu.kernels.quantized_weights.row_products import BlockArrays, RowSizes
from partita_cpu.kernels.quantized_weights.rows_int16 import row_bytes
from partita_cpu.kernels.quantized_weights.split_rows import add_halves, with_rounding_errors
from partita_cpu.kernels.quantized_weights.unpacked_products import (
    Unpacked,
    chunk_rows,
    fewest_rows,
    thread_floats,
)
from partita_cpu.kernels.quantized_weights.unpacked_products import row_bytes as unpacked_row_bytes
from partita_cpu.llvm.levels import PORTABLE
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, Variant
from partita_cpu.llvm.tiles.dot_unpacked import Factors
from partita_cpu.machine_model import MachineModel

_NO_ROWS = 1 << 40
"""More than any product has: weights are never unpacked."""


def product(b: Builder, x: Operand, found: Routes, weights: BlockWeights | PlainWeights) -> Operand:
    """Rows (rows, terms) times the weights of their experts: (rows, columns)."""
    if isinstance(weights, PlainWeights):
        y = b.empty((found.rows, weights.columns), np.float32)
        _emit_plain(b, x, found, weights, y)
        return y
    y = b.empty((found.rows, weights.sizes.columns), np.float32)
    if (level := exact_level(b)) is not None:
        _emit_exactly(b, with_rounding_errors(b, level, x, weights.sizes.size), found, weights, y)
    else:
        _emit_blocks(b, x, found.starts, weights, y)
    return y


def _emit_exactly(
    b: Builder, both: Operand, found: Routes, weights: BlockWeights, y: Operand
) -> None:
    """Multiplies rows and their errors in int16 (`with_rounding_errors`), rows of one expert."""
    sizes = weights.sizes

    def doubled() -> Operand:
        out = b.empty(found.starts.shape, np.int64)
        b.call_numpy(np.add, found.starts, found.starts, out)
        return out

    parts = b.empty((both.shape[0], sizes.columns), np.float32)
    _emit_blocks(b, both, b.once(found.starts, "doubled", doubled), weights, parts)
    nothing = b.zeros(sizes.columns, np.float32)
    b.call(add_halves, b.flat(parts), nothing, b.flat(y), sizes.columns)


def _emit_blocks(
    b: Builder, x: Operand, starts: Operand, weights: BlockWeights, y: Operand
) -> None:
    known = b.options if isinstance(b.options, PrecisionPolicy) else None
    threads = usable_processors() if known is None else known.threads
    machine = MachineModel(PORTABLE) if known is None else known.machine
    native, rows = native_policy(b.options), x.shape[0]
    panels = packed_experts(b, weights, threads)
    sizes = weights.sizes._replace(bits=panels.variant.bits)
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
    return pair_kernels(policy.level, variant)


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
        b.empty((policy.threads * THREAD_BYTES,), np.uint8),
        b.constant(np.zeros(1, np.int64)),
        b.constant(tile_kernels(policy.level, arithmetic)),
        PlainSizes(terms, columns, wide, tile_rows(policy.level, arithmetic), kind.itemsize),
        work=work,
        exec_type=arithmetic.exec_type(policy.level),
    )

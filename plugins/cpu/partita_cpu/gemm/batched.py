"""Batched matrix products of which neither side is constant, as in attention.

The right matrices are packed when the product runs; threads share the rows of all products.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns, tile_rows
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.tile_kernels import NARROW, tile_kernels
from partita_cpu.jit.intrinsics.address_call import address, call_narrow, call_tile
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.threads.thread_memory import room_of, thread_memory

PACKED_SHARE = 2.0
"""Of the second-level cache: right matrices that take more when they are packed are left to BLAS.

Every thread packs them for itself. They are read in order, so that they need not quite fit.
"""

_ROOM = 4096 + 256 + 128


class BatchSizes(NamedTuple):
    """Sizes of products of matrices one behind another.

    Attributes:
        x_step: Elements from one left matrix to the next; 0 if there is one only.
        w_step: The same for the right ones.
        m: Rows.
        k: Length of sums.
        n: Columns.
        most: Rows of a tile.
        wide: Columns of a tile.
        thread_bytes: Scratch memory of a thread.
    """

    x_step: int
    w_step: int
    m: int
    k: int
    n: int
    most: int
    wide: int
    thread_bytes: int


@loop(effort=Effort.CALLS)
def multiply_batches(
    x: Array,
    w: Array,
    y: Array,
    scratch: Array,
    offsets: Array,
    kernels: Array,
    sizes: BatchSizes,
    tid: int,
    nt: int,
) -> None:
    """``y[i] = x[i] @ w[i]`` for matrices one behind another.

    Args:
        x: Left matrices (m, k), flat.
        w: Right matrices (k, n), flat.
        y: Results (m, n), flat.
        scratch: Bytes; `thread_bytes` for each thread.
        offsets: One zero.
        kernels: `tile_kernels.tile_kernels` for float32.
        sizes: Of the matrices, tiles and memory.
        tid: This thread.
        nt: All threads.
    """
    x_step, w_step, m, k, n, most, wide, thread_bytes = sizes
    threads = min(nt, scratch.size // thread_bytes)
    if tid >= threads:
        return
    base = address(scratch) + tid * thread_bytes
    base += -base % 64
    blocks = -(-n // wide)
    tile = base + blocks * k * wide * 4
    zeros = tile + 4096
    call_narrow(kernels[NARROW], (base, 0, zeros, 0, wide))
    tiles = -(-m // most)
    batches = y.size // (m * n)
    packed = -1
    unit, end = batches * tiles * tid // threads, batches * tiles * (tid + 1) // threads
    low, high = np.float32(-np.inf), np.float32(np.inf)
    while unit < end:
        batch = unit // tiles
        first = unit - batch * tiles
        last = min(tiles, first + end - unit)
        source = address(w) + 4 * batch * w_step
        if packed < 0 or w_step:
            for block in range(blocks):
                width = min(wide, n - block * wide)
                to = base + block * k * wide * 4
                for row in range(k):
                    at = source + 4 * (row * n + block * wide)
                    call_narrow(kernels[NARROW], (at, width, to + 4 * row * wide, 0, wide))
            packed = batch
        for block in range(blocks):
            width = min(wide, n - block * wide)
            for t in range(first, last):
                row = m * t // tiles
                rows = m * (t + 1) // tiles - row
                a = address(x) + 4 * (batch * x_step + row * k)
                b = base + block * k * wide * 4
                to = address(y) + 4 * ((batch * m + row) * n + block * wide)
                finish = (tile, zeros, 0, to, 4 * n, width, low, high, 0)
                call_tile(
                    kernels[rows], (a, 4 * k, address(offsets), 1, k, b, 0, rows, 0, b, *finish)
                )
        unit += last - first


def multiplies_batches(
    policy: PrecisionPolicy, x: Operand, w: Operand, y: Operand, terms: int
) -> bool:
    """Whether `emit_batches` records the products of these matrices, once they lie in order.

    Args:
        policy: What may be used.
        x: Left matrices; either of its last two dimensions may be the terms.
        w: Right matrices; likewise.
        y: Their products [..., rows, columns].
        terms: Of a sum.
    """
    if not x.dtype == w.dtype == np.float32 or not y.size or not terms:
        return False
    many = math.prod(y.shape[:-2])
    equal = all(math.prod(matrices.shape[:-2]) in (1, many) for matrices in (x, w))
    packed = _packed_bytes(policy, terms, y.shape[-1])
    return equal and packed <= policy.machine.l2_bytes(PACKED_SHARE)


def _packed_bytes(policy: PrecisionPolicy, terms: int, columns: int) -> int:
    wide = tile_columns(policy.level)
    return -(-columns // wide) * wide * terms * 4


def emit_batches(b: Builder, policy: PrecisionPolicy, x: Operand, w: Operand, y: Operand) -> None:
    """Records ``y = x @ w`` where `multiplies_batches` says so.

    Args:
        b: Records it.
        policy: What may be used.
        x: [..., rows, terms] of float32, as many matrices as `y` has, or one.
        w: [..., terms, columns], likewise.
        y: [..., rows, columns], which is written.
    """
    (m, k), n = x.shape[-2:], w.shape[-1]
    counts = math.prod(x.shape[:-2]), math.prod(w.shape[:-2])
    columns = tile_columns(policy.level)
    thread_bytes = room_of(_packed_bytes(policy, k, n) + _ROOM, policy.threads)
    b.call(
        multiply_batches,
        b.flat(x),
        b.flat(w),
        b.flat(y),
        thread_memory(b, policy.threads, thread_bytes),
        b.constant(np.zeros(1, np.int64)),
        b.constant(tile_kernels(policy.level, Arithmetic.F32)),
        BatchSizes(
            m * k if counts[0] > 1 else 0,
            k * n if counts[1] > 1 else 0,
            m,
            k,
            n,
            tile_rows(policy.level, Arithmetic.F32),
            columns,
            thread_bytes,
        ),
        work=y.size * k,
        exec_type=Arithmetic.F32.exec_type(policy.level),
    )

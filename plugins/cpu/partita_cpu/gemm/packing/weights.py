"""Packs the constant weights of a product as its plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering import Array
from partita.system.array_conversion import converted
from partita.system.large_pages import lasting_bytes
from partita.system.memory_map import give_back
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import Plan
from partita_cpu.gemm.packing.kernels import largest_bits, pack_halves
from partita_cpu.gemm.packing.packing_calls import Job, pack_all
from partita_cpu.gemm.packing.packing_table import Table, kernel_addresses
from partita_cpu.gemm.tile_fields import PAIR
from partita_cpu.gemm.tile_fields import STEP as WHOLE_STEP
from partita_cpu.scalar.subnormal import flushed_array
from partita_cpu.threads.step_team import team_of

LARGEST = 0x7F7F8000
"""Bits of the first float32 that rounds to an infinite bfloat16."""

_SHARED_BYTES = 1 << 19
"""Smaller results are there before another thread has begun."""

DeferredPacker = Callable[[Array, Array, Table], None]
"""Called with weights, the array to pack them to, and the table; packs now or later."""


def pack(plan: Plan, w: Array, threads: int = 1, later: DeferredPacker | None = None) -> Array:
    """Weights packed: a matrix (depth, columns), or those of a convolution.

    The result holds the bits of float32, float16 or bfloat16 numbers, as flat uint16. It is empty
    where some would be infinite in bfloat16.

    Args:
        plan: What they are packed for.
        w: Weights; those of a convolution as (outputs, channels of a group, down, across). A matrix
            of 16-bit floats where the plan is for products by such.
        threads: Threads that share the work.
        later: Who is told what is kept in float32, to make the result before it is read;
            ``None``: it is made now.
    """
    if plan.arithmetic in (Arithmetic.F32_BY_F16, Arithmetic.F32_BY_BF16):
        return _packed_halves(plan, w, threads)
    if w.dtype != np.float32:
        w = converted(w, np.float32)
    if not (w.flags.c_contiguous or w.flags.f_contiguous):
        w = np.ascontiguousarray(w)
    if w.ndim == 2:
        depth, columns = w.shape
        lies = (0, 1, columns, 0, 0) if w.flags.c_contiguous else (0, depth, 1, 0, 0)
        return _packed(plan, w, (depth, 1, 1, *lies), threads, later)
    w = np.ascontiguousarray(w)
    _, channels, down, across = w.shape
    size = channels * down * across
    group = plan.images.outputs // plan.images.groups * size
    taps, steps = (down, across), (across, 1)
    if plan.in_place:
        taps, steps = taps[::-1], steps[::-1]
    where = (channels, *taps, group, size, down * across, *steps)
    return _packed(plan, w, where, threads, later)


def packed_size(plan: Plan) -> int:
    """How many uint16 packed weights take, if they can be packed so."""
    rows = plan.taps * plan.padded * plan.storage.w_parts
    elements = plan.images.groups * plan.blocks * rows * plan.columns
    return elements * plan.arithmetic.planes * plan.arithmetic.weight_bytes // 2


def pack_bias(plan: Plan, bias: Array | None) -> Array:
    """A bias per output with zeros for the columns that tiles have too many."""
    groups, width = plan.images.groups, plan.blocks * plan.columns
    if bias is not None and bias.size == groups * width and bias.dtype == np.float32:
        return flushed_array(bias.reshape(-1))
    padded = np.zeros((groups, width), np.float32)
    if bias is not None:
        padded[:, : plan.images.outputs // groups] = flushed_array(bias).reshape(groups, -1)
    return padded.reshape(-1)


def rounds_to_infinity(w: Array, threads: int = 1) -> bool:
    """Whether some weights are not finite, or would not be in bfloat16."""
    flat = np.ravel(w if w.dtype == np.float32 else converted(w, np.float32), order="K")
    threads = threads if flat.nbytes >= _SHARED_BYTES else 1
    found = np.zeros(threads, np.int64)
    run_shared(threads, largest_bits, flat.ctypes.data, flat.size, found)
    give_back(w)  # many are looked at before the first one is packed
    return bool(found.max() >= LARGEST)


def _packed(
    plan: Plan, w: Array, lies: tuple[int, ...], threads: int, later: DeferredPacker | None
) -> Array:
    """Weights packed; ``lies``: the table's fields from `CHANNELS` to `ACROSS_STEP`."""
    groups, arithmetic = plan.images.groups, plan.arithmetic
    outputs = plan.images.outputs // groups
    rows, planes = plan.taps * plan.padded, arithmetic.planes
    pairs = plan.step == PAIR
    step = WHOLE_STEP if pairs else plan.step
    layout = (rows, plan.run, plan.padded, plan.blocks, plan.columns, planes, step)
    kernels = kernel_addresses(plan.level, plan.arithmetic)
    table = (groups, outputs, *lies, *layout, *kernels, int(pairs), 0)
    out = aligned(packed_size(plan))
    if later is not None and arithmetic is Arithmetic.F32 and plan.level.native:
        later(w, out, table)
        return out
    if arithmetic is Arithmetic.F16:
        whole = np.empty(2 * groups * plan.blocks * rows * plan.columns * planes, np.uint16)
        pack_all([Job(w, whole, table)], threads)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            out.view(np.float16)[...] = whole.view(np.float32)
        return out
    return out if pack_all([Job(w, out, table)], threads) < LARGEST else out[:0]


def _packed_halves(plan: Plan, w: Array, threads: int) -> Array:
    """A matrix of 16-bit floats, whose bits are kept as they are."""
    depth, columns = w.shape
    out = aligned(packed_size(plan))
    steps = [stride // w.itemsize for stride in w.strides]
    sizes = (depth, columns, plan.columns, *steps)
    run_shared(shared_by(threads, out), pack_halves, w.ctypes.data, out, *sizes)
    give_back(w)
    return out


def shared_by(threads: int, result: Array) -> int:
    """How many of so many threads make a result: one, if it is small."""
    return threads if result.nbytes >= _SHARED_BYTES else 1


def run_shared(threads: int, kernel: Callable[..., None], *args: Any) -> None:
    """Runs a kernel on so many threads, outside of any program.

    Args:
        threads: How many; with 1 the calling thread runs it.
        kernel: Takes `args`, the number of a share, and how many there are.
        args: Arrays and numbers.
    """
    if threads > 1:
        team_of(threads, 0).run(kernel, *args)
    else:
        kernel(*args, 0, 1)


def aligned(count: int) -> Array:
    """Flat uint16 that last as long as the model; the first is at the start of a cache line."""
    return lasting_bytes(2 * count).view(np.uint16)

"""Weights in the order in which tile kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering import Array
from partita.mapped import give_back
from partita_cpu.kernels.loop_jit import loop
from partita_cpu.kernels.scalar import bits
from partita_cpu.native.invoke import float_bits
from partita_cpu.native.plan import Plan
from partita_cpu.native.table import Arithmetic
from partita_cpu.team import team_of

LARGEST = float(np.finfo(np.float32).max) * 0.99
"""Weights beyond this may round to infinity in bfloat16."""

_SHARED_BYTES = 1 << 19
"""Smaller results are there before another thread has begun."""

(
    GROUPS,
    OUTPUTS,
    CHANNELS,
    DOWN,
    ACROSS,
    GROUP_STEP,
    OUTPUT_STEP,
    CHANNEL_STEP,
    DOWN_STEP,
    ACROSS_STEP,
    RUN,
    PADDED,
    BLOCKS,
    COLUMNS,
    PLANES,
    STEP,
) = range(16)
"""What the table of the packing kernels holds: sizes of a group, elements from one neighbour to the
next in the weights, elements of a run with and without the zeros behind it, tiles across, their
columns, in how many parts elements are stored, and elements along k that AMX takes at a time.
"""


def pack(plan: Plan, w: Array, threads: int = 1) -> Array:
    """Weights of a convolution, (outputs, channels of a group, down, across), packed.

    The result holds the bits of float32, float16 or bfloat16 numbers, as flat uint16.
    """
    _, channels, down, across = w.shape
    size = channels * down * across
    steps = (plan.images.outputs // plan.images.groups * size, size, down * across, across, 1)
    return _packed(plan, w, (channels, down, across), steps, threads)


def pack_matrix(plan: Plan, w: Array, threads: int = 1) -> Array:
    """A matrix (depth, columns), packed."""
    depth, columns = w.shape
    steps = (0, 1, columns, 0, 0)
    if w.flags.f_contiguous and not w.flags.c_contiguous:
        w, steps = w.T, (0, depth, 1, 0, 0)
    return _packed(plan, w, (depth, 1, 1), steps, threads)


def pack_bias(plan: Plan, bias: Array | None) -> Array:
    """A bias per output with zeros for the columns that tiles have too many."""
    groups, width = plan.images.groups, plan.blocks * plan.columns
    padded = np.zeros((groups, width), np.float32)
    if bias is not None:
        padded[:, : plan.images.outputs // groups] = bias.reshape(groups, -1)
    return padded.reshape(-1)


def rounds_to_infinity(w: Array) -> bool:
    """Whether some weights are not finite, or would not be in bfloat16."""
    found = bool(w.size) and not bool(w.max() < LARGEST and w.min() > -LARGEST)
    give_back(w)  # many are looked at before the first one is packed
    return found


def _packed(
    plan: Plan, w: Array, sizes: tuple[int, ...], steps: tuple[int, ...], threads: int
) -> Array:
    groups, arithmetic = plan.images.groups, plan.arithmetic
    outputs = plan.images.outputs // groups
    layout = (plan.run, plan.padded, plan.blocks, plan.columns, arithmetic.planes, plan.step)
    table = np.array([groups, outputs, *sizes, *steps, *layout], np.int64)
    count = groups * plan.blocks * plan.taps * plan.padded * plan.columns * arithmetic.planes
    out = _aligned(count * arithmetic.weight_bytes // 2)
    threads = threads if out.nbytes >= _SHARED_BYTES else 1
    source = np.ascontiguousarray(w, np.float32).reshape(-1)
    if arithmetic is Arithmetic.F16:
        whole = np.empty(count, np.float32)
        _run(threads, _pack_floats, source, whole, table)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            out.view(np.float16)[...] = whole
        return out
    if arithmetic is Arithmetic.F16_SPLIT:
        source = source.astype(np.float16).astype(np.float32)
    if arithmetic is Arithmetic.F32:
        _run(threads, _pack_floats, source, out.view(np.float32), table)
    else:
        _run(threads, _pack_halves, source, out, table)
    return out


def _run(threads: int, kernel: Callable[..., None], *args: Array) -> None:
    if threads > 1:
        team_of(threads, 0).run(kernel, *args)
    else:
        kernel(*args, 0, 1)


def _aligned(count: int) -> Array:
    """Flat uint16, the first at the start of a cache line."""
    raw = np.empty(2 * count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + 2 * count].view(np.uint16)


@loop
def _pack_floats(w: Any, out: Any, p: Any, tid: int, nt: int) -> None:
    """Blocks of columns, each (taps and their elements, columns)."""
    blocks, columns = p[BLOCKS], p[COLUMNS]
    units = p[GROUPS] * blocks
    rows = out.size // (units * columns)
    for unit in range(units * tid // nt, units * (tid + 1) // nt):
        group = unit // blocks
        first = (unit - group * blocks) * columns
        exist = min(columns, p[OUTPUTS] - first)
        origin = group * p[GROUP_STEP] + first * p[OUTPUT_STEP]
        y, x, c = 0, 0, 0
        for row in range(rows):
            line = out[(unit * rows + row) * columns : (unit * rows + row + 1) * columns]
            if row % p[PADDED] >= p[RUN]:
                line[:] = 0
                continue
            at = origin + y * p[DOWN_STEP] + x * p[ACROSS_STEP] + c * p[CHANNEL_STEP]
            if p[OUTPUT_STEP] == 1:
                for j in range(exist):
                    line[j] = w[np.uint64(at + j)]
            else:
                for j in range(exist):
                    line[j] = w[np.uint64(at + j * p[OUTPUT_STEP])]
            for j in range(exist, columns):
                line[j] = 0
            y, x, c = _next(y, x, c, p)


@loop
def _pack_halves(w: Any, out: Any, p: Any, tid: int, nt: int) -> None:
    """(block, step, plane, half of the columns, pair of k, column, 2), as `ir.amx` says."""
    blocks, columns, planes = p[BLOCKS], p[COLUMNS], p[PLANES]
    half = 16 * p[STEP]
    units = p[GROUPS] * blocks
    rows = out.size // (units * columns * planes)
    for unit in range(units * tid // nt, units * (tid + 1) // nt):
        group = unit // blocks
        first = (unit - group * blocks) * columns
        exist = min(columns, p[OUTPUTS] - first)
        origin = group * p[GROUP_STEP] + first * p[OUTPUT_STEP]
        y, x, c = 0, 0, 0
        for row in range(rows):
            step, inside = row // p[STEP], row % p[STEP]
            to = (unit * rows // p[STEP] + step) * planes * 2 * half
            to += inside // 2 * 32 + inside % 2
            there = exist if row % p[PADDED] < p[RUN] else 0
            at = origin + y * p[DOWN_STEP] + x * p[ACROSS_STEP] + c * p[CHANNEL_STEP]
            for j in range(columns):
                value = w[np.uint64(at + j * p[OUTPUT_STEP])] if j < there else np.float32(0)
                place = np.uint64(to + j // 16 * half + j % 16 * 2)
                for plane in range(planes):
                    part = _rounded(value)
                    out[place + np.uint64(2 * half * plane)] = part
                    value -= float_bits(np.int64(part) << 16)
            if there:
                y, x, c = _next(y, x, c, p)


@loop(inline=True)
def _rounded(value: Any) -> Any:
    """The upper half of a float32, rounded to even: bfloat16."""
    found = np.int64(bits(value)) & 0xFFFFFFFF
    return (found + 0x7FFF + ((found >> 16) & 1)) >> 16


@loop(inline=True)
def _next(y: int, x: int, c: int, p: Any) -> Any:
    """The element of a window behind this one: channels first, then across, then down."""
    c += 1
    if c == p[CHANNELS]:
        c, x = 0, x + 1
        if x == p[ACROSS]:
            x, y = 0, y + 1
    return y, x, c

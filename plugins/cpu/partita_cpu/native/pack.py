"""Weights in the order in which tile kernels read them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from partita.lowering import Array
from partita_cpu.native.plan import Plan
from partita_cpu.native.table import Arithmetic

LARGEST = float(np.finfo(np.float32).max) * 0.99
"""Weights beyond this may round to infinity in bfloat16."""


def pack(plan: Plan, w: Array) -> Array:
    """Weights of a convolution, (outputs, channels of a group, down, across), packed.

    The result holds the bits of float32 or bfloat16 numbers, as flat uint16.
    """
    groups = plan.images.groups
    outputs, channels, down, across = w.shape
    parts = w.reshape(groups, outputs // groups, channels, down, across)
    runs = parts.transpose(0, 3, 4, 2, 1).reshape(groups, plan.taps, plan.run, outputs // groups)
    return _blocks(plan, runs)


def pack_matrix(plan: Plan, w: Array) -> Array:
    """A matrix (depth, columns), packed."""
    return _blocks(plan, w.reshape(1, 1, *w.shape))


def pack_bias(plan: Plan, bias: Array | None) -> Array:
    """A bias per output with zeros for the columns that tiles have too many."""
    groups, width = plan.images.groups, plan.blocks * plan.columns
    padded = np.zeros((groups, width), np.float32)
    if bias is not None:
        padded[:, : plan.images.outputs // groups] = bias.reshape(groups, -1)
    return padded.reshape(-1)


def rounds_to_infinity(w: Array) -> bool:
    """Whether some weights are not finite, or would not be in bfloat16."""
    return bool(w.size) and not bool(np.abs(w).max() < LARGEST)


def _blocks(plan: Plan, runs: Array) -> Array:
    groups, taps, run, outputs = runs.shape
    width = plan.blocks * plan.columns
    if (run, outputs) != (plan.padded, width):
        padded = np.zeros((groups, taps, plan.padded, width), np.float32)
        padded[:, :, :run, :outputs] = runs
    else:
        padded = runs
    depth = taps * plan.padded
    if plan.arithmetic is Arithmetic.F32:
        blocks = padded.reshape(groups, depth, plan.blocks, plan.columns).transpose(0, 2, 1, 3)
        return _aligned(blocks)
    high = padded.astype(ml_dtypes.bfloat16)
    if plan.arithmetic is Arithmetic.BF16:
        return _aligned(_tiles(plan, high.reshape(groups, depth, width)))
    low = (padded - high.astype(np.float32)).astype(ml_dtypes.bfloat16)
    both = np.stack([high, low]).reshape(2, groups, depth, width)
    tiles = np.stack([_tiles(plan, part) for part in both], axis=3)
    return _aligned(tiles)


def _tiles(plan: Plan, half: Array) -> Array:
    """(group, block, step, half of the columns, pair of k, column, 2)."""
    groups, depth, _ = half.shape
    pairs = half.view(np.uint16).reshape(
        groups, depth // plan.step, plan.step // 2, 2, plan.blocks, 2, 16
    )
    return pairs.transpose(0, 4, 1, 5, 2, 6, 3)


def _aligned(array: Array) -> Array:
    """The bits of a contiguous copy that starts at a cache line, as flat uint16."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    flat = raw[start : start + array.nbytes].view(array.dtype)
    flat.reshape(array.shape)[...] = array
    return flat.view(np.uint16)

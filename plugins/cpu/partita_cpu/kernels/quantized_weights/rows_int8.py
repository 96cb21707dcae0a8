"""Activation rows quantized to int8, with one scale for each group of terms.

The 8-bit form of `rows_int16`, for products of many rows by `dot_unpacked`. A group is one or
more units, and a unit is some terms that have one scale in the row and one in the weights::

    scale[g] = max(abs(x[k]) for k in group g) / 127
    level[k] = round(x[k] / scale[g])                    # int8, ties to even

A quantized row is its levels (int8, in the order of `dot_unpacked.quad_order`), then per unit the
scale and what removes the weights' zero points (as in `rows_int16`), then whether all terms
are finite (int32).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.jit.intrinsics.address_array import floats_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_groups
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.quantized_groups import STEP


class GroupSizes(NamedTuple):
    """Sizes of quantized rows.

    Attributes:
        terms: Terms of a row.
        padded: The same, rounded up to whole blocks of weights.
        group: Terms that share a scale in a row, at most `padded`; the last group may have fewer.
        unit: Terms that share a scale both in a row and in the weights; divides `group`.
        zero: The zero point of the weights if all are equal.
    """

    terms: int
    padded: int
    group: int
    unit: int
    zero: int


@loop
def quantize_groups(
    x: Any, out: Any, kernel: Any, floats: Any, sizes: GroupSizes, tid: int, nt: int
) -> None:
    """Quantizes float32 rows to int8.

    Args:
        x: float32, flat.
        out: Bytes; `unpacked_products.row_bytes` for each row.
        kernel: `tile_kernels.int8_rows_kernel`.
        floats: Scratch memory: `group` for each thread.
        sizes: Sizes of the rows.
        tid: This thread.
        nt: All threads.
    """
    terms, padded, group, unit, zero = sizes
    whole = padded + 8 * (padded // unit) + 8
    rows = x.size // terms
    threads = min(nt, floats.size // group)
    if tid >= threads:
        return
    rest = floats[tid * group : (tid + 1) * group]
    whole_groups = terms // group
    behind = whole_groups * group
    for row in range(rows * tid // threads, rows * (tid + 1) // threads):
        place = address(out) + row * whole
        source = address(x) + 4 * row * terms
        finite = _round(kernel, source, place, place + padded, whole_groups, group, unit, zero)
        for first in range(behind, padded, group):  # one that the row ends within, or zeros
            count = min(group, padded - first)
            there = max(0, terms - first)
            given = floats_at(source + 4 * first, there)
            for i in range(there):
                rest[i] = given[i]
            for i in range(there, count):
                rest[i] = np.float32(0)
            numbers = place + padded + 8 * (first // unit)
            finite &= _round(kernel, address(rest), place + first, numbers, 1, count, unit, zero)
        sizes_at(place + whole - 8, 2)[0] = np.int32(finite)


@loop(inline=True)
def _round(
    kernel: Any,
    source: Any,
    to: Any,
    numbers: Any,
    groups: Any,
    group: Any,
    unit: Any,
    zero: Any,
) -> Any:
    """Rounds some groups of terms to bytes, and tells whether all are finite.

    Args:
        kernel: Address of the kernel.
        source: Address of the terms.
        to: Address of the bytes.
        numbers: Address of the groups' scales and sums.
        groups: How many.
        group: Terms of a group.
        unit: Terms that one sum is of.
        zero: Added to each byte.
    """
    return call_groups(kernel[0], (source, to, numbers, groups, group // unit, unit // STEP, zero))

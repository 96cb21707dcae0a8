"""Rows as int8, each group of terms by its largest one: see `int8_groups` and `dot_unpacked`.

A row is its terms, then two numbers for each unit of terms, then whether all are finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita_cpu.jit.intrinsics.address_array import floats_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import address, call_groups
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.int8_groups import STEP


class GroupSizes(NamedTuple):
    """How rows are cut.

    Attributes:
        terms: Of a row.
        padded: The same up to whole blocks of weights.
        group: Terms that share a scale, `padded` at most; the last one may have fewer.
        unit: Terms that share one with the weights, too; divides groups.
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
    """Quantizes rows.

    Args:
        x: float32, flat.
        out: Bytes; `unpacked_products.row_bytes` for each row.
        kernel: `tile_kernels.groups_kernel`.
        floats: Scratch memory: `group` for each thread.
        sizes: How rows are cut.
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

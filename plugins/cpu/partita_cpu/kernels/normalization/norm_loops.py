"""Loops that normalize rows, planes and channels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.packed_lhs.packed_lhs_table import HALF, TILE
from partita_cpu.gemm.tile_fields import STEP
from partita_cpu.gemm.tile_kernels import NARROW
from partita_cpu.jit.intrinsics.address_array import sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_normalize_eights,
    call_normalize_tiles,
    call_pack_tile,
)
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.reduction.reduce_loops import BLOCK, sum_of_row
from partita_cpu.llvm.eight_rows import EIGHT
from partita_cpu.llvm.normalization import TILE_ROW_BYTES
from partita_cpu.scalar.instructions import add_in_any_order, like, muladd


@loop(inline=True)
def moments(row: Any, center: Any) -> Any:
    """Means of the differences from ``center`` and of their squares, in float64."""
    total, squares = np.float64(0), np.float64(0)
    for start in range(0, row.size, BLOCK):
        block = row[start : start + BLOCK]
        part, square = like(center, 0), like(center, 0)
        for i in range(block.size):
            difference = block[i] - center
            part = add_in_any_order(part, difference)
            square = add_in_any_order(square, difference * difference)
        total += np.float64(part)
        squares += np.float64(square)
    share = 1 / np.float64(row.size)
    return total * share, squares * share


@loop(inline=True)
def inverse_deviation(square: Any, rest: Any, epsilon: Any) -> Any:
    """From the moments; the mean lies ``rest`` beyond the center that they are taken about."""
    variance = square - rest * rest
    variance = np.float64(0) if variance < 0 else variance  # and not max: it would swallow NaN
    return 1 / np.sqrt(variance + epsilon)


@loop(inline=True)
def mean_beyond(center: Any, rest: Any) -> Any:
    """The mean, ``rest`` beyond about the mean; an infinite one has elements NaN beyond it."""
    mean = np.float64(center)
    return like(center, mean if np.isinf(mean) else mean + rest)


class Normalized(NamedTuple):
    """The result, and what rows were moved and multiplied by."""

    y: KernelArray
    means: KernelArray
    inverses: KernelArray


@loop
def normalize_rows(
    x: Any,
    scale: Any,
    bias: Any,
    results: Normalized,
    outer: int,
    n: int,
    epsilon: float,
    centered: int,
    tid: int,
    nt: int,
) -> None:
    """Rows of n elements to mean 0 (if ``centered``) and square mean 1, times scale, plus bias.

    A mean far from 0 has no room for its last digits in the type of x. So what is taken off each
    element is about the mean first, which leaves small numbers, then what was missing.

    Args:
        x: (outer, n) numbers, flat.
        scale: Factor of each of n elements.
        bias: Term of each of n elements.
        results: (outer, n) numbers, flat, and the mean and inverse deviation of each row.
        outer: Rows.
        n: Elements of a row.
        epsilon: Added to the mean square.
        centered: Whether rows are brought to mean 0 (layer normalization, not RMS).
        tid: This thread.
        nt: All threads; they share rows.
    """
    y, means, inverses = results
    share = 1 / np.float64(n)
    if n <= BLOCK:
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            _normalize_row(x, scale, bias, results, o, n, share, epsilon, centered)
        return
    for o in range(outer * tid // nt, outer * (tid + 1) // nt):
        source, target = x[o * n : (o + 1) * n], y[o * n : (o + 1) * n]
        center = like(y[0], sum_of_row(source) * share) if centered else like(y[0], 0)
        rest, square = moments(source, center)
        rest = rest if centered else np.float64(0)
        inverse = like(center, inverse_deviation(square, rest, epsilon))
        means[o] = mean_beyond(center, rest)
        inverses[o] = inverse
        missing = like(center, rest)
        for i in range(target.size):
            target[i] = muladd(((source[i] - center) - missing) * inverse, scale[i], bias[i])


@loop(inline=True)
def _normalize_row(
    x: Any,
    scale: Any,
    bias: Any,
    results: Normalized,
    row: int,
    n: int,
    share: Any,
    epsilon: float,
    centered: int,
) -> None:
    """The same for a row of one block: to take slices of it takes as long as short rows do.

    Args:
        x: Rows, flat.
        scale: For each column.
        bias: For each column.
        results: What is written.
        row: The row.
        n: Columns.
        share: One over the columns.
        epsilon: Added to the variance.
        centered: Whether the mean is taken off.
    """
    y, means, inverses = results
    first, none = row * n, like(x[0], 0)
    center, part, square = none, none, none
    if centered:
        for i in range(n):
            part = add_in_any_order(part, x[np.uint64(first + i)])
        center = like(none, np.float64(part) * share)
    part = none
    for i in range(n):
        difference = x[np.uint64(first + i)] - center
        part = add_in_any_order(part, difference)
        square = add_in_any_order(square, difference * difference)
    rest = np.float64(part) * share if centered else np.float64(0)
    inverse = like(none, inverse_deviation(np.float64(square) * share, rest, epsilon))
    means[row], inverses[row] = mean_beyond(center, rest), inverse
    missing = like(none, rest)
    for i in range(n):
        value = ((x[np.uint64(first + i)] - center) - missing) * inverse
        y[np.uint64(first + i)] = muladd(value, scale[np.uint64(i)], bias[np.uint64(i)])


class RowSizes(NamedTuple):
    """Rows, elements of one, and whether each is brought to mean 0."""

    outer: int
    n: int
    centered: int


class Sums(NamedTuple):
    """Rows, what is added to them, and where sums go, which may be the rows themselves; flat."""

    x: KernelArray
    skip: KernelArray
    total: KernelArray


@loop
def normalize_short_rows(
    x: Any,
    scale: Any,
    bias: Any,
    results: Normalized,
    sizes: RowSizes,
    kernel: int,
    epsilon: float,
    tid: int,
    nt: int,
) -> None:
    """`normalize_rows` of short rows of float32, eight at a time.

    Args:
        x: Rows; flat.
        scale: A factor for each element of a row.
        bias: A term for each.
        results: What is written.
        sizes: Of rows.
        kernel: Address of one of `llvm.normalization.normalize_eights`.
        epsilon: What is added to variances.
        tid: This thread.
        nt: All threads; they share eights.
    """
    done = _normalize_eights(Sums(x, x, x), scale, bias, results, sizes, kernel, epsilon, tid, nt)
    if tid == nt - 1:
        share = 1 / np.float64(sizes.n)
        for o in range(done, sizes.outer):
            _normalize_row(x, scale, bias, results, o, sizes.n, share, epsilon, sizes.centered)


@loop
def normalize_short_sums(
    sums: Sums,
    scale: Any,
    bias: Any,
    results: Normalized,
    sizes: RowSizes,
    kernel: int,
    epsilon: float,
    tid: int,
    nt: int,
) -> None:
    """`normalize_short_rows` of sums, which are made on the way.

    Args:
        sums: What is added; receives the sums.
        scale: A factor for each element of a row.
        bias: A term for each.
        results: What is written.
        sizes: Of rows.
        kernel: Address of one of `llvm.normalization.normalize_eights`, one that adds.
        epsilon: What is added to variances.
        tid: This thread.
        nt: All threads; they share eights.
    """
    outer, n, centered = sizes
    done = _normalize_eights(sums, scale, bias, results, sizes, kernel, epsilon, tid, nt)
    if tid == nt - 1:
        share = 1 / np.float64(n)
        _add_rows(sums, done * n, (outer - done) * n)
        for o in range(done, outer):
            _normalize_row(sums.total, scale, bias, results, o, n, share, epsilon, centered)


@loop
def _normalize_eights(
    sums: Sums,
    scale: Any,
    bias: Any,
    results: Normalized,
    sizes: RowSizes,
    kernel: int,
    epsilon: float,
    tid: int,
    nt: int,
) -> int:
    """Normalizes this thread's share of whole eights of rows.

    Args:
        sums: Rows, or two addends of them.
        scale: For each column.
        bias: For each column.
        results: What is written.
        sizes: Rows and columns.
        kernel: Address of the kernel of eight rows.
        epsilon: Added to the variance.
        tid: This thread.
        nt: All threads.

    Returns:
        How many rows all shares have.
    """
    eights = sizes.outer // EIGHT
    first, stop = eights * tid // nt, eights * (tid + 1) // nt
    row = EIGHT * first
    at = 4 * sizes.n * row
    read = address(sums.x) + at, address(sums.skip) + at, address(sums.total) + at
    y, means, inverses = results
    moment_places = address(means) + 4 * row, address(inverses) + 4 * row
    written = address(scale), address(bias), address(y) + at, *moment_places
    call_normalize_eights(kernel, (stop - first, sizes.n, *read, *written, epsilon))
    return EIGHT * eights


class TiledRows(NamedTuple):
    """Rows that are laid out as tiles when they are normalized.

    Attributes:
        outer: How many.
        n: Elements of one, of whole tiles across.
        centered: Whether each is brought to mean 0.
        added: Whether they are sums, which are made on the way.
        planes: In how many parts of bfloat16 results are kept.
        kernel: Address of one of `llvm.normalization.normalize_eights` for that.
    """

    outer: int
    n: int
    centered: int
    added: int
    planes: int
    kernel: int


@loop
def normalize_to_tiles(
    sums: Sums,
    scale: Any,
    bias: Any,
    results: Normalized,
    tiles: Any,
    kernels: Any,
    given: TiledRows,
    epsilon: float,
    tid: int,
    nt: int,
) -> None:
    """`normalize_short_sums` where products alone read the results, which never lie as rows.

    Args:
        sums: What is added, and receives the sums; or the rows, thrice.
        scale: A factor for each element of a row.
        bias: A term for each.
        results: Statistics, and memory for fewer than eight rows.
        tiles: `packed_lhs_size` numbers.
        kernels: `tile_kernels.packed_lhs_kernels`.
        given: Of rows.
        epsilon: What is added to variances.
        tid: This thread.
        nt: All threads; they share rows of tiles.
    """
    outer, n, centered, added, planes, kernel = given
    halves, steps, share = -(-outer // HALF), n // STEP, 1 / np.float64(n)
    tile_bytes = 2 * planes * TILE
    sizes = sizes_at(address(tiles) + halves * steps * tile_bytes, halves * steps)
    y, means, inverses = results
    for half in range(halves * tid // nt, halves * (tid + 1) // nt):
        row = half * HALF
        eights, at = min(HALF, outer - row) // EIGHT, 4 * n * row
        read = address(sums.x) + at, address(sums.skip) + at, address(sums.total) + at
        moment_places = address(means) + 4 * row, address(inverses) + 4 * row
        to = address(tiles) + half * steps * tile_bytes
        written = address(scale), address(bias), to, *moment_places
        largest = call_normalize_tiles(kernel, (eights, n, *read, *written, epsilon))
        done, end = row + EIGHT * eights, min(row + HALF, outer)
        if done < end:
            if added:
                _add_rows(sums, done * n, (end - done) * n)
            left = Normalized(y, means[done:end], inverses[done:end])
            rows = sums.total[done * n : end * n]
            for o in range(end - done):
                _normalize_row(rows, scale, bias, left, o, n, share, epsilon, centered)
            line = to + (done - row) * TILE_ROW_BYTES
            few = address(y), 4 * n, end - done, n, line
            largest = max(largest, call_pack_tile(kernels[NARROW], few))
        sizes[half * steps : (half + 1) * steps] = np.int32(largest)


@loop(inline=True)
def _add_rows(sums: Sums, start: Any, count: Any) -> None:
    """Adds some elements from a place on."""
    stop = start + count
    one, other, target = sums.x[start:stop], sums.skip[start:stop], sums.total[start:stop]
    for i in range(target.size):
        target[i] = one[i] + other[i]


class GroupSizes(NamedTuple):
    """Images, groups of each, planes of a group, elements of a plane."""

    outer: int
    groups: int
    planes: int
    n: int


@loop
def normalize_planes(
    x: Any, scale: Any, bias: Any, y: Any, sizes: GroupSizes, epsilon: float, tid: int, nt: int
) -> None:
    """Groups of neighbouring planes to mean 0 and variance 1, then scale and bias per plane.

    See `normalize_rows`.

    Args:
        x: (outer, groups * planes, n) numbers, flat.
        scale: Factor of each of groups * planes channels.
        bias: Term of each of these channels.
        y: Output, as x.
        sizes: Of x.
        epsilon: Added to a group's variance.
        tid: This thread.
        nt: All threads; they share groups.
    """
    outer, groups, planes, n = sizes
    rows = outer * groups
    length = planes * n
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source = x[row * length : (row + 1) * length]
        center = like(y[0], sum_of_row(source) / length)
        rest, square = moments(source, center)
        inverse = like(center, inverse_deviation(square, rest, epsilon))
        missing = like(center, rest)
        for plane in range(planes):
            channel = row % groups * planes + plane
            start = row * length + plane * n
            factor = inverse * scale[channel]
            term = bias[channel]
            before, after = x[start : start + n], y[start : start + n]
            for i in range(after.size):
                after[i] = muladd((before[i] - center) - missing, factor, term)


@loop
def scale_channels(
    x: Any, factors: Any, terms: Any, y: Any, outer: int, channels: int, n: int, tid: int, nt: int
) -> None:
    """``x * factor + term`` with one factor and term per channel.

    Args:
        x: (outer, channels, n) numbers, flat.
        factors: One for each channel.
        terms: One for each channel.
        y: Output, as x.
        outer: Images.
        channels: Channels of an image.
        n: Elements of a channel; 1 where channels are last.
        tid: This thread.
        nt: All threads; they share planes.
    """
    if n == 1:
        for o in range(outer * tid // nt, outer * (tid + 1) // nt):
            before = x[o * channels : (o + 1) * channels]
            after = y[o * channels : (o + 1) * channels]
            for c in range(after.size):
                after[c] = muladd(before[c], factors[c], terms[c])
        return
    planes = outer * channels
    for plane in range(planes * tid // nt, planes * (tid + 1) // nt):
        factor, term = factors[plane % channels], terms[plane % channels]
        before, after = x[plane * n : (plane + 1) * n], y[plane * n : (plane + 1) * n]
        for i in range(after.size):
            after[i] = muladd(before[i], factor, term)


def fold_statistics(
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    factors: Array,
    terms: Array,
    epsilon: float,
) -> None:
    """Makes one factor and one term per channel of the four numbers of a batch normalization.

    Args:
        scale: A factor for each channel.
        bias: A term for each.
        mean: The mean of each.
        variance: The variance of each.
        factors: What is written: what a channel is multiplied by.
        terms: What is written: what is added to it then.
        epsilon: What is added to variances.
    """
    deviation = np.sqrt(variance.astype(np.float64) + epsilon)
    wide = scale / deviation
    factors[...] = wide
    terms[...] = bias - mean * wide

"""Packs block-quantized weights into panels of 16 columns, the layout that the kernels read.

:mod:`partita_cpu.llvm.tiles.dot_blocks` draws the layout. Weights, scales and zero points are three
separate arrays, packed once per compiled model, or by steps of the program where one of them is
only known when it runs. What takes less memory is chosen by content: scales become float16 where
that is exact, or int8 with a common float32 factor (`scale_levels`); 8-bit weights become 6-bit
ones where no bits are lost (`six_bits`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.transformed_weights import Form
from partita.system.large_pages import lasting_bytes, lasting_copy
from partita.system.memory_map import give_back
from partita_cpu.gemm.packing.weights import run_shared
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.quantized_weights.scale_levels import (
    LEVEL_SIZES,
    split_levels,
    widen_levels,
)
from partita_cpu.kernels.quantized_weights.six_bits import first_number, pack_sixes
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, GROUP_TERMS, Variant, Zeros

_SHARED_BYTES = 1 << 19
"""Fewer weights are packed before another thread has begun."""

_LAST_BIT = 2.0**-22
"""Products of scales and zero points in float32 are off by less of their size."""


class BlockSizes(NamedTuple):
    """Sizes of a matrix of block-quantized weights.

    Attributes:
        terms: Rows of the matrix: the dimension k.
        columns: Columns of the matrix.
        size: Terms of a block.
        bits: Bits of a weight.
    """

    terms: int
    columns: int
    size: int
    bits: int

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return -(-self.terms // self.size)

    @property
    def panels(self) -> int:
        """Panels of the matrix; the last one may have columns of zeros."""
        return -(-self.columns // COLUMNS)

    @property
    def level_bytes(self) -> int:
        """Bytes of int8 scales with their factors; 0 for block sizes that are not stored so."""
        if self.size not in LEVEL_SIZES:  # as many bytes as float16 takes
            return 0
        groups = self.blocks * self.size // GROUP_TERMS
        return self.panels * COLUMNS * (self.blocks + 4 * groups)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return self.panels * COLUMNS * self.blocks * self.size * self.bits // 8


class Panels(NamedTuple):
    """A packed matrix.

    Attributes:
        variant: The number formats of the panels.
        w: Weights, as bytes.
        scales: Scales, as bytes.
        zeros: Zero points, as bytes; one byte if all are equal.
        zero: The zero point if all are equal.
    """

    variant: Variant
    w: Operand
    scales: Operand
    zeros: Operand
    zero: int


@loop
def pack_weights(
    w: Any, out: Any, columns: int, column_bytes: int, bits: int, tid: int, nt: int
) -> None:
    """Packs 4-bit or 8-bit weights into panels, in the word layout of `dot_blocks`.

    Args:
        w: Bytes of one column behind another.
        out: Bytes of one panel behind another.
        columns: Number of columns.
        column_bytes: Bytes of a column.
        bits: Bits of a weight: 4 or 8.
        tid: This thread.
        nt: All threads.
    """
    words = column_bytes // 4
    panels = -(-columns // COLUMNS)
    for panel in range(panels * tid // nt, panels * (tid + 1) // nt):
        target = out[panel * COLUMNS * column_bytes : (panel + 1) * COLUMNS * column_bytes]
        for c in range(COLUMNS):
            column = panel * COLUMNS + c
            if column >= columns:
                for k in range(words):
                    for i in range(4):
                        target[4 * (k * COLUMNS + c) + i] = 0
                continue
            source = w[column * column_bytes : (column + 1) * column_bytes]
            for k in range(words):
                first, second = source[4 * k], source[4 * k + 1]
                third, fourth = source[4 * k + 2], source[4 * k + 3]
                at = 4 * (k * COLUMNS + c)
                if bits == 4:
                    target[at] = (first & 15) | (second & 15) << 4
                    target[at + 1] = (third & 15) | (fourth & 15) << 4
                    target[at + 2] = first >> 4 | (second >> 4) << 4
                    target[at + 3] = third >> 4 | (fourth >> 4) << 4
                else:
                    target[at], target[at + 1] = first, third
                    target[at + 2], target[at + 3] = second, fourth


def _packed_weights(w: Array, sizes: BlockSizes, has_zeros: bool, threads: int) -> Array:
    """Weights in panels, those of 8 bits in 6 where they fit."""
    flat = np.ascontiguousarray(w).reshape(-1)
    column_bytes = sizes.blocks * sizes.size * sizes.bits // 8
    first = first_number(flat, has_zeros) if sizes.bits == 8 and flat.size else None
    out = lasting_bytes((sizes if first is None else in_six_bits(sizes)).weight_bytes)
    threads = threads if out.nbytes >= _SHARED_BYTES else 1
    if first is None:
        run_shared(threads, pack_weights, flat, out, sizes.columns, column_bytes, sizes.bits)
    else:
        run_shared(threads, pack_sixes, flat, out, sizes.columns, column_bytes, first)
    return out


def in_six_bits(sizes: BlockSizes) -> BlockSizes:
    """The sizes of weights of 8 bits that lose no bits in 6."""
    return sizes._replace(bits=6)


def _beside(numbers: Array, sizes: BlockSizes, dtype: Any) -> Array:
    """One number per block or group, (columns, blocks), in the order of panels, as bytes."""
    given = numbers.reshape(sizes.columns, -1)
    padded = np.zeros((sizes.panels * COLUMNS, given.shape[1]), dtype)
    padded[: sizes.columns] = given
    panels = padded.reshape(sizes.panels, COLUMNS, given.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(panels).reshape(-1).view(np.uint8)


def _as_halves(numbers: Array, error: float) -> Array | None:
    """Numbers as float16; ``None`` if the relative error of one of them is larger than `error`."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = numbers.astype(np.float16)
        off = np.abs(halves.astype(np.float32) - numbers) > error * np.abs(numbers)
    return None if off.any() or not np.isfinite(halves).all() else halves


def packed_scales(scales: Array, sizes: BlockSizes) -> Array:
    """Scales of any float type, (columns, blocks), as bytes: as float16 where that is exact."""
    halves = scales if scales.dtype == np.float16 else _as_halves(_floats(scales), 0.0)
    if halves is None:
        return _beside(_floats(scales), sizes, np.float32)
    return _beside(halves, sizes, np.float16)


def unpacked_zeros(zeros: Array, sizes: BlockSizes) -> Array:
    """Zero points, (columns, blocks): those of as many bits as weights have as bytes."""
    packed = zeros.reshape(sizes.columns, -1)
    if sizes.bits == 8 or zeros.dtype != np.uint8:
        return packed
    both = np.stack([packed & 15, packed >> 4], axis=-1)
    return np.ascontiguousarray(both.reshape(sizes.columns, -1)[:, : sizes.blocks])


def _floats(array: Array) -> Array:
    return array.astype(np.float32, copy=False)


def packed_zeros(zeros: Array, scales: Array, sizes: BlockSizes, halves: bool) -> Array:
    """Zero points (columns, blocks): as bytes, or multiplied by scales; one byte if all are equal.

    Args:
        zeros: Bytes, or floats.
        scales: As many floats.
        sizes: Of the matrix.
        halves: Whether scales were packed as float16.
    """
    if zeros.dtype == np.uint8:
        if (zeros == zeros[0, 0]).all():
            return zeros[0, :1].copy()
        return _beside(zeros, sizes, np.uint8)
    with np.errstate(all="ignore"):
        numbers = _floats(zeros).reshape(-1) * _floats(scales).reshape(-1)
    narrow = _as_halves(numbers, _LAST_BIT) if halves else None
    if narrow is None:
        return _beside(numbers, sizes, np.float32)
    return _beside(narrow, sizes, np.float16)


class _Levels(NamedTuple):
    """Scales as levels, as bytes.

    Attributes:
        scales: Levels, and factors behind them.
        zeros: The same of zero points times scales; ``None`` where all zero points are equal.
    """

    scales: Array
    zeros: Array | None


def _packed_levels(scales: Array, zeros: Array | None, sizes: BlockSizes) -> _Levels | None:
    """Scales and zero points as levels; ``None`` if they are none, or float16 does."""
    if scales.dtype != np.float32 or (zeros is not None and zeros.dtype == np.uint8):
        return None
    numbers = scales.reshape(sizes.columns, sizes.blocks)
    found = split_levels(numbers, sizes.size, 0.0)
    if found is None or _as_halves(numbers, 0.0) is not None:
        return None
    if zeros is None:
        return _Levels(_joined(found, sizes), None)
    with np.errstate(all="ignore"):
        terms = _floats(zeros).reshape(numbers.shape) * numbers
    points = split_levels(terms, sizes.size, _LAST_BIT)
    return None if points is None else _Levels(_joined(found, sizes), _joined(points, sizes))


def _joined(found: tuple[Array, Array], sizes: BlockSizes) -> Array:
    levels, factors = found
    return np.concatenate([_beside(levels, sizes, np.int8), _beside(factors, sizes, np.float32)])


def packed(
    b: Builder,
    w: Operand,
    scales: Operand,
    zeros: Operand | None,
    sizes: BlockSizes,
    threads: int,
    levels: bool = False,
) -> Panels:
    """The panels of a matrix: packed now if it is constant, else by steps.

    Args:
        b: The builder.
        w: Bytes, one column behind another, blocks of whole bytes.
        scales: One for each block of each column, of any float type.
        zeros: As many floats, or numbers of as many bits as weights in bytes, each column for
            itself; ``None`` for half of the range.
        sizes: Of the matrix.
        threads: Threads that pack.
        levels: Whether scales may be levels, which kernels for few rows take.
    """
    key = sizes.columns, sizes.size, sizes.bits
    constant = all(x is None or x.const is not None for x in (w, scales, zeros))
    if not constant:
        return _packed_by_steps(b, w, scales, zeros, sizes)
    shorter = (in_six_bits(sizes).weight_bytes,) if sizes.bits == 8 else None
    weights = b.prepack(
        w,
        ("panels", *key, zeros is not None),
        lambda a: _packed_weights(a, sizes, zeros is not None, threads),
        anywhere=True,
        form=Form(np.uint8, (sizes.weight_bytes,), shorter),
    )
    bits = sizes.bits if weights.size == sizes.weight_bytes else 6
    of_scales, of_zeros = b.value(scales), None if zeros is None else b.value(zeros)

    @functools.cache
    def found() -> _Levels | None:
        return _packed_levels(of_scales, of_zeros, sizes) if levels else None

    def numbers_of(a: Array) -> Array:
        as_levels = found()
        return lasting_copy(packed_scales(a, sizes) if as_levels is None else as_levels.scales)

    beside = 0 if of_zeros is None else of_zeros.ctypes.data
    numbers = b.prepack(scales, ("scales", *key, levels, beside), numbers_of)
    count = sizes.panels * COLUMNS * sizes.blocks
    halves, are_levels = numbers.size == 2 * count, numbers.size == sizes.level_bytes
    if zeros is None:
        nothing = b.zeros(1, np.uint8)
        variant = Variant(bits, halves, Zeros.EQUAL, are_levels)
        return Panels(variant, weights, numbers, nothing, 1 << (bits - 1))

    def points_of(a: Array) -> Array:
        as_levels = found() if are_levels else None
        if as_levels is not None and as_levels.zeros is not None:
            return lasting_copy(as_levels.zeros)
        return lasting_copy(packed_zeros(unpacked_zeros(a, sizes), of_scales, sizes, halves))

    key_of_points = "zero points", *key, halves, are_levels, of_scales.ctypes.data
    points = b.prepack(zeros, key_of_points, points_of)
    give_back(of_scales)  # which zero points are multiplied by
    if are_levels:
        return Panels(Variant(bits, False, Zeros.LEVELS, True), weights, numbers, points, 0)
    return panels_with(b, weights, numbers, points, sizes._replace(bits=bits))


def widened(b: Builder, panels: Panels, sizes: BlockSizes) -> Panels:
    """Panels whose scales are float16 or float32, for products of many rows.

    Args:
        b: The builder.
        panels: Panels of any kind.
        sizes: Of the matrix.
    """
    if not panels.variant.levels:
        return panels

    def floats(packed: Operand) -> Operand:
        out = b.empty((4 * sizes.panels * COLUMNS * sizes.blocks,), np.uint8)
        b.call(widen_levels, packed, out, sizes.blocks, GROUP_TERMS // sizes.size)
        return out

    zeros, points = panels.variant.zeros, panels.zeros
    if zeros is Zeros.LEVELS:
        zeros, points = Zeros.FLOATS, b.once(points, "widened levels", lambda: floats(points))
    numbers = b.once(panels.scales, "widened levels", lambda: floats(panels.scales))
    variant = Variant(panels.variant.bits, False, zeros)
    return panels._replace(variant=variant, scales=numbers, zeros=points)


def panels_with(
    b: Builder, weights: Operand, numbers: Operand, points: Operand, sizes: BlockSizes
) -> Panels:
    """Panels of packed weights, scales and zero points; their sizes tell what these are."""
    count = sizes.panels * COLUMNS * sizes.blocks
    halves = numbers.size == 2 * count
    if points.size == 1:
        variant = Variant(sizes.bits, halves, Zeros.EQUAL)
        return Panels(variant, weights, numbers, points, int(b.value(points)[0]))
    kind = next(kind for kind in Zeros if kind.size * count == points.size)
    return Panels(Variant(sizes.bits, halves, kind), weights, numbers, points, 0)


def _packed_by_steps(
    b: Builder, w: Operand, scales: Operand, zeros: Operand | None, sizes: BlockSizes
) -> Panels:
    """The panels of a matrix of which something is only known at run time."""
    count = sizes.panels * COLUMNS * sizes.blocks
    weights = b.empty((sizes.weight_bytes,), np.uint8)
    column_bytes = sizes.blocks * sizes.size * sizes.bits // 8
    b.call(pack_weights, b.flat(w), weights, sizes.columns, column_bytes, sizes.bits)
    numbers, points = b.empty((4 * count,), np.uint8), b.empty((4 * count,), np.uint8)
    b.call_numpy(_pack_numbers, scales, zeros, numbers, points, sizes)
    return Panels(Variant(sizes.bits, False, Zeros.FLOATS), weights, numbers, points, 0)


def _pack_numbers(
    scales: Array, zeros: Array | None, numbers: Array, points: Array, sizes: BlockSizes
) -> None:
    """Scales, and zero points times scales, as float32."""
    of_blocks = _floats(scales).reshape(sizes.columns, sizes.blocks)
    numbers[...] = _beside(of_blocks, sizes, np.float32)
    middle: Array = np.array(1 << (sizes.bits - 1), np.uint8)
    if zeros is not None:
        middle = unpacked_zeros(zeros, sizes)
    with np.errstate(all="ignore"):
        points[...] = _beside(_floats(middle) * of_blocks, sizes, np.float32)

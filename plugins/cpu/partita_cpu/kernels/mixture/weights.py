"""The weights of all experts as one matrix: block-quantized panels, or plain columns.

An expert's columns are padded to whole panels, so that all experts together are one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.shapes.mixture_inputs import Source, nibbles
from partita.lowering.transformed_weights import Form
from partita.system.memory_map import give_back
from partita_cpu.gemm.packing.weights import run_shared
from partita_cpu.kernels.quantized_weights.panels import (
    BlockSizes,
    Panels,
    in_six_bits,
    pack_weights,
    packed_scales,
    packed_zeros,
    panels_with,
)
from partita_cpu.kernels.quantized_weights.six_bits import first_number, pack_sixes
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS


def arrays_of(b: Builder, source: Source, count: int) -> Iterator[Array]:
    """Expert by expert its rows, (count, ...), which are given back when the next is taken."""
    return source.arrays(count, lambda operand: b.value(operand, anywhere=True), give_back)


def key_of(source: Source) -> tuple[int, ...]:
    """Distinguishes one choice of rows from another."""
    return source.first, source.step, int(source.flipped)


class BlockWeights(NamedTuple):
    """Weights of 4 or 8 bits in blocks.

    Attributes:
        sizes: Of an expert's matrix.
        experts: How many there are.
        w: Bytes of rows, of each as many as its terms need.
        scales: Floats, (columns, blocks) of an expert, or one for a column.
        zeros: Likewise: floats, or numbers of as many bits as weights in bytes; ``None`` for half
            of the range. With one for a column, an expert's are one row.
        zero_rows: Whether zero points are a row for each column.
    """

    sizes: BlockSizes
    experts: int
    w: Source
    scales: Source
    zeros: Source | None = None
    zero_rows: bool = True


def packed_experts(b: Builder, weights: BlockWeights, threads: int) -> Panels:
    """The panels of all experts' matrices; `experts_together` are their sizes.

    Those of 8 bits become 6 where no expert loses any, which the variant tells.

    Args:
        b: The builder.
        weights: Constants.
        threads: Threads that pack.
    """
    sizes, together = weights.sizes, experts_together(weights)
    key = weights.experts, *sizes
    form = None
    if weights.w.stacked:
        shorter = (in_six_bits(together).weight_bytes,) if sizes.bits == 8 else None
        form = Form(np.uint8, (together.weight_bytes,), shorter)
    packed = b.prepack(
        weights.w.operands[0],
        ("panels of experts", *key, *key_of(weights.w), weights.zeros is not None),
        lambda _: _packed_weights(b, weights, threads),
        anywhere=True,
        form=form,
    )
    packed_as = together
    if packed.size != together.weight_bytes:
        packed_as = in_six_bits(together)
    numbers = b.prepack(
        weights.scales.operands[0],
        ("scales of experts", *key, *key_of(weights.scales)),
        lambda _: packed_scales(_scales(b, weights), together),
        anywhere=True,
    )
    halves = numbers.size == 2 * together.columns * together.blocks
    if weights.zeros is None:
        points = b.constant(np.array([1 << (packed_as.bits - 1)], np.uint8))
        return panels_with(b, packed, numbers, points, packed_as)
    points = b.prepack(
        weights.zeros.operands[0],
        ("zero points of experts", *key, *key_of(weights.zeros), halves),
        lambda _: packed_zeros(_zeros(b, weights), _scales(b, weights), together, halves),
        anywhere=True,
    )
    return panels_with(b, packed, numbers, points, packed_as)


def experts_together(weights: BlockWeights) -> BlockSizes:
    """The sizes of all experts' matrices side by side, each filled up to whole panels."""
    sizes = weights.sizes
    return sizes._replace(columns=weights.experts * sizes.panels * COLUMNS)


def _packed_weights(b: Builder, weights: BlockWeights, threads: int) -> Array:
    """Weights in panels, those of 8 bits in 6 where all experts' fit."""
    if weights.sizes.bits == 8:
        found = _packed_in(b, weights, in_six_bits(weights.sizes), threads)
        if found is not None:
            return found
    return _packed_as_given(b, weights, threads)


def _packed_in(b: Builder, weights: BlockWeights, packed: BlockSizes, threads: int) -> Array | None:
    """Weights of 8 bits in 6; ``None`` at the first expert that would lose some."""
    sizes = weights.sizes
    out = np.empty((weights.experts, packed.weight_bytes), np.uint8)
    for target, flat in zip(out, _flat_rows(b, weights), strict=True):
        first = first_number(flat, weights.zeros is not None)
        if first is None:
            return None
        layout = sizes.columns, sizes.blocks * sizes.size, first
        run_shared(threads, pack_sixes, flat, target, *layout)
    return out.reshape(-1)


def _packed_as_given(b: Builder, weights: BlockWeights, threads: int) -> Array:
    sizes = weights.sizes
    out = np.empty((weights.experts, sizes.weight_bytes), np.uint8)
    for target, flat in zip(out, _flat_rows(b, weights), strict=True):
        layout = sizes.columns, sizes.blocks * sizes.size * sizes.bits // 8, sizes.bits
        run_shared(threads, pack_weights, flat, target, *layout)
    return out.reshape(-1)


def _flat_rows(b: Builder, weights: BlockWeights) -> Iterator[Array]:
    """Expert by expert the bytes of its rows, each filled up to whole blocks by its last byte."""
    sizes = weights.sizes
    column_bytes = sizes.blocks * sizes.size * sizes.bits // 8
    for rows in arrays_of(b, weights.w, sizes.columns):
        flat = rows.reshape(sizes.columns, -1)
        missing = column_bytes - flat.shape[1]
        if missing:
            flat = np.pad(flat, ((0, 0), (0, missing)), mode="edge")
        yield np.ascontiguousarray(flat).reshape(-1)


def _scales(b: Builder, weights: BlockWeights) -> Array:
    """Scales of all columns, (columns, blocks)."""
    return _side_by_side(b, weights, weights.scales, lambda rows: rows)


def _zeros(b: Builder, weights: BlockWeights) -> Array:
    """Zero points of all columns, (columns, blocks): floats, or bytes of one each."""
    sizes, source = weights.sizes, weights.zeros
    if source is None:
        raise ValueError("there are no zero points")
    if source.operands[0].dtype != np.uint8 or sizes.bits == 8:
        return _side_by_side(b, weights, source, lambda rows: rows)
    if weights.zero_rows:
        return _side_by_side(b, weights, source, lambda rows: nibbles(rows)[:, : sizes.blocks])
    whole = source._replace(operands=(b.constant(nibbles(b.value(source.operands[0]))),))
    return _side_by_side(b, weights, whole, lambda rows: rows)


def _side_by_side(
    b: Builder, weights: BlockWeights, source: Source, read: Callable[[Array], Array]
) -> Array:
    """Numbers of blocks of all columns; those that fill up panels are as the last one's."""
    sizes = weights.sizes
    missing = -sizes.columns % COLUMNS
    found = []
    for rows in arrays_of(b, source, sizes.columns):
        numbers = read(rows.reshape(sizes.columns, -1))
        wide = np.broadcast_to(numbers, (sizes.columns, sizes.blocks))
        found.append(np.pad(wide, ((0, missing), (0, 0)), mode="edge"))
    return np.concatenate(found)


class PlainWeights(NamedTuple):
    """Weights that are floats.

    Attributes:
        terms: Of a column.
        columns: Of an expert's matrix.
        experts: How many there are.
        w: Rows of terms.
    """

    terms: int
    columns: int
    experts: int
    w: Source


def packed_plain(b: Builder, weights: PlainWeights, wide: int, kind: np.dtype) -> Operand:
    """Columns of all experts, so many side by side, term by term; see `multiply_plain`.

    Args:
        b: The builder.
        weights: Constants of float32 or of 16 bits.
        wide: Columns side by side; those that fill up the last ones are zeros.
        kind: Their element type; 16-bit floats become uint16.
    """
    stored = np.dtype(np.uint16) if kind.itemsize == 2 else kind
    blocks = -(-weights.columns // wide)
    shape = (weights.experts, blocks, weights.terms, wide)

    def packed(_: Array) -> Array:
        out = np.zeros(shape, stored)
        for target, rows in zip(out, arrays_of(b, weights.w, weights.columns), strict=True):
            numbers = rows.astype(kind, copy=False).view(stored)
            for block in range(blocks):
                part = numbers[block * wide : (block + 1) * wide]
                target[block, :, : len(part)] = part.T
        return out.reshape(-1)

    key = "columns of experts", wide, kind.name, weights.columns, *key_of(weights.w)
    form = Form(stored, (math.prod(shape),)) if weights.w.stacked else None
    return b.prepack(weights.w.operands[0], key, packed, anywhere=True, form=form)

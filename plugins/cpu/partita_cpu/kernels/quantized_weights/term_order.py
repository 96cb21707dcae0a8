"""Weights whose terms are assigned to scales by an index (g_idx of MatMulNBits), sorted by it.

Without `g_idx`, term k has the scale of block ``k // size``. With it (GPTQ's "act-order") any term
may have any scale. Here terms of one scale are brought together once, in whole blocks that are
padded with weights which meet zeros, so that the other kernels need not know of it; when the model
runs, the terms of rows are gathered in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.quantized_weights.panels import BlockSizes, unpacked_zeros


class Ordered(NamedTuple):
    """A product with its terms in order.

    Attributes:
        x: Rows.
        w: Weights in bytes.
        scales: One for each block of a column.
        zeros: Likewise, floats; ``None`` for half of the range.
        sizes: Of the matrix.
    """

    x: Operand
    w: Operand
    scales: Operand
    zeros: Operand | None
    sizes: BlockSizes


@loop
def take_terms(x: Any, terms: Any, out: Any, size: int, tid: int, nt: int) -> None:
    """Gathers terms of rows; a negative index gives 0.

    Args:
        x: Rows, flat.
        terms: Indices of terms.
        out: Rows of as many terms as there are indices.
        size: Terms of a row of `x`.
        tid: This thread.
        nt: All threads.
    """
    rows = x.size // size
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        source, target = x[row * size : (row + 1) * size], out[row * terms.size :]
        for i in range(terms.size):
            target[i] = source[terms[i]] if terms[i] >= 0 else np.float32(0)


def in_order(
    b: Builder,
    node: Node,
    x: Operand,
    weights: tuple[Operand, Operand, Operand | None],
    order: Operand,
    sizes: BlockSizes,
) -> Ordered:
    """A product whose terms are in the order of their scales.

    Args:
        b: The builder.
        node: For messages.
        x: Rows in float32.
        weights: Weights, scales and zero points, all constants.
        order: The scale of each term, a constant.
        sizes: Of the matrix.

    Raises:
        OperandError: A term names a scale that does not exist.
    """
    groups = b.value(order).reshape(-1)[: sizes.terms]
    if len(groups) < sizes.terms or groups.min() < 0 or groups.max() >= sizes.blocks:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}): g_idx has {len(groups)} numbers of "
            f"scales; expected {sizes.terms}, from 0 to {sizes.blocks - 1}."
        )
    places, block_groups = _places(groups, sizes.size)
    wider = sizes._replace(terms=len(places))
    key = "by scales", sizes.columns, sizes.size, sizes.bits, groups.tobytes().hex()
    w, scales, zeros = weights
    packed = b.prepack(w, key, lambda a: _reordered(a, places, sizes))
    of_blocks = b.prepack(scales, key, lambda a: _of_blocks(a, block_groups, sizes))
    points = None
    if zeros is not None:
        points = b.prepack(
            zeros,
            key,
            lambda a: _of_blocks(unpacked_zeros(a, sizes)[:, : sizes.blocks], block_groups, sizes),
        )
    rows = b.empty((*x.shape[:-1], len(places)), np.float32)
    if rows.size:
        b.call(take_terms, b.flat(x), b.constant(places), b.flat(rows), sizes.terms)
    return Ordered(rows, packed, of_blocks, points, wider)


def _places(groups: Array, size: int) -> tuple[Array, Array]:
    """The terms in order, -1 where a block is filled up, and the scale of each block."""
    places, of_blocks = [], []
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        blocks = -(-len(own) // size)
        places.append(np.pad(own, (0, blocks * size - len(own)), constant_values=-1))
        of_blocks += [group] * blocks
    return np.concatenate(places).astype(np.int64), np.array(of_blocks)


def _reordered(w: Array, places: Array, sizes: BlockSizes) -> Array:
    numbers = w.reshape(sizes.columns, -1)
    if sizes.bits == 4:
        both = np.stack([numbers & 15, numbers >> 4], axis=-1)
        numbers = both.reshape(sizes.columns, -1)
    taken = np.where(places < 0, np.uint8(0), numbers[:, places])
    if sizes.bits == 4:
        taken = taken[:, ::2] | taken[:, 1::2] << 4
    return np.ascontiguousarray(taken, np.uint8)


def _of_blocks(numbers: Array, of_blocks: Array, sizes: BlockSizes) -> Array:
    """Numbers of scales as floats, block by block."""
    wide = numbers.reshape(sizes.columns, -1).astype(np.float32)
    return np.ascontiguousarray(wide[:, of_blocks])

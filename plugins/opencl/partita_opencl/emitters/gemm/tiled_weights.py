"""Weights of 4 bits in the order in which a warp's matrix units take them: ``tiled_weights.cl``."""

from __future__ import annotations

import math

import numpy as np

from partita.lowering import Array

TILE, PIECE = 16, 64
"""Columns of a tile, and elements of each that are a piece of it."""

HALF_PIECE = PIECE // 2
"""Elements that share a scale here; those of larger blocks are written several times."""

WORD_BYTES = TILE * PIECE // 2
"""Bytes of a piece before its scales."""

_CHUNK_BYTES = 1 << 18
"""Bytes of weights that are moved at a time: a cache holds them between two passes."""


def in_tiles(depth: int, data: Array, scales: Array, offsets: Array | None) -> Array:
    """Weights as (tiles, pieces, bytes).

    Args:
        depth: Elements of a column.
        data: (columns, blocks, bytes of a block), of which each is a multiple of 16 bytes.
        scales: (columns, blocks), float32 or bits of float16.
        offsets: What is taken off beside the scaled number, alike and of the same type.
    """
    tiles, pieces = math.ceil(len(data) / TILE), math.ceil(depth / PIECE)
    words = np.ascontiguousarray(data.reshape(len(data), -1)).view(np.uint32)
    sides = [scales] if offsets is None else [scales, offsets]
    times = data.shape[2] * 2 // HALF_PIECE
    # By column, block and word within it, and what each item of a warp reads at once.
    order = np.arange(TILE * 8).reshape(2, 8, 2, 4).transpose(1, 3, 2, 0).ravel()
    side_order = np.arange(TILE * 2).reshape(2, 8, 2).transpose(1, 0, 2).reshape(8, 4)
    side_bytes = sum(side.itemsize for side in sides) * TILE * 2
    made = np.empty((tiles, pieces, WORD_BYTES + side_bytes), np.uint8)
    to_words = made[:, :, :WORD_BYTES].view(np.uint32)
    to_sides = made[:, :, WORD_BYTES:].view(scales.dtype).reshape(tiles, pieces, 8, len(sides), 4)
    chunk = max(1, _CHUNK_BYTES // (pieces * WORD_BYTES))
    for first in range(0, tiles, chunk):
        some = slice(first, min(tiles, first + chunk))
        columns = slice(first * TILE, some.stop * TILE)
        to_words[some] = np.take(_by_piece(words[columns], some, pieces, 8), order, axis=2)
        for number, side in enumerate(sides):
            each = np.repeat(side[columns], times, 1)
            to_sides[some, :, :, number] = np.take(
                _by_piece(each, some, pieces, 2), side_order, axis=2
            )
    return made


def _by_piece(columns: Array, some: slice, pieces: int, each: int) -> Array:
    """What columns have of the pieces of some tiles: (tiles, pieces, all that belongs to a piece).

    A column has ``each`` elements of a piece; zeros stand for what it has not.
    """
    shape = ((some.stop - some.start) * TILE, pieces * each)
    if columns.shape != shape:
        full = np.zeros(shape, columns.dtype)
        full[: len(columns), : columns.shape[1]] = columns[:, : shape[1]]
        columns = full
    whole = np.ascontiguousarray(columns).view(f"V{each * columns.itemsize}")
    by_piece = whole.reshape(-1, TILE, pieces).transpose(0, 2, 1)
    return np.ascontiguousarray(by_piece).view(columns.dtype)

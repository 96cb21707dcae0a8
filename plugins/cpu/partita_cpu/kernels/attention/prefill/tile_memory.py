"""Tiles of attention with many queries: sizes, and the scratch memory of a thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from partita.lowering import Array
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles, tile_columns, tile_rows
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.attention.cache_blocks import OUTPUTS, SIZE, TABLE_FIELDS
from partita_cpu.llvm.attention.attend import STATES, TILE_ROWS, in_pairs
from partita_cpu.llvm.attention.attend_amx import PAIRS as TILE_PAIRS
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.fma import VECTORS

KEYS = 256
"""Of a block; a multiple of every tile's columns."""

CHUNK_ROWS = 512
"""Rows of a chunk, about: they share what is packed, and with it fill the second-level cache."""

_LINE = 32
"""Floats that aligning scratch memory may cost."""

ROWS, COLUMNS, PLANES, UNIT = range(TABLE_FIELDS, TABLE_FIELDS + 4)
"""What the table of `attend_tiles` holds besides that of `cache_blocks`: a `TileShape`."""

FIELDS = TABLE_FIELDS + 4
"""Of that table; one for what the first tiles lack follows."""


class TileShape(NamedTuple):
    """How attention is cut in tiles.

    Attributes:
        rows: Queries of a tile, at most.
        columns: Of a tile.
        planes: Of how many bfloat16 a factor is the sum, whose neighbours are paired; 0 for floats.
        unit: Pairs that are added up together.
    """

    rows: int
    columns: int
    planes: int = 0
    unit: int = 1


class Scratch(NamedTuple):
    """Scratch memory of a thread.

    Attributes:
        sums: Sums of values for each query, OUTPUTS rounded up to whole tiles.
        states: For each tile what `attend.SOFTMAX_PARAMETERS` says.
        seen: Of one tile, likewise.
        keys: A block of keys, packed: for each block of columns (SIZE, columns).
        values: Values, packed: for each block of columns (KEYS, columns).
        scores: Of one tile, (rows, KEYS); behind them powers, if these are sums of two.
        piece: Some keys as floats or pairs, (SIDE, words of a key).
        queries: Those of a chunk, rotated: as pairs where products are of these, or as floats.
        row: `SIDE` keys or values as floats, then as many values as bfloat16.
    """

    sums: KernelArray
    states: KernelArray
    seen: KernelArray
    keys: KernelArray
    values: KernelArray
    scores: KernelArray
    piece: KernelArray
    queries: KernelArray
    row: KernelArray


@loop
def scratch_of(scratch: Array, made: int, table: Array) -> Any:
    """A thread's scratch memory from a place on, for such tiles."""
    most, wide, outputs, planes = table[ROWS], table[COLUMNS], table[OUTPUTS], table[PLANES]
    words, state = key_words(table[SIZE], planes, table[UNIT]), round_up(most, wide // VECTORS)
    tiles, length = most_tiles(most), query_words(table[SIZE], planes, table[UNIT])
    keys = made + tiles * most * round_up(outputs, wide)
    values = keys + KEYS * words
    scores = values + KEYS * round_up(outputs, wide)
    piece = scores + KEYS * most * max(1, planes)
    seen = piece + SIDE * words
    states = seen + 2 * state
    queries = states + tiles * STATES * state
    row = queries + tiles * most * length
    return Scratch(
        scratch[made:keys],
        scratch[states:queries],
        scratch[seen:states],
        scratch[keys:values],
        scratch[values:scores],
        scratch[scores:piece],
        scratch[piece:seen],
        scratch[queries:row],
        scratch[row : row + row_floats(table[SIZE], outputs, planes, wide)],
    )


@loop
def floats_of(table: Array) -> Any:
    """Floats that a thread needs for such tiles."""
    shape = table[ROWS], table[COLUMNS], table[PLANES], table[UNIT]
    return prefill_floats(table[SIZE], table[OUTPUTS], *shape)


@register_jitable
def round_up(count: Any, unit: Any) -> Any:
    """A count rounded up to whole units."""
    return -(-count // unit) * unit


@register_jitable
def key_pairs(size: Any, unit: Any) -> Any:
    """Pairs that so many elements make, in whole units."""
    return round_up((size + 1) // 2, unit)


@register_jitable
def key_words(size: Any, planes: Any, unit: Any) -> Any:
    """Words of a key that is laid out."""
    return max(round_up(size, SIDE), planes * key_pairs(size, unit))


@register_jitable
def query_words(size: Any, planes: Any, unit: Any) -> Any:
    """Words of a query that is laid out."""
    return planes * key_pairs(size, unit) if planes else size


@register_jitable
def row_floats(size: Any, outputs: Any, planes: Any, wide: Any) -> Any:
    """Floats that some keys or values take, and as many values as bfloat16."""
    return SIDE * (max(size, outputs) + planes * round_up(outputs, wide) // 2)


@register_jitable
def most_tiles(rows: Any) -> Any:
    """Tiles of so many rows in a chunk, at most."""
    return -(-CHUNK_ROWS // rows)


@register_jitable
def prefill_floats(size: Any, outputs: Any, rows: Any, columns: Any, planes: Any, unit: Any) -> Any:
    """Floats that a thread of `attend_tiles` needs for tiles of a shape.

    Args:
        size: Elements of a key.
        outputs: Elements of a value.
        rows: Of a tile.
        columns: Of a tile.
        planes: Parts of bfloat16 of each factor; 0 in float32.
        unit: Pairs of terms that a tile takes at once.
    """
    beyond, words = round_up(outputs, columns), key_words(size, planes, unit)
    state = round_up(rows, columns // VECTORS)
    of_row = beyond + query_words(size, planes, unit)
    kept = most_tiles(rows) * (rows * of_row + STATES * state) + 2 * state
    kept += row_floats(size, outputs, planes, columns)
    return kept + KEYS * (words + beyond + rows * max(1, planes)) + SIDE * words + _LINE


def tile_shapes(level: Level, arithmetic: Arithmetic) -> list[TileShape]:
    """How attention is cut: first as products of some arithmetic are, then for what these lack."""
    columns = tile_columns(level)
    plain = TileShape(tile_rows(level, Arithmetic.F32), columns)
    if on_tiles(level, arithmetic) and arithmetic.planes <= 2:
        tiles = TileShape(TILE_ROWS, columns, arithmetic.planes, TILE_PAIRS)
        return [tiles] if arithmetic.planes == 1 else [tiles, plain]
    if arithmetic is Arithmetic.BF16 and in_pairs(level):
        return [plain._replace(planes=1)]
    return [plain]

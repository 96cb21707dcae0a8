"""The table of an attention step: sizes, strides of tensors, and the form of masks and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from partita.lowering import Array, Operand
from partita.lowering.shapes.symbolic_size import evaluated, integers
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns, tile_rows
from partita_cpu.gemm.packing.kernels import PARTS, PIECE, PLACES
from partita_cpu.gemm.packing.packing_table import FIELDS, matrix_table
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.llvm.levels import Level

TILE_FLOATS = 1024
"""Floats that a tile kernel may put aside."""

_LINE = 32
"""Floats that aligning scratch memory may cost."""

LINE_FLOATS = 16
"""Floats of a line of the cache."""

PACKING_FLOATS = 2 * PLACES + PIECE + PARTS * PIECE // 2
"""Floats of the memory of what packs."""

(
    BATCHES,
    HEADS,
    SHARING,
    QUERIES,
    KEYS,
    DEPTH,
    OUTPUTS,
    Q_BATCH,
    Q_STEP,
    Q_HEAD,
    K_BATCH,
    K_STEP,
    K_HEAD,
    V_BATCH,
    V_STEP,
    V_HEAD,
    Y_BATCH,
    Y_STEP,
    Y_HEAD,
    Q_START,
    K_START,
    V_START,
    MASKS,
    MASK_BATCH,
    MASK_PERIOD,
    MASK_HEAD,
    MASK_QUERY,
    MASK_KEY,
    OTHER_BATCH,
    OTHER_PERIOD,
    OTHER_HEAD,
    OTHER_QUERY,
    OTHER_KEY,
    BECOMES_ZERO,
    SCALED,
    COSINE,
    ROOM,
    ROWS,
    COLUMNS,
    PAIRS,
    KEY_TABLE,
) = range(41)
"""What the table of `attend_heads` holds. SHARING: heads that share a head of keys and values;
DEPTH: size of a key; OUTPUTS: size of a value; then elements between neighbours: batches, places of
the sequence, heads; Q_START to V_START: the element that queries, keys and values begin at; MASKS:
how many there are, and of each elements between neighbours, of batches after so many of which
(PERIOD) it begins anew; BECOMES_ZERO: as `Scores` has it; SCALED: whether heads have factors;
COSINE: whether queries and keys are divided by their lengths; ROOM: scratch floats of a thread;
ROWS and COLUMNS: of a tile; PAIRS: whether products are of pairs of bfloat16; from KEY_TABLE on the
table of packing (`matrix_table`) of the keys of a head, transposed, and from VALUE_TABLE on that of
its values.
"""

VALUE_TABLE = KEY_TABLE + FIELDS


class AttentionInputs(NamedTuple):
    """Queries, keys, values, masks and factors of heads, flat.

    Masks and factors are not read unless the table says so.
    """

    q: KernelArray
    k: KernelArray
    v: KernelArray
    mask: KernelArray
    other: KernelArray
    factors: KernelArray


@dataclass(frozen=True)
class Mask:
    """What is added to scores.

    Attributes:
        tensor: Its numbers.
        steps: Elements from one batch to the next, batches after which it begins anew, and elements
            from one head, query and key to the next; 0 where it is broadcast.
    """

    tensor: Operand
    steps: tuple[int, int, int, int, int]

    @classmethod
    def broadcast(cls, tensor: Operand, batches: int) -> Mask:
        """A tensor that broadcasts with (batches, heads, queries, keys)."""
        batch, *others = mask_strides(tensor.shape)
        return cls(tensor, (batch, batches, *others))  # type: ignore[arg-type]  # three others


@dataclass(frozen=True)
class Scores:
    """What becomes of the products of queries and keys.

    Attributes:
        scale: Their factor.
        masks: What is added then; two at most.
        factors: One more factor for each head, or ``None``.
        least: Queries and keys are divided by their lengths, or by this if they are shorter;
            ``None`` if they are not.
        becomes_zero: Which queries are 0 and not NaN: none (0), those that masks keep from
            every key (1), or all whose weights are NaN (2).
    """

    scale: float
    masks: Sequence[Mask] = ()
    factors: Operand | None = None
    least: float | None = None
    becomes_zero: int = 0


@dataclass(frozen=True)
class HeadSizes:
    """Batches, heads, heads that share one of keys, queries, keys, size of a key, of a value."""

    batches: int
    heads: int
    sharing: int
    queries: int
    keys: int
    depth: int
    outputs: int

    @property
    def products(self) -> int:
        """How many numbers are multiplied."""
        scores = self.batches * self.heads * self.queries * self.keys
        return scores * (self.depth + self.outputs)


@dataclass(frozen=True)
class HeadView:
    """Where queries, keys, values or the result lie in a tensor.

    Attributes:
        tensor: Float32, of any shape; what results go to may hold bfloat16 as uint16.
        steps: Elements from one batch, place of the sequence and head to the next.
        start: The element that they begin at.
    """

    tensor: Operand
    steps: tuple[int, int, int]
    start: int = 0


def attention_table(
    level: Level,
    arithmetic: Arithmetic,
    sizes: HeadSizes,
    parts: Sequence[HeadView],
    scores: Scores,
) -> Array:
    """The table of `attend_heads`; the rest as `emit_attention` takes it."""
    places = [step for part in parts for step in part.steps]
    starts = [part.start for part in parts[:3]]
    masks = [mask.steps for mask in scores.masks]
    steps = [step for one in (*masks, *[(0, 1, 0, 0, 0)] * (2 - len(masks))) for step in one]
    flags = scores.becomes_zero, int(scores.factors is not None), int(scores.least is not None)
    rows, columns = tile_rows(level, arithmetic), tile_columns(level)
    keys, depth, outputs = sizes.keys, sizes.depth, sizes.outputs
    of_keys = matrix_table(level, arithmetic, (depth, keys), (1, parts[1].steps[1]))
    of_values = matrix_table(level, arithmetic, (keys, outputs), (parts[2].steps[1], 1))
    line = staggered(-(-evaluated(max, keys, outputs) // columns) * columns)
    read = staggered((evaluated(max, depth, keys) + 1) // 2) if arithmetic.in_bfloat16 else 0
    room = packed_floats(sizes, columns) + rows * (line + read) + columns + keys + rows
    room += PACKING_FLOATS + TILE_FLOATS + _LINE
    tile = room, rows, columns, int(arithmetic.in_bfloat16)
    counts = [getattr(sizes, field.name) for field in fields(sizes)]
    return integers(
        [*counts, *places, *starts, len(masks), *steps, *flags, *tile, *of_keys, *of_values]
    )


@register_jitable
def staggered(floats: Any) -> Any:
    """From one row of so many floats to the next: an odd number of lines of the cache.

    Rows that lie a power of two apart would push one another out of a few of its sets.
    """
    return (-(-floats // LINE_FLOATS) // 2 * 2 + 1) * LINE_FLOATS


def packed_floats(sizes: HeadSizes, wide: int) -> int:
    """Memory for the packed keys and values of one head, as floats; half as much holds pairs."""
    keys, depth, outputs = sizes.keys, sizes.depth, sizes.outputs
    return (-(-keys // wide) * (depth + 1) + -(-outputs // wide) * (keys + 1)) * wide


def mask_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each of four axes; 0 where the mask is broadcast."""
    strides, step = [], 1
    for size in reversed((1,) * (4 - len(shape)) + tuple(shape)):
        strides.append(evaluated(_step_along, size, step))
        step *= size
    return tuple(reversed(strides))


def _step_along(size: int, step: int) -> int:
    """The step along an axis of this size, which is repeated if it is 1."""
    return step if size != 1 else 0

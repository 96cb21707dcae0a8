"""Weights in the order in which tile kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.system.array_conversion import converted
from partita.system.large_pages import aligned_bytes
from partita.system.memory_map import give_back
from partita_cpu.gemm.blocking.plan import Plan
from partita_cpu.gemm.tile_fields import PAIR
from partita_cpu.gemm.tile_fields import STEP as WHOLE_STEP
from partita_cpu.gemm.tile_kernels import Arithmetic, tile_columns
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_pack_tile,
    call_transpose,
    float_at,
    half_at,
)
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.transpose_block import SIDE
from partita_cpu.llvm.levels import Level
from partita_cpu.scalar.math import bits
from partita_cpu.threads.step_team import team_of

LARGEST = 0x7F7F8000
"""Bits of the first float32 that rounds to an infinite bfloat16."""

_SHARED_BYTES = 1 << 19
"""Smaller results are there before another thread has begun."""

PLACES = WHOLE_STEP
"""Rows of a piece: as many as AMX takes at a time."""

PIECE = SIDE * WHOLE_STEP
"""Elements of a piece: so many rows of half a block."""

PARTS = 3
"""Parts of an element, at most."""

(
    GROUPS,
    OUTPUTS,
    CHANNELS,
    DOWN,
    ACROSS,
    GROUP_STEP,
    OUTPUT_STEP,
    CHANNEL_STEP,
    DOWN_STEP,
    ACROSS_STEP,
    ROWS,
    RUN,
    PADDED,
    BLOCKS,
    COLUMNS,
    PLANES,
    STEP,
    TRANSPOSE,
    PACK_TILE,
    PAIRS,
    LEAVES,
    FIELDS,
) = range(22)
"""What the table of the packing kernel holds: sizes of a group, elements from one neighbour to the
next in the weights, rows of a block, elements of a run with and without the zeros behind it, tiles
across, their columns, in how many parts elements are stored, elements along k of a piece, the
addresses of the kernels that turn a block and that lay floats out as bfloat16, whether vectors and
not AMX compute with these, and whether halves of blocks without columns are left as they are; then,
how many these are.
"""


Table = tuple[int, ...]
"""The table of one call."""

DeferredPacker = Callable[[Array, Array, Table], None]
"""Is told of weights, where they shall be packed to, and how; does it, now or later."""


def pack(plan: Plan, w: Array, threads: int = 1, later: DeferredPacker | None = None) -> Array:
    """Weights packed: a matrix (depth, columns), or those of a convolution.

    The result holds the bits of float32, float16 or bfloat16 numbers, as flat uint16. It is empty
    where some would be infinite in bfloat16.

    Args:
        plan: What they are packed for.
        w: Weights; those of a convolution as (outputs, channels of a group, down, across). A matrix
            of 16-bit floats where the plan is for products by such.
        threads: Threads that share the work.
        later: Who is told what is kept in float32, to make the result before it is read;
            ``None``: it is made now.
    """
    if plan.arithmetic in (Arithmetic.F32_BY_F16, Arithmetic.F32_BY_BF16):
        return _packed_halves(plan, w, threads)
    if w.dtype != np.float32:
        w = converted(w, np.float32)
    if not (w.flags.c_contiguous or w.flags.f_contiguous):
        w = np.ascontiguousarray(w)
    if w.ndim == 2:
        depth, columns = w.shape
        lies = (0, 1, columns, 0, 0) if w.flags.c_contiguous else (0, depth, 1, 0, 0)
        return _packed(plan, w, (depth, 1, 1, *lies), threads, later)
    w = np.ascontiguousarray(w)
    _, channels, down, across = w.shape
    size = channels * down * across
    group = plan.images.outputs // plan.images.groups * size
    taps, steps = (down, across), (across, 1)
    if plan.in_place:
        taps, steps = taps[::-1], steps[::-1]
    where = (channels, *taps, group, size, down * across, *steps)
    return _packed(plan, w, where, threads, later)


def packed_size(plan: Plan) -> int:
    """How many uint16 packed weights take, if they can be packed so."""
    elements = plan.images.groups * plan.blocks * plan.taps * plan.padded * plan.columns
    return elements * plan.arithmetic.planes * plan.arithmetic.weight_bytes // 2


def pack_bias(plan: Plan, bias: Array | None) -> Array:
    """A bias per output with zeros for the columns that tiles have too many."""
    groups, width = plan.images.groups, plan.blocks * plan.columns
    if bias is not None and bias.size == groups * width and bias.dtype == np.float32:
        return bias.reshape(-1)
    padded = np.zeros((groups, width), np.float32)
    if bias is not None:
        padded[:, : plan.images.outputs // groups] = bias.reshape(groups, -1)
    return padded.reshape(-1)


def rounds_to_infinity(w: Array, threads: int = 1) -> bool:
    """Whether some weights are not finite, or would not be in bfloat16."""
    flat = np.ravel(w if w.dtype == np.float32 else converted(w, np.float32), order="K")
    threads = threads if flat.nbytes >= _SHARED_BYTES else 1
    found = np.zeros(threads, np.int64)
    run_shared(threads, _largest, flat.ctypes.data, flat.size, found)
    give_back(w)  # many are looked at before the first one is packed
    return bool(found.max() >= LARGEST)


def _packed(
    plan: Plan, w: Array, lies: tuple[int, ...], threads: int, later: DeferredPacker | None
) -> Array:
    """Weights packed; ``lies``: the table's fields from `CHANNELS` to `ACROSS_STEP`."""
    groups, arithmetic = plan.images.groups, plan.arithmetic
    outputs = plan.images.outputs // groups
    rows, planes = plan.taps * plan.padded, arithmetic.planes
    pairs = plan.step == PAIR
    step = WHOLE_STEP if pairs else plan.step
    layout = (rows, plan.run, plan.padded, plan.blocks, plan.columns, planes, step)
    kernels = _kernels(plan.level, plan.arithmetic)
    table = (groups, outputs, *lies, *layout, *kernels, int(pairs), 0)
    out = aligned(packed_size(plan))
    if later is not None and arithmetic is Arithmetic.F32 and plan.level.native:
        later(w, out, table)
        return out
    threads = shared_by(threads, out)
    if arithmetic is Arithmetic.F16:
        whole = np.empty(2 * groups * plan.blocks * rows * plan.columns * planes, np.uint16)
        _run(threads, w, whole, table)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            out.view(np.float16)[...] = whole.view(np.float32)
        return out
    return out if _run(threads, w, out, table) < LARGEST else out[:0]


def _packed_halves(plan: Plan, w: Array, threads: int) -> Array:
    """A matrix of 16-bit floats, whose bits are kept as they are."""
    depth, columns = w.shape
    out = aligned(packed_size(plan))
    steps = [stride // w.itemsize for stride in w.strides]
    sizes = (depth, columns, plan.columns, *steps)
    run_shared(shared_by(threads, out), pack_halves, w.ctypes.data, out, *sizes)
    give_back(w)
    return out


def matrix_table(
    level: Level, arithmetic: Arithmetic, sizes: tuple[int, int], steps: tuple[int, int]
) -> list[int]:
    """The table of `pack_units` for a matrix that is only known at run time.

    Tiles must be of the first half of a block where that alone has columns.

    Args:
        level: Whose tiles it is packed for, by vectors.
        arithmetic: Float32, or bfloat16.
        sizes: Rows and columns.
        steps: Elements from one row to the next, and from one column to the next.
    """
    (rows, columns), (down, across) = sizes, steps
    wide, pairs = tile_columns(level), int(arithmetic.in_bfloat16)
    padded = -(-rows // 2) * 2 if pairs else rows
    lies = (rows, 1, 1, 0, across, down, 0, 0)
    layout = (padded, rows, padded, -(-columns // wide), wide, 1, WHOLE_STEP)
    return [1, columns, *lies, *layout, *_kernels(level, arithmetic), pairs, 1]


def _kernels(level: Level, arithmetic: Arithmetic) -> tuple[int, int]:
    """The addresses of the kernels that turn a block and lay it out; 0 where that is not done."""
    known = llvm_kernel.addresses(level)
    transpose = known["transpose_32" if tile_columns(level) >= SIDE else "transpose_32_by_8"]
    if not arithmetic.in_bfloat16:
        return transpose, 0
    if arithmetic is Arithmetic.F16_SPLIT:
        return transpose, llvm_kernel.addresses(level, "_f16")["pack_f16"]
    return transpose, known[f"pack_{arithmetic.name.lower()}"]


def _run(threads: int, w: Array, out: Array, table: Table) -> int:
    """Packs; returns the largest bit pattern of an absolute value that became bfloat16."""
    *room, found = scratch_of(threads)
    args = (out.view(np.float32), out, *room, found, np.array(table, np.int64))
    run_shared(threads, pack_blocks, w.ctypes.data, *args)
    return int(found.max())


def scratch_of(threads: int) -> tuple[Array, Array, Array, Array]:
    """What threads write to meanwhile: `places`, `floats`, `parts` and `found`."""
    return (
        np.empty((threads, PLACES), np.int64),
        np.empty((threads, PIECE), np.float32),
        np.empty((threads, PARTS * PIECE), np.uint16),
        np.zeros(threads, np.int64),
    )


def shared_by(threads: int, result: Array) -> int:
    """How many of so many threads make a result: one, if it is small."""
    return threads if result.nbytes >= _SHARED_BYTES else 1


def run_shared(threads: int, kernel: Callable[..., None], *args: Any) -> None:
    """Runs a kernel on so many threads, outside of any program."""
    if threads > 1:
        team_of(threads, 0).run(kernel, *args)
    else:
        kernel(*args, 0, 1)


def aligned(count: int) -> Array:
    """Flat uint16, the first at the start of a cache line."""
    return aligned_bytes(2 * count).view(np.uint16)


class PackingRoom(NamedTuple):
    """Memory of a thread that packs.

    Attributes:
        places: `PLACES` numbers: where the rows of a piece are.
        floats: `PIECE` floats: its elements.
        parts: `PARTS` times as many numbers: their parts.
    """

    places: Array
    floats: Array
    parts: Array


@loop(effort=Effort.LOOPS)
def pack_blocks(
    w: int,
    whole: Array,
    halves: Array,
    places: Array,
    floats: Array,
    parts: Array,
    found: Array,
    p: Array,
    tid: int,
    nt: int,
) -> None:
    """Blocks of columns, shared among threads; see `pack_units`.

    Args:
        w: Address of the weights.
        whole: The result, if it is kept whole.
        halves: The result, if it is not.
        places: For each thread that of `PackingRoom`.
        floats: Likewise.
        parts: Likewise.
        found: For each thread, the largest bit pattern of an absolute value that it laid out.
        p: See above.
        tid: This thread.
        nt: All threads; they share blocks.
    """
    units = p[GROUPS] * p[BLOCKS]
    begin, end = units * tid // nt, units * (tid + 1) // nt
    room = PackingRoom(places[tid], floats[tid], parts[tid])
    found[tid] = max(found[tid], pack_units(w, whole, halves, room, p, begin, end))


@loop
def pack_halves(
    w: int,
    out: Array,
    depth: int,
    columns: int,
    width: int,
    down: int,
    across: int,
    tid: int,
    nt: int,
) -> None:
    """A matrix of 16-bit numbers in blocks of columns, which threads share, zeros behind the last.

    Args:
        w: Address of the matrix; it need not be a multiple of two.
        out: The result (block, row, column).
        depth: Rows.
        columns: Columns.
        width: Of a block.
        down: Elements from one row to the next.
        across: Elements from one column to the next.
        tid: This thread.
        nt: All threads.
    """
    blocks = -(-columns // width)
    for block in range(blocks * tid // nt, blocks * (tid + 1) // nt):
        exist, start = min(width, columns - block * width), block * width
        for top in range(0, depth, PLACES):
            # A line of a column is read at a time, or one of a row, as they lie.
            for j in range(width):
                column, place = w + 2 * (start + j) * across, block * depth * width + j
                for k in range(top, min(top + PLACES, depth)):
                    found = half_at(column + 2 * k * down) if j < exist else np.uint16(0)
                    out[place + k * width] = found


@loop(effort=Effort.LOOPS)
def pack_units(
    w: int, whole: Array, halves: Array, room: PackingRoom, p: Array, begin: int, end: int
) -> Any:
    """Blocks of columns, piece by piece: as many rows of half a block as are one step of AMX.

    Returns the largest bit pattern of an absolute value that was made bfloat16.

    Args:
        w: Address of the weights, float32 in any order; it need not be a multiple of four.
        whole: The result as floats (block, row, column), if they are kept whole.
        halves: The same memory, as `llvm.tiles.amx` says, if they are not: (block, step, part, half
            of the columns, pair of rows, column, 2); for vectors (block, pair of rows, column, 2).
        room: Memory.
        p: See above.
        begin: The first block; they are counted group by group.
        end: Behind the last one.
    """
    blocks, rows, padded = p[BLOCKS], p[ROWS], p[PADDED]
    side = min(SIDE, p[COLUMNS])
    at_row, piece, split = room.places, room.floats, room.parts
    most = 0
    # Memory is read in order: column by column, or where rows lie together all blocks row by row.
    together = max(1, end - begin) if p[OUTPUT_STEP] == 1 else 1
    for start in range(begin, end, together):
        y, x, c, row = 0, 0, 0, 0
        while row < rows:
            count = min(p[STEP], padded - row % padded)
            there = max(0, min(count, p[RUN] - row % padded))
            for k in range(there):
                at_row[k] = y * p[DOWN_STEP] + x * p[ACROSS_STEP] + c * p[CHANNEL_STEP]
                y, x, c = _next(y, x, c, p)
            for unit in range(start, start + together):
                group = unit // blocks
                first = (unit - group * blocks) * p[COLUMNS]
                origin = w + 4 * (group * p[GROUP_STEP] + first * p[OUTPUT_STEP])
                for half in range(p[COLUMNS] // side):
                    exist = max(0, min(side, p[OUTPUTS] - first - half * side))
                    if exist == 0 and p[LEAVES]:
                        continue
                    at = origin + 4 * half * side * p[OUTPUT_STEP]
                    source, across, down = _piece(at, piece, at_row, p, there, exist)
                    if p[PAIRS]:
                        place = (unit * rows + row) * p[COLUMNS] + 2 * half * side
                        size = (count, there, exist)
                        largest = _lay_pairs(source, across, halves, split, p, place, size)
                        most = max(most, largest)
                    elif p[PACK_TILE]:
                        step = (unit * rows + row) // p[STEP]
                        largest = _pack_tiles(
                            source, across, halves, split, p, step, half, there, exist
                        )
                        most = max(most, largest)
                    else:
                        place = (unit * rows + row) * p[COLUMNS] + half * side
                        _copy(source, across, down, whole, p, place, count, there, exist)
            row += count
    return most


@loop
def _piece(start: int, floats: Array, places: Array, p: Array, there: int, exist: int) -> Any:
    """Where a piece begins, and bytes from column to column and from row to row.

    It is where it was if one of the two lies close together, as they are wanted; else in `floats`.
    """
    wide = 4 * WHOLE_STEP
    beside = 4 * p[CHANNEL_STEP]
    if p[CHANNEL_STEP] == 1 or (p[OUTPUT_STEP] == 1 and not p[PACK_TILE]):
        return start + 4 * places[0], 4 * p[OUTPUT_STEP], beside
    if p[OUTPUT_STEP] == 1 and exist == min(SIDE, p[COLUMNS]) and there == WHOLE_STEP:
        for k in range(0, WHOLE_STEP, exist):
            target = address(floats) + 4 * k
            call_transpose(p[TRANSPOSE], (start + 4 * places[k], beside, target, wide))
    else:
        for j in range(exist):
            column = start + 4 * j * p[OUTPUT_STEP]
            for k in range(there):
                floats[j * WHOLE_STEP + k] = float_at(column + 4 * places[k])
    return address(floats), wide, 4


@loop
def _pack_tiles(
    source: int,
    across: int,
    out: Array,
    parts: Array,
    p: Array,
    step: int,
    half: int,
    there: int,
    exist: int,
) -> Any:
    """Writes a piece in pairs of rows, its parts apart from each other.

    Returns the largest bit pattern of an absolute value.
    """
    size = SIDE * p[STEP]
    largest = 0
    if exist < SIDE:
        for i in range(parts.size):
            parts[i] = 0
    if exist:
        largest = call_pack_tile(p[PACK_TILE], (source, across, exist, there, address(parts)))
    for part in range(p[PLANES]):
        tile = part * PIECE
        place = ((step * p[PLANES] + part) * 2 + half) * size
        if p[STEP] == WHOLE_STEP:
            source = address(parts) + 2 * tile
            call_transpose(p[TRANSPOSE], (source, 4 * SIDE, address(out) + 2 * place, 4 * SIDE))
            continue
        for j in range(SIDE):
            for k in range(p[STEP]):
                out[place + k // 2 * 2 * SIDE + 2 * j + k % 2] = parts[tile + j * WHOLE_STEP + k]
    return largest


@loop
def _lay_pairs(
    source: int, across: int, out: Array, parts: Array, p: Array, place: int, size: Any
) -> Any:
    """Writes a piece in pairs of rows, each as wide as the block.

    `size` is that of `_pack_tiles` and of `_copy`. Returns the largest bit pattern of an absolute
    value.
    """
    count, there, exist = size
    largest, pair = 0, 2 * p[COLUMNS]
    side = min(SIDE, p[COLUMNS])
    if exist < side:
        for i in range(PIECE):
            parts[i] = 0
    if exist:
        largest = call_pack_tile(p[PACK_TILE], (source, across, exist, there, address(parts)))
    if count == WHOLE_STEP:
        for k in range(0, WHOLE_STEP, 2 * side):
            target = address(out) + 2 * (place + k // 2 * pair)
            call_transpose(p[TRANSPOSE], (address(parts) + 2 * k, 4 * SIDE, target, 2 * pair))
        return largest
    for k in range(count):
        for j in range(side):
            out[place + k // 2 * pair + 2 * j + k % 2] = parts[j * WHOLE_STEP + k]
    return largest


@loop
def _copy(
    source: int,
    across: int,
    down: int,
    out: Array,
    p: Array,
    place: int,
    count: int,
    there: int,
    exist: int,
) -> None:
    """Writes a piece as floats, zeros where there are none."""
    columns = p[COLUMNS]
    side, done = min(SIDE, columns), 0
    if down == 4 and exist == side:
        done = there // side * side
        for k in range(0, done, side):
            target = address(out) + 4 * (place + k * columns)
            call_transpose(p[TRANSPOSE], (source + 4 * k, across, target, 4 * columns))
    elif across == 4 and exist == side:
        done = there
        for k in range(there):
            for j in range(side):
                out[place + k * columns + j] = float_at(source + 4 * j + k * down)
    for k in range(done, count):
        known = exist if k < there else 0
        for j in range(known):
            out[place + k * columns + j] = float_at(source + j * across + k * down)
        out[place + k * columns + known : place + k * columns + side] = np.float32(0)


@loop
def _largest(w: int, count: int, found: Array, tid: int, nt: int) -> None:
    """The largest bit pattern of an absolute value among so many floats at an address."""
    largest = np.int32(0)
    for i in range(count * tid // nt, count * (tid + 1) // nt):
        largest = max(largest, np.int32(bits(float_at(w + 4 * i)) & 0x7FFFFFFF))
    found[tid] = largest


@loop(inline=True)
def _next(y: int, x: int, c: int, p: Any) -> Any:
    """The element of a window behind this one: channels first, then across, then down."""
    c += 1
    if c == p[CHANNELS]:
        c, x = 0, x + 1
        if x == p[ACROSS]:
            x, y = 0, y + 1
    return y, x, c


def _like(kind: type, ndim: int) -> Array:
    return np.zeros((0,) * ndim, kind)


_FLAT = _like(np.int64, 1)
_PLACE = 0, _like(np.float32, 1), _like(np.uint16, 1), _like(np.int64, 2)
_ROOM = _like(np.float32, 2), _like(np.uint16, 2)
PACKING = pack_blocks, (*_PLACE, *_ROOM, _FLAT, _FLAT)
CALLS = PACKING, (_largest, (0, 0, _FLAT))
"""What is compiled here, and arguments like those that it is called with."""

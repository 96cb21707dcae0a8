"""Products of matrices on AMX whose left side is laid out as tiles, once for all who read it.

A tile is 16 rows times 32 numbers in bfloat16, with its further parts behind it. It
lies in one piece, so that loading it neither crosses pages nor meets other rows in the same sets
of the cache. Behind the tiles one number for each says how large its elements are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.program import flattened
from partita.lowering.shapes.symbolic_size import evaluated, integer, integers
from partita_cpu.gemm.nonfinite import LARGEST, whole_term
from partita_cpu.gemm.product_records import Epilogue, ProductArrays
from partita_cpu.gemm.shares import own_share, shares_across
from partita_cpu.gemm.tile_fields import STEP, TILE_BYTES
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, EPILOGUE, NARROW, RELEASE
from partita_cpu.jit.intrinsics.address_array import floats_at, sizes_at
from partita_cpu.jit.intrinsics.address_call import (
    address,
    call_epilogue,
    call_pack_tile,
    call_plain,
    call_tile,
)
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.machine_model import MachineModel
from partita_cpu.scalar.activations import activate_floats
from partita_cpu.scalar.math import copy_row
from partita_cpu.threads.claims import LINE, claim, least_taken, word_of

COLUMNS = 32
"""Of a tile of the result; it has as many rows."""

HALF = 16
"""Rows of a tile of the left side."""

TILE = HALF * STEP
"""Elements of it."""

WEIGHTS_SHARE = 3 / 8
"""Of the first-level cache, for the weights of a tile's columns that stay there from tile to tile.

Behind so many steps along k sums are put aside. Tiles of the left side and of sums take the rest.
"""

MANY_WEIGHTS_SHARE = 9 / 128
"""The same of the second-level cache, for weights in three planes.

Six products a step leave time to read them from there, and putting sums aside takes longer.
"""

PANEL_SHARE = 3 / 8
"""Of the second-level cache, for the left side, which is read again for each column of tiles."""

SUMS = 64
"""Tiles of sums that are put aside, at most."""

_FETCHING = 4
"""Tiles down that together fetch what is needed next of the weights."""

FIELDS = (
    *("ROWS", "STEPS", "PLANES", "OUTPUTS", "BLOCKS", "CHUNK", "GROUP", "PANEL", "SHARES_ACROSS"),
    "STAYS",
)
"""What the table of `multiply_packed` holds: rows, steps along k, bfloat16 numbers for one float32,
columns, tiles across; then how it is cut: steps of a chunk, tiles across whose sums are put aside
together, tiles down of a panel, and into how many shares columns are cut; then whether the result
is laid out as tiles.
"""

(
    ROWS,
    STEPS,
    PLANES,
    OUTPUTS,
    BLOCKS,
    CHUNK,
    GROUP,
    PANEL,
    SHARES_ACROSS,
    STAYS,
) = range(len(FIELDS))


def packed_lhs_size(rows: int, depth: int, planes: int) -> int:
    """16-bit numbers of a matrix that is laid out as tiles."""
    count = -(-rows // HALF) * -(-depth // STEP)
    return count * (planes * TILE + 2)


class MatrixSizes(NamedTuple):
    """A product of matrices: (rows, depth) by (depth, columns), each number in so many planes."""

    rows: int
    depth: int
    columns: int
    planes: int


def packed_lhs_table(
    product: MatrixSizes, machine: MachineModel, threads: int, stays: bool = False
) -> Array:
    """The table of `multiply_packed`.

    Args:
        product: What is multiplied.
        machine: What it is cut for.
        threads: Threads that share it.
        stays: Whether the result is laid out as tiles too.
    """
    rows, depth, columns, planes = product
    steps, blocks, tiles = -(-depth // STEP), -(-columns // COLUMNS), -(-rows // COLUMNS)
    # With one tile down weights are read once in any case, and in order if sums are not cut.
    chunks = 1 if tiles == 1 and planes == 2 else -(-steps // _chunk_steps(machine, planes))
    chunk = -(-steps // chunks)
    across = evaluated(_shares, tiles, blocks, threads, columns, rows)
    tile_bytes = 2 * TILE * planes * 2 * chunk
    most = -(-tiles // (threads // across))
    panels = -(-most // max(1, machine.l2_bytes(PANEL_SHARE) // tile_bytes))
    panel = -(-most // panels)
    group = blocks if chunks == 1 else evaluated(max, 1, SUMS // panel)
    cut = (chunk, group, panel, across)
    return integers((rows, steps, planes, columns, blocks, *cut, int(stays)))


def _shares(tiles: int, blocks: int, threads: int, columns: int, rows: int) -> int:
    return shares_across(tiles, blocks, threads, columns / rows)


def _chunk_steps(machine: MachineModel, planes: int) -> int:
    """Steps along k after which sums are put aside."""
    held = machine.l2_bytes(MANY_WEIGHTS_SHARE) if planes > 2 else machine.l1_bytes(WEIGHTS_SHARE)
    step_bytes = 2 * COLUMNS * STEP * planes
    return max(1, held // step_bytes)


def thread_bytes(table: Array) -> int:
    """Scratch memory that each thread needs: a tile, then the sums that are put aside."""
    aside = 0 if table[CHUNK] == table[STEPS] else integer(table[GROUP] * table[PANEL])
    return (1 + aside) * TILE_BYTES + 64


@loop
def pack_lhs(
    x: Array, out: Array, kernels: Array, rows: int, depth: int, planes: int, tid: int, nt: int
) -> None:
    """Lays a matrix out as tiles.

    Args:
        x: (rows, depth), flat.
        out: `packed_lhs_size` numbers.
        kernels: `tile_kernels.packed_lhs_kernels`.
        rows: Of x.
        depth: Of x.
        planes: Parts of an element.
        tid: This thread.
        nt: All threads.
    """
    blocks, steps = -(-rows // HALF), -(-depth // STEP)
    size = steps * planes * TILE
    sizes = sizes_at(address(out) + 2 * blocks * size, blocks * steps)
    tile, end = blocks * steps * tid // nt, blocks * steps * (tid + 1) // nt
    while tile < end:
        block = tile // steps
        step = tile - block * steps
        count = min(end - tile, steps - step)
        place = address(x) + 4 * (block * HALF * depth + step * STEP)
        to = address(out) + 2 * tile * planes * TILE
        there, across = min(HALF, rows - block * HALF), min(count * STEP, depth - step * STEP)
        found = call_pack_tile(kernels[NARROW], (place, 4 * depth, there, across, to))
        sizes[tile : tile + count] = np.int32(found)
        tile += count


@loop(effort=Effort.LOOPS)
def multiply_packed(
    x: Array,
    arrays: ProductArrays,
    out: Array,
    scratch: Array,
    kernels: Array,
    p: Array,
    claims: Array,
    epilogue: Epilogue,
    tid: int,
    nt: int,
) -> None:
    """``y = activation(min(max(x @ w + bias + residual, low), high))``.

    Args:
        x: The left side, laid out as tiles.
        arrays: Weights, bias, residual and the result (rows, columns), which is not written to if
            the result is laid out as tiles.
        out: The result then: `packed_lhs_size` numbers. There is no residual then.
        scratch: Bytes; `thread_bytes` for each thread.
        kernels: `tile_kernels.packed_lhs_kernels`.
        p: `packed_lhs_table`.
        claims: Words in which threads note which tiles they take; see `threads.claims`.
        epilogue: What happens to sums.
        tid: This thread.
        nt: All threads; they share rows and columns of tiles.
    """
    steps, planes = p[STEPS], p[PLANES]
    room = 1 if p[CHUNK] == steps else 1 + p[GROUP] * p[PANEL]
    room = room * TILE_BYTES + 64
    threads = min(nt, scratch.size // room, claims.size // LINE)
    if tid >= threads:
        return
    start = tid * room
    start += -(address(scratch) + start) % 64
    halves = -(-p[ROWS] // HALF)
    sizes = sizes_at(address(x) + 2 * halves * steps * planes * TILE, halves * steps)
    lhs = PackedLhs(x, sizes, out, address(scratch) + start)
    words, share = address(claims), tid
    call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    while share >= 0:
        area = own_share(p[SHARES_ACROSS], share, threads, -(-p[ROWS] // COLUMNS), p[BLOCKS])
        pieces = (area[1] - area[0]) * (area[3] - area[2])
        more = True
        while more:
            piece, last = 0, pieces
            if threads > 1:
                piece, last = claim(word_of(words, share), pieces, 1, share != tid)
            more = threads > 1 and piece < last
            while piece < last:
                part = _part_of(p, area, piece, last)
                _multiply_part(lhs, arrays, kernels, p, epilogue, part)
                piece += (part.stop - part.panel) * (part.end - part.group)
        share = least_taken(words, threads) if threads > 1 else -1
    call_plain(kernels[RELEASE], (0,))


class _Part(NamedTuple):
    """Tiles of a panel that are computed at once.

    Attributes:
        panel: The first tile down.
        stop: Behind the last one.
        group: The first tile across.
        end: Behind the last one.
        last: Behind the last one of the share.
    """

    panel: int
    stop: int
    group: int
    end: int
    last: int


@loop(inline=True)
def _part_of(p: Array, area: Any, piece: int, behind: int) -> Any:
    """Some tiles of a share from one on: whole columns of a panel, or some tiles of one column.

    Args:
        p: `packed_lhs_table`.
        area: The share: first tile down and behind the last one, the same across.
        piece: The first tile; they are counted panel by panel, there column by column.
        behind: Behind the last one that is wanted.
    """
    top, bottom, first, last = area
    before = piece // (p[PANEL] * (last - first)) * p[PANEL]
    panel = top + before
    height = min(p[PANEL], bottom - panel)
    inside = piece - before * (last - first)
    column = inside // height
    down = inside - column * height
    group = first + column
    columns = min(min((behind - piece) // height, p[GROUP]), last - group)
    if down == 0 and columns > 0:
        return _Part(panel, panel + height, group, group + columns, last)
    stop = min(down + behind - piece, height)
    return _Part(panel + down, panel + stop, group, group + 1, last)


@loop(inline=True)
def _multiply_part(
    lhs: PackedLhs,
    arrays: ProductArrays,
    kernels: Array,
    p: Array,
    epilogue: Epilogue,
    part: _Part,
) -> None:
    """Computes some tiles, chunk by chunk along k."""
    steps, step_bytes = p[STEPS], 2 * 2 * TILE * p[PLANES]
    unusual = False
    if p[PLANES] > 1:
        unusual = is_unusual(
            lhs.sizes, 2 * part.panel * steps, 2 * (part.stop - part.panel) * steps
        )
    for chunk in range(0, steps, p[CHUNK]):
        w = address(arrays.w) + (part.group * steps + chunk) * step_bytes
        following = step_bytes * min(p[CHUNK], steps - chunk)
        if chunk + p[CHUNK] >= steps:
            behind = (part.end - part.group) * steps - chunk
            following = step_bytes * behind if part.end < part.last else 0
        weights = Weights(w, steps * step_bytes, w + following)
        cut = Chunk(part.panel, part.stop, part.group, part.end, chunk, unusual)
        multiply_chunk(lhs, arrays, weights, kernels, p, epilogue, cut)


class Weights(NamedTuple):
    """Where the weights of a chunk are.

    Attributes:
        first: Address of those of the first tile across.
        pitch: Bytes from one tile across to the next.
        following: Address of those of the next chunk; `first` if there is none.
    """

    first: int
    pitch: int
    following: int


class PackedLhs(NamedTuple):
    """What is laid out as tiles, and memory for one.

    Attributes:
        x: The left side.
        sizes: How large the elements of each of its tiles are.
        out: The result, if it is laid out so.
        tile: Address of memory for a tile, and of the sums that are put aside behind it.
    """

    x: Array
    sizes: Array
    out: Array
    tile: int


class Chunk(NamedTuple):
    """Some steps along k of some tiles.

    Attributes:
        panel: The first tile down.
        stop: Behind the last one.
        group: The first tile across.
        end: Behind the last one.
        step: The first step.
        unusual: Whether some number of the left side has no lower half.
    """

    panel: int
    stop: int
    group: int
    end: int
    step: int
    unusual: bool


@loop
def multiply_chunk(
    lhs: PackedLhs,
    arrays: ProductArrays,
    weights: Weights,
    kernels: Array,
    p: Array,
    epilogue: Epilogue,
    cut: Chunk,
) -> None:
    """Some steps of some tiles; behind the last step the tiles are finished."""
    steps, planes, tile = p[STEPS], p[PLANES], lhs.tile
    depth = min(p[CHUNK], steps - cut.step)
    ends = cut.step + depth == steps
    step_bytes = 2 * 2 * TILE * planes
    half_bytes = steps * planes * 2 * TILE
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    for block in range(cut.group, cut.end):
        b = weights.first + (block - cut.group) * weights.pitch
        following = b + weights.pitch
        if block + 1 == cut.end:
            following = b if weights.following == weights.first else weights.following
        for t in range(cut.panel, cut.stop):
            n = t - cut.panel
            rows = min(COLUMNS, p[ROWS] - t * COLUMNS)
            kernel = kernels[2 if rows > HALF else 1]
            a = address(lhs.x) + 2 * t * half_bytes + cut.step * planes * 2 * TILE
            aside = tile + ((block - cut.group) * p[PANEL] + n + 1) * TILE_BYTES
            fetching = n < _FETCHING and following != b
            ahead = following + n * (depth * step_bytes // _FETCHING) if fetching else b
            start = aside if cut.step else 0
            sums = (a, half_bytes, 0, 0, depth, b, 0, rows, start, ahead)
            if not ends:
                call_tile(kernel, (*sums, aside, 0, 0, 0, 0, 0, lowest, highest, 0))
                continue
            exact = cut.unusual and is_unusual(lhs.sizes, 2 * t * steps, -(-rows // HALF) * steps)
            if exact:
                _add_up(lhs, arrays.w, p, t, block, rows)
            if p[STAYS] or epilogue.code == 0:
                to, residual = tile, 0
                if not p[STAYS]:
                    place = 4 * (t * COLUMNS * p[OUTPUTS] + block * COLUMNS)
                    to = address(arrays.y) + place
                    residual = address(arrays.residual) + place if epilogue.has_residual else 0
                bias = address(arrays.bias) + 4 * block * COLUMNS
                pitch = COLUMNS if p[STAYS] else p[OUTPUTS]
                exist = COLUMNS if p[STAYS] else min(COLUMNS, p[OUTPUTS] - block * COLUMNS)
                bounds = np.float32(epilogue.low), np.float32(epilogue.high)
                finish = (bias, residual, to, 4 * pitch, exist, *bounds, epilogue.gate)
                if exact:
                    call_epilogue(kernels[EPILOGUE], (rows, tile, *finish))
                else:
                    call_tile(kernel, (*sums, tile, *finish))
            elif not exact:
                call_tile(kernel, (*sums, tile, 0, 0, 0, 0, 0, lowest, highest, 0))
            if p[STAYS]:
                _lay_result(lhs, kernels[NARROW], p, epilogue, t, block)
            elif epilogue.code:
                _activate_tile(tile, arrays, kernels[EPILOGUE], p, epilogue, t, block)


@loop
def _activate_tile(
    tile: int,
    arrays: ProductArrays,
    kernel: int,
    p: Array,
    epilogue: Epilogue,
    t: int,
    block: int,
) -> None:
    """Finishes a tile of sums whose activation is more than bounds and a gate."""
    outputs = p[OUTPUTS]
    rows, exist = min(COLUMNS, p[ROWS] - t * COLUMNS), min(COLUMNS, outputs - block * COLUMNS)
    place = t * COLUMNS * outputs + block * COLUMNS
    bias = address(arrays.bias) + 4 * block * COLUMNS
    other = address(arrays.residual) + 4 * place if epilogue.has_residual else 0
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    # Residuals lie as y does, so they are added row by row.
    together = 1 if epilogue.has_residual else rows
    for r in range(0, rows, together):
        at = tile + 4 * r * COLUMNS
        beside = other + 4 * r * outputs if epilogue.has_residual else 0
        rest = (bias, beside, at, 4 * COLUMNS, exist, lowest, highest, 0)
        call_epilogue(kernel, (together, at, *rest))
    alpha, beta = np.float32(epilogue.alpha), np.float32(epilogue.beta)
    activate_floats(tile, rows * COLUMNS, epilogue.code, alpha, beta)
    floats = floats_at(tile, TILE_BYTES // 4)
    for r in range(rows):
        done = floats[r * COLUMNS : r * COLUMNS + exist]
        copy_row(done, arrays.y[place + r * outputs : place + r * outputs + exist])


@loop
def _lay_result(
    lhs: PackedLhs, kernel: int, p: Array, epilogue: Epilogue, t: int, block: int
) -> None:
    """Lays out a tile of the result: its columns are one step of the product that reads it."""
    tile, out = lhs.tile, lhs.out
    rows = min(COLUMNS, p[ROWS] - t * COLUMNS)
    exist = min(COLUMNS, p[OUTPUTS] - block * COLUMNS)
    if epilogue.code:
        alpha, beta = np.float32(epilogue.alpha), np.float32(epilogue.beta)
        activate_floats(tile, rows * COLUMNS, epilogue.code, alpha, beta)
    steps, size = p[BLOCKS], p[PLANES] * TILE
    halves = -(-p[ROWS] // HALF)
    sizes = sizes_at(address(out) + 2 * halves * steps * size, halves * steps)
    for half in range(-(-rows // HALF)):
        place = (2 * t + half) * steps + block
        there = min(HALF, rows - half * HALF)
        source = tile + 4 * half * HALF * COLUMNS
        to = address(out) + 2 * place * size
        sizes[place] = call_pack_tile(kernel, (source, 4 * COLUMNS, there, exist, to))


@loop(inline=True)
def is_unusual(sizes: Any, first: int, count: int) -> Any:
    """Whether a number of some tiles has no lower half: infinity, NaN, or nearly infinite."""
    largest = np.int32(0)
    for i in range(first, min(first + count, sizes.size)):
        largest = max(largest, sizes[i])
    return largest >= LARGEST


@loop
def _add_up(lhs: PackedLhs, w: Array, p: Array, t: int, block: int, rows: int) -> None:
    """A tile of sums of whole numbers; see `nonfinite`."""
    steps, planes = p[STEPS], p[PLANES]
    x, sums = lhs.x, floats_at(lhs.tile, TILE_BYTES // 4)
    for r in range(rows):
        half, line = 2 * t + r // HALF, r % HALF
        for c in range(COLUMNS):
            total = np.float32(0)
            for step in range(steps):
                place = (half * steps + step) * planes * TILE + line * STEP
                beside = (block * steps + step) * 2 * planes * TILE + c // 16 * TILE + c % 16 * 2
                for k in range(STEP):
                    at = beside + k // 2 * 32 + k % 2
                    total += whole_term(x, place + k, TILE, w, at, planes)
            sums[r * COLUMNS + c] = total


_FLOATS, _SHORTS = np.zeros(0, np.float32), np.zeros(0, np.uint16)
_BYTES, _WORDS = np.zeros(0, np.uint8), np.zeros(0, np.int64)
_PRODUCT = (
    _SHORTS,
    ProductArrays(_SHORTS, _FLOATS, _FLOATS, _FLOATS),
    *(_SHORTS, _BYTES, _WORDS, _WORDS, _WORDS),
    Epilogue(0, 0.0, 0.0, 0, 0, 0.0, 0.0),
)
CALLS = ((multiply_packed, flattened(_PRODUCT)), (pack_lhs, (_FLOATS, _SHORTS, _WORDS, 0, 0, 0)))
"""What products of split numbers need, and arguments like those it is called with."""

"""Inner loops of the dynamic program over ideals: all contiguous subgraphs that fit a device.

Blocks, values and positions are arrays of records, and what is done for each of them is compiled
into the loop. Compiled functions count the users of every array that they pass on or take out of a
tuple, which would take as long as all that the loop computes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita_hetero.planner.arrays.compiled_loops import copy_row, inlined, jit, loop_part
from partita_hetero.planner.arrays.problem_arrays import Array

UNDECIDED, BEFORE, INSIDE, OUTSIDE = 0, 1, 2, 3

_LISTS = ("reads", "reads_end", "writes", "writes_end", "succs", "succs_end")

BLOCK = np.dtype(
    [(name, np.int64) for name in (*_LISTS, "preds", "status", "missing")]
    + [(name, np.float64) for name in ("cost", "weight", "need")]
)
"""A block: where it finds, among all links, values of other blocks that it reads, values that it
makes for others and blocks that read from it; how many blocks it reads from; whether it is
decided, and how many of these are neither before nor inside; its cost on the device, the bytes
that it keeps, and what it needs of the devices that will be left at least."""

VALUE = np.dtype(
    [(name, np.int64) for name in ("producer", "readers", "taken", "lost")]
    + [("output", np.bool_), ("up", np.float64), ("down", np.float64)]
)
"""A value: the block that makes it, or -1; how many other blocks read it, how many of them are
inside, and how many are known to be outside; whether it is an output of the model; how long it
takes from the host to the device, and back."""

_POSITION = np.dtype(
    [(name, np.int64) for name in ("block", "choice", "length")]
    + [(name, np.float64) for name in ("load", "sure", "used", "rest")]
)
"""A position in the order in which blocks are decided: the block that is decided there; `TAKE`,
`LEAVE` or `BOTH_TRIED`; how many blocks could be decided when it was reached. Then totals of the
subgraph so far: its load if all that is undecided stays outside; what of that is sure whatever
becomes of them; bytes that it keeps; what the blocks outside need."""

TAKE, LEAVE, BOTH_TRIED = range(3)


class BlockTables(NamedTuple):
    """Blocks and the values between them, for one device.

    Attributes:
        blocks: Records `BLOCK`.
        values: Records `VALUE`.
        links: What the blocks' lists hold.
    """

    blocks: Array
    values: Array
    links: Array


class Layer(NamedTuple):
    """Ideals that a number of devices can reach; open addressing, a power of two slots.

    Attributes:
        words: Bits of the blocks, a row for each ideal.
        value: Largest load so far; infinite for an empty row.
        back: Layer number and row it came from, and the kind of device between.
        rows: Number of rows in use.
        table: Row of each slot, or -1.
    """

    words: Array
    value: Array
    back: Array
    rows: Array
    table: Array


class Extension(NamedTuple):
    """One more device, for what the devices before it have left.

    Attributes:
        slots: How much it runs at once.
        limit: Its memory.
        launch: Its launch cost.
        layer: Number of the layer that is extended, to find the way back.
        kind: Number of the device's kind, likewise.
        below: Only values below this one count.
        room: What the devices that will be left give, for each unit of time.
    """

    slots: int
    limit: float
    launch: float
    layer: int
    kind: int
    below: float
    room: float


@inlined
def find(words: Array, table: Array, key: Array) -> int:
    """The slot of a set of blocks in a table, or the empty one where it belongs."""
    mask = np.uint64(len(table) - 1)
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in key:
        mixed = (mixed ^ word) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    slot = mixed & mask
    while True:
        row = table[np.int64(slot)]
        if row < 0:
            return int(slot)
        same = True
        for i in range(len(key)):
            same &= words[row, i] == key[i]
        if same:
            return int(slot)
        slot = (slot + np.uint64(1)) & mask


@jit
def expand(
    tables: BlockTables, extension: Extension, source: Layer, first: int, last: int, target: Layer
) -> int:
    """Adds to a layer all ideals that one more device reaches from some ideals of another layer.

    Args:
        tables: The blocks, for a device of the kind that is added.
        extension: The device.
        source: The other layer.
        first: First of its rows to expand.
        last: End of those rows.
        target: The layer.

    Returns:
        The first row that was not expanded, for want of room in the layer; ``last`` if all were.
    """
    positions = np.zeros(len(tables.blocks) + 1, _POSITION)
    key = np.zeros(source.words.shape[1], np.uint64)
    for row in range(first, last):
        if source.value[row] >= extension.below:
            continue
        copy_row(key, source.words[row])
        positions[0].load = positions[0].sure = extension.launch
        _begin(tables, positions, key)
        if not _add_subgraphs(tables, extension, positions, key, source.value[row], row, target):
            return row
    return last


@loop_part
def _begin(tables: BlockTables, positions: Array, key: Array) -> None:
    """Decides nothing but what is before: the blocks of the key."""
    blocks, values, links = tables
    for v in range(len(values)):
        values[v].taken = values[v].lost = 0
    for block in range(len(blocks)):
        blocks[block].missing = blocks[block].preds
    start = positions[0]
    start.used = start.rest = 0.0
    for block in range(len(blocks)):
        at = blocks[block]
        if (key[block // 64] >> np.uint64(block % 64)) & np.uint64(1):
            at.status = BEFORE
            for i in range(at.succs, at.succs_end):
                blocks[links[i]].missing -= 1
        else:
            at.status = UNDECIDED
            start.rest += at.need
    start.choice, start.length = TAKE, 0
    for block in range(len(blocks)):
        if blocks[block].status == UNDECIDED and blocks[block].missing == 0:
            positions[start.length].block = block
            start.length += 1


@loop_part
def _add_subgraphs(
    tables: BlockTables,
    extension: Extension,
    positions: Array,
    key: Array,
    value: float,
    row: int,
    target: Layer,
) -> bool:
    """Tries all subgraphs behind one ideal, depth first.

    Args:
        tables: The blocks; what is decided of each is kept in them.
        extension: The device that gets the subgraph.
        positions: The way so far, a position for each block that was decided.
        key: Bits of the blocks of the ideal; those of the subgraph are set and cleared in it.
        value: Largest load of the devices before.
        row: Of the ideal in its layer, to find the way back.
        target: Receives the ideals that the subgraphs make of this one.

    Returns:
        Whether there was room for all of them.
    """
    words, best, back, count, table = target
    slots, limit, _, layer, kind, below, room = extension
    position = 0
    while position >= 0:
        at = positions[position]
        if position == at.length:
            fits = at.load / slots < below and at.rest <= room * below + 1e-9
            if position > 0 and fits:
                number = _number_of(words, table, count, key)
                if number < 0:
                    return False
                largest = max(value, at.load / slots)
                if largest < best[number]:
                    best[number] = largest
                    back[number, 0], back[number, 1], back[number, 2] = layer, row, kind
            position -= 1
            continue
        if at.choice == BOTH_TRIED:
            _forget(tables, at.block)
            position -= 1
            continue
        if at.choice == TAKE:
            _take(tables, positions, key, position)
        else:
            _leave(tables, positions, key, position)
        at.choice += 1
        after = positions[position + 1]
        if after.sure / slots < below and after.used <= limit:
            position += 1
            after.choice = TAKE
    return True


@inlined
def _number_of(words: Array, table: Array, count: Array, key: Array) -> int:
    """The row of an ideal in a layer, perhaps a new one; -1 if there is no room for it."""
    slot = find(words, table, key)
    number = table[slot]
    if number < 0 and count[0] < len(words):
        number = count[0]
        count[0] += 1
        copy_row(words[number], key)
        table[slot] = number
    return int(number)


@inlined
def _take(tables: BlockTables, positions: Array, key: Array, position: int) -> None:
    """Takes the block of a position inside, and reaches the next position."""
    blocks, values, links = tables
    at, after = positions[position], positions[position + 1]
    number, block = at.block, blocks[at.block]
    block.status = INSIDE
    key[number // 64] |= np.uint64(1) << np.uint64(number % 64)
    load, sure = at.load + block.cost, at.sure + block.cost
    after.used, after.rest = at.used + block.weight, at.rest - block.need
    for i in range(block.reads, block.reads_end):
        v = values[links[i]]
        v.taken += 1
        if v.producer < 0 or blocks[v.producer].status == BEFORE:
            if v.taken == 1:
                load += v.up
                sure += v.up
        elif v.taken == v.readers and not v.output:
            load -= v.down
    for i in range(block.writes, block.writes_end):
        v = values[links[i]]
        load += v.down
        if v.output:
            sure += v.down
    after.load, after.sure = load, sure
    length = at.length
    for i in range(block.succs, block.succs_end):
        succ = links[i]
        blocks[succ].missing -= 1
        if blocks[succ].missing == 0:
            positions[length].block = succ
            length += 1
    after.length = length


@inlined
def _leave(tables: BlockTables, positions: Array, key: Array, position: int) -> None:
    """Takes the block of a position out and leaves it outside: it gets what it reads from there."""
    blocks, values, links = tables
    at, after = positions[position], positions[position + 1]
    number, block = at.block, blocks[at.block]
    key[number // 64] &= ~(np.uint64(1) << np.uint64(number % 64))
    block.status = OUTSIDE
    after.load, after.used, after.rest, after.length = at.load, at.used, at.rest, at.length
    sure = at.sure
    for i in range(block.reads, block.reads_end):
        v = values[links[i]]
        v.taken -= 1
        v.lost += 1
        inside = v.producer >= 0 and blocks[v.producer].status == INSIDE
        if inside and v.lost == 1 and not v.output:
            sure += v.down
    after.sure = sure
    for i in range(block.succs, block.succs_end):
        blocks[links[i]].missing += 1


@inlined
def _forget(tables: BlockTables, number: int) -> None:
    """Leaves a block undecided that was outside."""
    blocks, values, links = tables
    block = blocks[number]
    block.status = UNDECIDED
    for i in range(block.reads, block.reads_end):
        values[links[i]].lost -= 1

"""The inner loops of the dynamic programme over ideals: all pieces that fit a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita_hetero.planner.arrays.compiled_loops import jit
from partita_hetero.planner.arrays.problem_arrays import Array

UNDECIDED, BEFORE, INSIDE, OUTSIDE = 0, 1, 2, 3


class BlockGraph(NamedTuple):
    """Blocks and the values between them.

    Attributes:
        succ: Blocks that read from each block, from ``succ_start``.
        succ_start: Where each block's successors start.
        preds: How many blocks each block reads from.
        cost: Cost of each block on each device.
        weight: Bytes that each block keeps.
        producer: Block that makes each value, or -1.
        readers: How many other blocks read each value.
        output: Whether each value is an output of the model.
        reads: Values of other blocks that each block reads, from ``read_start``.
        read_start: Where each block's values start.
        writes: Values that each block makes for others, from ``write_start``.
        write_start: Where each block's values start.
        up: Time of moving each value from the host to each device.
        down: Time of moving each value from each device to the host.
        launch: Launch cost of each device.
    """

    succ: Array
    succ_start: Array
    preds: Array
    cost: Array
    weight: Array
    producer: Array
    readers: Array
    output: Array
    reads: Array
    read_start: Array
    writes: Array
    write_start: Array
    up: Array
    down: Array
    launch: Array


@jit
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
    graph: BlockGraph,
    device: int,
    slots: int,
    limit: float,
    origin: tuple[int, int],
    words: Array,
    value: Array,
    first: int,
    last: int,
    below: float,
    need: Array,
    room: float,
    new_words: Array,
    new_value: Array,
    new_back: Array,
    new_count: Array,
    new_table: Array,
) -> int:
    """Adds to a layer all ideals that one more device reaches from some ideals of another layer.

    Args:
        graph: The blocks.
        device: A device of the kind that is added.
        slots: How much it runs at once.
        limit: Its memory.
        origin: What to note as the way back: number of the layer and of the kind.
        words: Ideals of the other layer.
        value: Their values.
        first: First of the rows to expand.
        last: End of those rows.
        below: Only values below this one count.
        need: What each block that is left needs of the devices that will be left at least.
        room: What those devices give, for each unit of time.
        new_words: Ideals of the layer.
        new_value: Their values.
        new_back: Their ways back.
        new_count: How many there are.
        new_table: Their slots.

    Returns:
        The first row that was not expanded, for want of room in the layer; ``last`` if all were.
    """
    count = len(graph.preds)
    status = np.zeros(count, np.int64)
    missing = np.zeros(count, np.int64)
    taken = np.zeros(len(graph.producer), np.int64)  # readers inside
    lost = np.zeros(len(graph.producer), np.int64)  # readers known to be outside
    list_of = np.zeros(count, np.int64)
    choice = np.zeros(count + 1, np.int64)  # 0 to take it, 1 to leave it, 2 both tried
    length = np.zeros(count + 1, np.int64)
    key = np.zeros(words.shape[1], np.uint64)
    for row in range(first, last):
        if value[row] >= below:
            continue
        left = 0.0
        missing[:] = graph.preds
        taken[:] = 0
        lost[:] = 0
        key[:] = words[row]
        for block in range(count):
            inside = (key[block // 64] >> np.uint64(block % 64)) & np.uint64(1)
            status[block] = BEFORE if inside else UNDECIDED
        for block in range(count):
            if status[block] == BEFORE:
                for i in range(graph.succ_start[block], graph.succ_start[block + 1]):
                    missing[graph.succ[i]] -= 1
            else:
                left += need[block]
        length[0] = 0
        for block in range(count):
            if status[block] == UNDECIDED and missing[block] == 0:
                list_of[length[0]] = block
                length[0] += 1
        position = 0
        choice[0] = 0
        load, sure, used, rest = graph.launch[device], graph.launch[device], 0.0, left
        load_at = np.zeros(count + 1)  # saved where the choice was made, so that undoing is exact
        sure_at = np.zeros(count + 1)
        used_at = np.zeros(count + 1)
        rest_at = np.zeros(count + 1)
        while position >= 0:
            if position == length[position]:
                if position > 0 and load / slots < below and rest <= room * below + 1e-9:
                    slot = find(new_words, new_table, key)
                    target = new_table[slot]
                    if target < 0:
                        if new_count[0] == len(new_value):
                            return row
                        target = new_count[0]
                        new_count[0] += 1
                        new_words[target] = key
                        new_table[slot] = target
                    now = max(value[row], load / slots)
                    if now < new_value[target]:
                        new_value[target] = now
                        new_back[target, 0] = origin[0]
                        new_back[target, 1] = row
                        new_back[target, 2] = origin[1]
                position -= 1
                continue
            block = list_of[position]
            if choice[position] == 0:
                load_at[position], sure_at[position] = load, sure
                used_at[position], rest_at[position] = used, rest
                choice[position] = 1
                status[block] = INSIDE
                key[block // 64] |= np.uint64(1) << np.uint64(block % 64)
                load += graph.cost[block, device]
                sure += graph.cost[block, device]
                used += graph.weight[block]
                rest -= need[block]
                for i in range(graph.read_start[block], graph.read_start[block + 1]):
                    v = graph.reads[i]
                    taken[v] += 1
                    if graph.producer[v] < 0 or status[graph.producer[v]] == BEFORE:
                        if taken[v] == 1:
                            load += graph.up[v, device]
                            sure += graph.up[v, device]
                    elif taken[v] == graph.readers[v] and not graph.output[v]:
                        load -= graph.down[v, device]
                for i in range(graph.write_start[block], graph.write_start[block + 1]):
                    load += graph.down[graph.writes[i], device]
                    if graph.output[graph.writes[i]]:
                        sure += graph.down[graph.writes[i], device]
                end = length[position]
                for i in range(graph.succ_start[block], graph.succ_start[block + 1]):
                    succ = graph.succ[i]
                    missing[succ] -= 1
                    if missing[succ] == 0:
                        list_of[end] = succ
                        end += 1
                if sure / slots < below and used <= limit:
                    position += 1
                    length[position] = end
                    choice[position] = 0
                continue
            if choice[position] == 1:
                _take_out(graph, block, missing, taken)
                key[block // 64] &= ~(np.uint64(1) << np.uint64(block % 64))
                load, sure = load_at[position], sure_at[position]
                used, rest = used_at[position], rest_at[position]
                choice[position] = 2
                status[block] = OUTSIDE
                for i in range(graph.read_start[block], graph.read_start[block + 1]):
                    v = graph.reads[i]
                    lost[v] += 1
                    inside = graph.producer[v] >= 0 and status[graph.producer[v]] == INSIDE
                    if inside and lost[v] == 1 and not graph.output[v]:
                        sure += graph.down[v, device]
                if sure / slots < below:
                    length[position + 1] = length[position]
                    position += 1
                    choice[position] = 0
                continue
            status[block] = UNDECIDED
            for i in range(graph.read_start[block], graph.read_start[block + 1]):
                lost[graph.reads[i]] -= 1
            load, sure = load_at[position], sure_at[position]
            used, rest = used_at[position], rest_at[position]
            position -= 1
    return last


@jit
def _take_out(graph: BlockGraph, block: int, missing: Array, taken: Array) -> None:
    """Undoes the counts of taking a block inside."""
    for i in range(graph.read_start[block], graph.read_start[block + 1]):
        taken[graph.reads[i]] -= 1
    for i in range(graph.succ_start[block], graph.succ_start[block + 1]):
        missing[graph.succ[i]] += 1

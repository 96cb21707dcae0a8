"""The best contiguous split for throughput, proven: dynamic programming over ideals.

An ideal is a set of blocks with all that they depend on. A contiguous split is a chain of ideals,
and each device gets the difference of two neighbours. From each ideal that some devices can reach,
every larger one is tried whose difference fits a device in less time than the best split known;
ideals from which the remaining devices could not finish in that time, even if work were divisible,
are left out. Both keep the tables small where the number of all ideals is astronomic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.arrays.blocks import Blocks
from partita_hetero.planner.arrays.device_kinds import Kind
from partita_hetero.planner.arrays.free_blocks import merge_free
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays, pack
from partita_hetero.planner.search.ideal_loops import (
    BLOCK,
    VALUE,
    BlockTables,
    Extension,
    Layer,
    expand,
    find,
)

MAX_IDEALS = 1 << 21
BATCH = 16

State = tuple[int, ...]
"""How many devices of each kind are used."""


def empty_layer(words: int, size: int) -> Layer:
    """A layer of no ideals, with room for so many of so many words."""
    return Layer(
        np.zeros((size, words), np.uint64),
        np.full(size, np.inf),
        np.full((size, 3), -1, np.int64),
        np.zeros(1, np.int64),
        np.full(2 * size, -1, np.int64),
    )


def grown(layer: Layer) -> Layer:
    """The same layer with twice the room."""
    larger = empty_layer(layer.words.shape[1], 2 * len(layer.value))
    rows = int(layer.rows[0])
    for new, old in (
        (larger.words, layer.words),
        (larger.value, layer.value),
        (larger.back, layer.back),
    ):
        new[:rows] = old[:rows]
    larger.rows[0] = rows
    for row in range(rows):
        larger.table[find(larger.words, larger.table, layer.words[row])] = row
    return larger


def best_contiguous(
    arrays: Arrays, blocks: Blocks, alike: list[Kind], below: float, seconds: float
) -> tuple[bool, float, Array | None]:
    """Searches for a contiguous split whose busiest device is below a value.

    Args:
        arrays: The problem; values between accelerators pass through the host.
        blocks: What is never torn.
        alike: Kinds of devices.
        below: Value of the best split known.
        seconds: How long to search.

    Returns:
        Whether the search is complete, so that nothing is better than what is returned; the value
        of the best split found, or ``below``; device of each unit, or None if none is below.
    """
    end = search_clock.seconds() + seconds
    blocks, early = merge_free(arrays, blocks)
    tables = _tables(arrays, blocks)
    words = (blocks.count + 63) // 64
    share = _divisible(blocks, arrays, alike)
    states = sorted(
        itertools.product(*(range(len(kind.devices) + 1) for kind in alike)), key=lambda s: sum(s)
    )
    layers = {state: empty_layer(words, 1024) for state in states}
    first = layers[states[0]]
    first.words[0] = _pack_bits(early, words)
    first.table[find(first.words, first.table, first.words[0])] = 0
    first.value[0], first.rows[0] = 0.0, 1
    number = {state: index for index, state in enumerate(states)}
    full = _pack_bits(np.ones(blocks.count, bool), words)
    best, goal = below, None
    for state in states:
        for which, kind in enumerate(alike):
            after = tuple(used + (index == which) for index, used in enumerate(state))
            if after not in layers:
                continue
            device = kind.devices[0]
            slots = max(1, int(arrays.slots[device]))
            costs = float(arrays.limit[device]), float(arrays.launch[device])
            need, room = share(after)
            _use_device(tables, arrays, blocks, device, need)
            source = layers[state]
            row = 0
            while row < source.rows[0]:
                if search_clock.seconds() > end or layers[after].rows[0] > MAX_IDEALS:
                    return False, best, _places(layers, states, goal, blocks, alike)
                last = min(row + BATCH, int(source.rows[0]))
                extension = Extension(slots, *costs, number[state], which, best, room)
                row = expand(tables, extension, source, row, last, layers[after])
                if 2 * int(layers[after].rows[0]) > len(layers[after].value) or row < last:
                    layers[after] = grown(layers[after])
            found = layers[after].table[find(layers[after].words, layers[after].table, full)]
            if found >= 0 and layers[after].value[found] < best:
                best = float(layers[after].value[found])
                goal = (number[after], int(found))
    return True, best, _places(layers, states, goal, blocks, alike)


def _places(
    layers: dict[State, Layer],
    states: list[State],
    goal: tuple[int, int] | None,
    blocks: Blocks,
    alike: list[Kind],
) -> Array | None:
    """Follows the way back from the full ideal; device of each unit."""
    if goal is None:
        return None
    state, row = goal
    place = np.zeros(blocks.count, np.int64)
    inside = _bits(layers[states[state]].words[row], blocks.count)
    used = [0] * len(alike)
    while states[state] != states[0]:
        state, row, which = (int(item) for item in layers[states[state]].back[row])
        before = _bits(layers[states[state]].words[row], blocks.count)
        before &= states[state] != states[0]  # what goes first of all goes with the first subgraph
        place[inside & ~before] = alike[which].devices[used[which]]
        used[which] += 1
        inside = before
    return place[blocks.of_unit]


def _pack_bits(chosen: Array, words: int) -> Array:
    packed = np.zeros(8 * words, np.uint8)
    packed[: (len(chosen) + 7) // 8] = np.packbits(chosen, bitorder="little")
    return packed.view(np.uint64)


def _bits(words: Array, count: int) -> Array:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:count].astype(bool)


def _divisible(
    blocks: Blocks, arrays: Arrays, alike: list[Kind]
) -> Callable[[State], tuple[Array, float]]:
    """A test that devices left over can do what is left, as if work were divisible.

    For any weights of the kinds, the weighted time that blocks need at least must not be more than
    the weighted time that the devices have. The weight of a kind is its speed at the whole model.
    """
    cost = np.stack([blocks.cost[:, kind.devices[0]] for kind in alike])
    total = np.where(np.isfinite(cost), cost, 0).sum(axis=1)
    weight = 1 / np.maximum(total, 1e-12)
    slots = np.array([max(1, int(arrays.slots[kind.devices[0]])) for kind in alike])

    def share(state: State) -> tuple[Array, float]:
        left = np.array([len(kind.devices) for kind in alike]) - np.array(state)
        if not left.any():
            return np.ones(blocks.count), 0.0
        need = (cost * weight[:, None])[left > 0].min(axis=0)
        return need, float((weight * slots * left).sum())

    return share


def _tables(arrays: Arrays, blocks: Blocks) -> BlockTables:
    """Blocks and values as the loops take them, but for what depends on the device.

    Values that stay inside a block are dropped.
    """
    value_of = np.repeat(np.arange(len(arrays.producer)), np.diff(arrays.reader_start))
    reader = blocks.of_task[arrays.reader]
    made = arrays.producer >= 0
    producer = np.where(made, blocks.of_task[arrays.producer], -1)
    pairs = np.unique(np.stack([value_of, reader], axis=1), axis=0)
    pairs = pairs[pairs[:, 1] != producer[pairs[:, 0]]]
    values = np.zeros(len(producer), VALUE)
    values["producer"], values["output"] = producer, arrays.output
    values["readers"] = np.bincount(pairs[:, 0], minlength=len(producer))
    crossing = (values["readers"] > 0) | arrays.output
    lists = {
        "reads": [pairs[pairs[:, 1] == block, 0] for block in range(blocks.count)],
        "writes": [np.flatnonzero(crossing & (producer == n)) for n in range(blocks.count)],
        "succs": blocks.succs,
    }
    table, links, length = np.zeros(blocks.count, BLOCK), [], 0
    for name, items in lists.items():
        flat, start = pack(items)
        table[name], table[f"{name}_end"] = length + start[:-1], length + start[1:]
        links.append(flat)
        length += len(flat)
    table["preds"] = [len(preds) for preds in blocks.preds]
    table["weight"] = blocks.weight
    return BlockTables(table, values, np.concatenate(links))


def _use_device(
    tables: BlockTables, arrays: Arrays, blocks: Blocks, device: int, need: Array
) -> None:
    """Fills in what depends on the device, and on those that will be left behind it."""
    tables.blocks["cost"], tables.blocks["need"] = blocks.cost[:, device], need
    tables.values["up"], tables.values["down"] = arrays.up[:, device], arrays.down[:, device]

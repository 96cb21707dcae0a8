"""Merges blocks that cost nothing into a neighbour, where that loses no contiguous optimum.

Every block less shrinks the number of ideals, often by half. A block is free if it costs nothing
on any device and its bytes cannot matter. Then

- with one predecessor and results that cost nothing to move, it may go where the predecessor is;
- with one successor and inputs that cost nothing to move, it may go where the successor is;
- with no predecessor and results that cost nothing to move, it may go first of all.
"""

from __future__ import annotations

import numpy as np

from partita_hetero.planner.arrays.blocks import Blocks
from partita_hetero.planner.arrays.problem_arrays import Array, Arrays


def merge_free(arrays: Arrays, blocks: Blocks) -> tuple[Blocks, Array]:
    """Merges what it can.

    Returns:
        The merged blocks, and which of them are to go first of all.
    """
    ample = bool((arrays.limit >= blocks.weight.sum()).all())
    free = (blocks.cost == 0).all(axis=1) & (ample | (blocks.weight == 0))
    light_out, light_in = _light(arrays, blocks)
    into = np.arange(blocks.count)
    preds = [set(sources) for sources in blocks.preds]
    succs = [set(targets) for targets in blocks.succs]
    early = np.zeros(blocks.count, bool)
    waiting = [int(block) for block in np.flatnonzero(free)]
    while waiting:
        block = waiting.pop()
        if into[block] != block or early[block]:
            continue
        if len(preds[block]) == 1 and light_out[block]:
            (target,) = preds[block]
        elif len(succs[block]) == 1 and light_in[block]:
            (target,) = succs[block]
        elif not preds[block] and light_out[block] and light_in[block]:
            early[block] = True
            target = -1
        else:
            continue
        touched = preds[block] | succs[block]
        for pred in preds[block]:
            succs[pred].discard(block)
        for succ in succs[block]:
            preds[succ].discard(block)
        if target >= 0:
            into[block] = target
            for pred in preds[block] - {target}:
                succs[pred].add(target)
                preds[target].add(pred)
            for succ in succs[block] - {target}:
                preds[succ].add(target)
                succs[target].add(succ)
            light_out[target] &= light_out[block]
            light_in[target] &= light_in[block]
        preds[block], succs[block] = set(), set()
        waiting += [other for other in touched if free[other]]
    return _merged(blocks, into, early, preds, succs)


def _light(arrays: Arrays, blocks: Blocks) -> tuple[Array, Array]:
    """Which blocks write only, and which read only, values that cost nothing to move."""
    moves: Array = np.any((arrays.up > 0) | (arrays.down > 0), axis=1, keepdims=True)[:, 0]
    heavy = np.flatnonzero(moves)
    light_out = np.ones(blocks.count, bool)
    made = heavy[arrays.producer[heavy] >= 0]
    light_out[blocks.of_task[arrays.producer[made]]] = False
    light_in = np.ones(blocks.count, bool)
    value_of = np.repeat(np.arange(len(moves)), np.diff(arrays.reader_start))
    light_in[blocks.of_task[arrays.reader[moves[value_of]]]] = False
    return light_out, light_in


def _merged(
    blocks: Blocks,
    into: Array,
    early: Array,
    preds: list[set[int]],
    succs: list[set[int]],
) -> tuple[Blocks, Array]:
    into = _roots(into)
    kept: Array = np.asarray(np.unique(into), np.int64)
    new = np.searchsorted(kept, into)
    number = {int(old): index for index, old in enumerate(kept)}
    cost = np.zeros((len(kept), blocks.cost.shape[1]))
    np.add.at(cost, new, blocks.cost)
    merged = Blocks(
        new[blocks.of_unit],
        new[blocks.of_task],
        [sorted(number[pred] for pred in preds[old]) for old in kept],
        [sorted(number[succ] for succ in succs[old]) for old in kept],
        cost,
        np.bincount(new, blocks.weight, len(kept)),
    )
    return merged, early[kept]


def _roots(into: Array) -> Array:
    """Where each block ends up if its target has moved on as well."""
    further = into[into]
    while not np.array_equal(further, into):
        into, further = further, further[further]
    return into

"""Blocks: units that must stay together if each device gets one contiguous subgraph.

They are the strongly connected components of the units' graph, so that the graph of blocks is
acyclic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita_hetero.planner.arrays.problem_arrays import Array, Arrays


@dataclass(frozen=True)
class Blocks:
    """The problem with each block as one node.

    Attributes:
        of_unit: Block of each unit.
        of_task: Block of each task.
        preds: Blocks that each block reads from.
        succs: Blocks that read from each block.
        cost: Cost of each block on each device.
        weight: Bytes that each block keeps.
    """

    of_unit: Array
    of_task: Array
    preds: list[list[int]]
    succs: list[list[int]]
    cost: Array
    weight: Array

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self.preds)

    def hold(self, arrays: Arrays) -> bool:
        """Whether no contiguous placement tears a block.

        A device that runs tasks singly may take some of a circle's units, the others apart.
        """
        return self.count == arrays.units or not arrays.per_task.any()

    def orders(self) -> list[Array]:
        """Some orders in which the blocks can run: depth first, breadth first, and backwards."""
        backwards = [_order(self.succs, self.preds, deep)[::-1] for deep in (True, False)]
        return [
            np.array(order, np.int64)
            for order in (
                _order(self.preds, self.succs, True),
                _order(self.preds, self.succs, False),
                *backwards,
            )
        ]


def contract(arrays: Arrays) -> Blocks:
    """Finds the blocks (strongly connected components of the units)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    units = arrays.units
    target = arrays.unit_of[np.repeat(np.arange(len(arrays.unit_of)), np.diff(arrays.pred_start))]
    source = arrays.unit_of[arrays.pred]
    wires = coo_array((np.ones(len(source), np.int8), (source, target)), shape=(units, units))
    count, of_unit = connected_components(wires.tocsr(), directed=True, connection="strong")
    of_unit = of_unit.astype(np.int64)
    edges = np.stack([of_unit[source], of_unit[target]], axis=1)
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    preds: list[list[int]] = [[] for _ in range(count)]
    succs: list[list[int]] = [[] for _ in range(count)]
    for one, other in edges.tolist():
        succs[one].append(other)
        preds[other].append(one)
    cost = np.zeros((count, len(arrays.slots)))
    np.add.at(cost, of_unit, arrays.unit_cost + arrays.penalty)
    weight = np.bincount(of_unit, arrays.unit_weight, count)
    return Blocks(of_unit, of_unit[arrays.unit_of], preds, succs, cost, weight)


def _order(preds: list[list[int]], succs: list[list[int]], deep: bool) -> list[int]:
    """An order in which each comes after its predecessors, newest or oldest ready one first."""
    missing = [len(sources) for sources in preds]
    ready = [index for index, count in enumerate(missing) if count == 0]
    order = []
    taken = 0
    while len(ready) > taken if not deep else ready:
        index = ready.pop() if deep else ready[taken]
        taken += not deep
        order.append(index)
        for succ in succs[index]:
            missing[succ] -= 1
            if missing[succ] == 0:
                ready.append(succ)
    return order

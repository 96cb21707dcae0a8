"""Partitioning: groups operations of one device into subgraphs, for any graph and any placement.

Subgraphs are made in an order in which they can run, each by taking everything of one device that
is ready, transitively; so none ever waits for a later one, and the quotient graph is acyclic by
construction. Among the devices with something ready, the one is taken whose operations have the
longest path to the end, counted in changes of device: with two devices that gives the fewest
subgraphs that any order of alternation can give. With more devices some may be left that can be
joined; :mod:`partita_hetero.partition.merge_subgraphs` does that. Those that are to run at the same
time are cut finer, see ``_handing_over_early``. Time is linear in operations and edges.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from partita_hetero.partition import merge_subgraphs
from partita_hetero.partition.merge_subgraphs import Device, Subgraph

__all__ = ["Subgraph", "changes_to_end", "partition"]


def partition(
    preds: Sequence[Sequence[int]],
    succs: Sequence[Sequence[int]],
    affinity: Sequence[Device | None],
    merge_islands: bool = True,
) -> list[Subgraph[Device]]:
    """Cuts a graph by affinity.

    Args:
        preds: For each operation those it reads from; indices are in topological order.
        succs: For each operation those that read from it.
        affinity: For each operation its device; operations with ``None`` are left out, and nothing
            that is kept may depend on them at run time.
        merge_islands: Make few subgraphs: let operations of one device share one even if they pass
            each other no value, or if one of them is all that another device waits for. Without
            it subgraphs hand over early, so that more can run at the same time.

    Returns:
        The subgraphs in an order in which they can run. Each kept operation is in exactly one.
    """
    if not merge_islands:
        return _handing_over_early(preds, affinity)
    subgraphs = _take_by_device(preds, succs, affinity)
    return merge_subgraphs.join_subgraphs(_delay_and_merge(subgraphs, succs), succs)


def changes_to_end(succs: Sequence[Sequence[int]], affinity: Sequence[Device | None]) -> list[int]:
    """For each operation the most changes of device on a path from it to an output."""
    height = [0] * len(succs)
    for op in range(len(succs) - 1, -1, -1):
        if affinity[op] is None:
            continue
        for succ in succs[op]:
            if affinity[succ] is not None:
                height[op] = max(height[op], height[succ] + (affinity[succ] != affinity[op]))
    return height


def _take_by_device(
    preds: Sequence[Sequence[int]],
    succs: Sequence[Sequence[int]],
    affinity: Sequence[Device | None],
) -> list[Subgraph[Device]]:
    height = changes_to_end(succs, affinity)
    waiting = [sum(affinity[pred] is not None for pred in preds[op]) for op in range(len(preds))]
    ready: dict[Device, list[int]] = {}
    urgency: dict[Device, int] = {}

    def offer(op: int) -> None:
        device = affinity[op]
        if device is not None:
            ready.setdefault(device, []).append(op)
            urgency[device] = max(urgency.get(device, 0), height[op])

    for op in range(len(preds)):
        if waiting[op] == 0:
            offer(op)
    subgraphs = []
    while ready:
        device = max(ready, key=lambda name: (urgency[name], len(ready[name])))
        stack = ready.pop(device)
        del urgency[device]
        taken = []
        while stack:
            op = stack.pop()
            taken.append(op)
            for succ in succs[op]:
                waiting[succ] -= 1
                if waiting[succ] == 0:
                    if affinity[succ] == device:
                        stack.append(succ)
                    else:
                        offer(succ)
        subgraphs.append(Subgraph(device, tuple(sorted(taken))))
    return subgraphs


def _handing_over_early(
    preds: Sequence[Sequence[int]], affinity: Sequence[Device | None]
) -> list[Subgraph[Device]]:
    """Subgraphs that begin where a value comes in from another device and end where one goes out.

    An operation's level is the most such places on a path to it. A subgraph is connected and of one
    level, so that in the order of levels none waits for a later one. Subgraphs of one device that
    wait for the same others and that the same others wait for are one after all: they begin
    together, nobody can go on with one of them alone, and a device runs them one after another.
    """
    kept = [op for op, device in enumerate(affinity) if device is not None]
    imports = [False] * len(preds)
    exports = [False] * len(preds)
    for op in kept:
        for pred in preds[op]:
            if affinity[pred] is not None and affinity[pred] != affinity[op]:
                imports[op] = exports[pred] = True
    level = [0] * len(preds)
    parent = list(range(len(preds)))

    def root(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    for op in kept:
        sources = [pred for pred in preds[op] if affinity[pred] is not None]
        level[op] = max(
            (level[pred] + (imports[op] or exports[pred]) for pred in sources), default=0
        )
        for pred in sources:
            if level[pred] == level[op]:
                first, second = sorted((root(op), root(pred)))
                parent[second] = first
    connected: dict[int, list[int]] = {}
    for op in kept:
        connected.setdefault(root(op), []).append(op)
    subgraphs = []
    for op in sorted(connected, key=lambda op: (level[op], op)):
        device = affinity[op]
        if device is not None:
            subgraphs.append(Subgraph(device, tuple(connected[op])))
    return _join_equal_subgraphs(subgraphs, preds)


def _join_equal_subgraphs(
    subgraphs: Sequence[Subgraph[Device]], preds: Sequence[Sequence[int]]
) -> list[Subgraph[Device]]:
    """Joins subgraphs of one device with the same neighbours before and after, if they have any."""
    home = {op: index for index, subgraph in enumerate(subgraphs) for op in subgraph.ops}
    before: list[set[int]] = [set() for _ in subgraphs]
    after: list[set[int]] = [set() for _ in subgraphs]
    for op, index in home.items():
        for pred in preds[op]:
            source = home.get(pred, index)
            if source != index:
                before[index].add(source)
                after[source].add(index)
    joined: dict[Hashable, list[int]] = {}
    for index, subgraph in enumerate(subgraphs):
        alone = not before[index] and not after[index]
        equal = (
            index if alone else (subgraph.device, frozenset(before[index]), frozenset(after[index]))
        )
        joined.setdefault(equal, []).append(index)
    return [
        Subgraph(
            subgraphs[equal[0]].device, tuple(sorted(op for i in equal for op in subgraphs[i].ops))
        )
        for equal in joined.values()
    ]


def _delay_and_merge(
    subgraphs: list[Subgraph[Device]], succs: Sequence[Sequence[int]]
) -> list[Subgraph[Device]]:
    """Moves a subgraph down into the next one of its device if nothing in between needs it."""
    position = {op: index for index, subgraph in enumerate(subgraphs) for op in subgraph.ops}
    merged: dict[int, list[int]] = {}
    next_of_device: dict[Device, int] = {}
    for index in range(len(subgraphs) - 1, -1, -1):
        subgraph = subgraphs[index]
        target = next_of_device.get(subgraph.device)
        readers = {position[s] for op in subgraph.ops for s in succs[op] if s in position} - {index}
        if target is not None and all(reader >= target for reader in readers):
            merged[target] += subgraph.ops
            for op in subgraph.ops:
                position[op] = target
            continue
        merged[index] = list(subgraph.ops)
        next_of_device[subgraph.device] = index
    return [
        Subgraph(subgraphs[index].device, tuple(sorted(merged[index]))) for index in sorted(merged)
    ]

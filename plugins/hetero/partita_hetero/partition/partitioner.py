"""Where to cut: groups operations into parts, valid for any graph and any affinity.

Parts are made in an order in which they can run, each by taking everything of one device that is
ready, transitively; so no part ever waits for a later one and the quotient graph is acyclic by
construction. Among the devices with something ready, the one is taken whose operations have the
longest way to the end, counted in changes of device: with two devices that gives the fewest parts
that any order of alternation can give. With more devices parts may be left that can be joined;
:mod:`partita_hetero.partition.merge_parts` does that. Parts that are to run at the same time are
cut finer, see
``_handing_over_early``. Time is linear in operations and edges.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from partita_hetero.partition import merge_parts
from partita_hetero.partition.merge_parts import Device, Part

__all__ = ["Part", "changes_to_end", "partition"]


def partition(
    preds: Sequence[Sequence[int]],
    succs: Sequence[Sequence[int]],
    affinity: Sequence[Device | None],
    merge_islands: bool = True,
) -> list[Part[Device]]:
    """Cuts a graph by affinity.

    Args:
        preds: For each operation those it reads from; indices are in topological order.
        succs: For each operation those that read from it.
        affinity: For each operation its device; operations with ``None`` are left out, and nothing
            that is kept may depend on them at run time.
        merge_islands: Make few parts: let operations of one device share a part even if they pass
            each other no value, or if one of them is all that another device waits for. Without
            it parts hand over early, so that more can run at the same time.

    Returns:
        The parts in an order in which they can run. Each kept operation is in exactly one.
    """
    if not merge_islands:
        return _handing_over_early(preds, affinity)
    parts = _take_by_device(preds, succs, affinity)
    return merge_parts.join_parts(_delay_and_merge(parts, succs), succs)


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
) -> list[Part[Device]]:
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
    parts = []
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
        parts.append(Part(device, tuple(sorted(taken))))
    return parts


def _handing_over_early(
    preds: Sequence[Sequence[int]], affinity: Sequence[Device | None]
) -> list[Part[Device]]:
    """Parts that begin where a value comes in from another device and end where one goes out.

    An operation's level is the most such places on a path to it. A part is connected and of one
    level, so that in the order of levels no part waits for a later one. Parts of one device that
    wait for the same parts and that the same parts wait for are one part after all: they begin
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
    pieces: dict[int, list[int]] = {}
    for op in kept:
        pieces.setdefault(root(op), []).append(op)
    parts = []
    for op in sorted(pieces, key=lambda op: (level[op], op)):
        device = affinity[op]
        if device is not None:
            parts.append(Part(device, tuple(pieces[op])))
    return _join_equal_parts(parts, preds)


def _join_equal_parts(
    parts: Sequence[Part[Device]], preds: Sequence[Sequence[int]]
) -> list[Part[Device]]:
    """Joins parts of one device with the same neighbours before and after, if they have any."""
    home = {op: index for index, part in enumerate(parts) for op in part.ops}
    before: list[set[int]] = [set() for _ in parts]
    after: list[set[int]] = [set() for _ in parts]
    for op, index in home.items():
        for pred in preds[op]:
            source = home.get(pred, index)
            if source != index:
                before[index].add(source)
                after[source].add(index)
    joined: dict[Hashable, list[int]] = {}
    for index, part in enumerate(parts):
        alone = not before[index] and not after[index]
        equal = index if alone else (part.device, frozenset(before[index]), frozenset(after[index]))
        joined.setdefault(equal, []).append(index)
    return [
        Part(parts[equal[0]].device, tuple(sorted(op for i in equal for op in parts[i].ops)))
        for equal in joined.values()
    ]


def _delay_and_merge(
    parts: list[Part[Device]], succs: Sequence[Sequence[int]]
) -> list[Part[Device]]:
    """Moves a part down into the next one of its device if nothing in between needs it."""
    position = {op: index for index, part in enumerate(parts) for op in part.ops}
    merged: dict[int, list[int]] = {}
    next_of_device: dict[Device, int] = {}
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        target = next_of_device.get(part.device)
        readers = {position[s] for op in part.ops for s in succs[op] if s in position} - {index}
        if target is not None and all(reader >= target for reader in readers):
            merged[target] += part.ops
            for op in part.ops:
                position[op] = target
            continue
        merged[index] = list(part.ops)
        next_of_device[part.device] = index
    return [Part(parts[index].device, tuple(sorted(merged[index]))) for index in sorted(merged)]

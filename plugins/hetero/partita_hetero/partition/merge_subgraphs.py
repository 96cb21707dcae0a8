"""Joins subgraphs of one device where no other device has to run between them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Device = TypeVar("Device", bound=Hashable)

_LEAST_WINDOW = 16
_EFFORT = 40_000
"""Pairs of subgraphs that are looked at where there are few: up to 200 of them, all pairs."""


@dataclass(frozen=True, slots=True)
class Subgraph(Generic[Device]):
    """Operations that become one submodel.

    Attributes:
        device: Where it runs.
        ops: Indices of its operations, ascending.
    """

    device: Device
    ops: tuple[int, ...]


def join_subgraphs(
    subgraphs: Sequence[Subgraph[Device]], succs: Sequence[Sequence[int]]
) -> list[Subgraph[Device]]:
    """Joins subgraphs as long as two can be joined without a cycle.

    Args:
        subgraphs: In an order in which they can run.
        succs: For each operation those that read from it.

    Returns:
        The subgraphs in an order in which they can run. Among up to 200 there is no pair left that
        could be joined; among more, none that are near each other in that order.
    """
    quotient = _Quotient(subgraphs, succs)
    while quotient.join_once():
        pass
    return [
        Subgraph(subgraphs[index].device, tuple(sorted(quotient.ops[index])))
        for index in quotient.order
        if index is not None
    ]


class _Quotient(Generic[Device]):
    """The graph of subgraphs, and an order in which they can run; joined ones leave a gap."""

    def __init__(
        self, subgraphs: Sequence[Subgraph[Device]], succs: Sequence[Sequence[int]]
    ) -> None:
        home = {op: index for index, subgraph in enumerate(subgraphs) for op in subgraph.ops}
        self.device = [subgraph.device for subgraph in subgraphs]
        self.ops = [list(subgraph.ops) for subgraph in subgraphs]
        self.readers = [
            {home[succ] for op in subgraph.ops for succ in succs[op] if succ in home} - {index}
            for index, subgraph in enumerate(subgraphs)
        ]
        self.sources: list[set[int]] = [set() for _ in subgraphs]
        for index, readers in enumerate(self.readers):
            for reader in readers:
                self.sources[reader].add(index)
        self.order: list[int | None] = list(range(len(subgraphs)))
        self.position = list(range(len(subgraphs)))
        self.window = max(_LEAST_WINDOW, _EFFORT // max(1, len(subgraphs)))

    def join_once(self) -> bool:
        """Goes through the order once, joining what it can; whether it joined anything."""
        joined = False
        place = 1
        while place < len(self.order):
            late = self.order[place]
            early = None if late is None else self._partner(late, place)
            if late is None or early is None:
                place += 1
                continue
            self._join(early, late)
            place = max(1, self.position[early])  # the joined subgraph may join others before it
            joined = True
        return joined

    def _partner(self, late: int, place: int) -> int | None:
        """The nearest earlier one of the device from which no way leads here through others."""
        start = max(0, place - self.window)
        candidates = [
            early
            for early in reversed(self.order[start:place])
            if early is not None and self.device[early] == self.device[late]
        ]
        if not candidates:
            return None
        above = self._reached(late, self.sources, start, place)
        for early in candidates:
            if above.isdisjoint(self.readers[early]):
                return early
        return None

    def _reached(self, subgraph: int, step: Sequence[set[int]], start: int, end: int) -> set[int]:
        """The subgraphs at positions from start to end that one leads to, itself left out."""
        found: set[int] = set()
        stack = [subgraph]
        while stack:
            for other in step[stack.pop()]:
                if other not in found and start <= self.position[other] < end:
                    found.add(other)
                    stack.append(other)
        return found

    def _join(self, early: int, late: int) -> None:
        """Makes one of two; between them, what waits for it comes after, all else before."""
        start, end = self.position[early], self.position[late]
        below = self._reached(early, self.readers, start, end)
        between = self.order[start + 1 : end]
        before = [subgraph for subgraph in between if subgraph not in below]
        after = [subgraph for subgraph in between if subgraph in below]
        self.order[start : end + 1] = [*before, early, *after, None]
        for place in range(start, end):
            subgraph = self.order[place]
            if subgraph is not None:
                self.position[subgraph] = place
        self.ops[early] += self.ops[late]
        for edges, backward in ((self.readers, self.sources), (self.sources, self.readers)):
            for other in edges[late]:
                backward[other].discard(late)
                if other != early:
                    backward[other].add(early)
            edges[early] |= edges[late]
            edges[early] -= {early, late}

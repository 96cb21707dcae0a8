"""Parts, and the joining of two of one device wherever no other part has to run between them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Device = TypeVar("Device", bound=Hashable)

_LEAST_WINDOW = 16
_EFFORT = 40_000
"""Pairs of parts that are looked at in models of few parts: up to 200 of them, all pairs."""


@dataclass(frozen=True, slots=True)
class Part(Generic[Device]):
    """Operations that become one submodel.

    Attributes:
        device: Where it runs.
        ops: Indices of its operations, ascending.
    """

    device: Device
    ops: tuple[int, ...]


def join_parts(parts: Sequence[Part[Device]], succs: Sequence[Sequence[int]]) -> list[Part[Device]]:
    """Joins parts as long as two can be joined without a cycle.

    Args:
        parts: In an order in which they can run.
        succs: For each operation those that read from it.

    Returns:
        The parts in an order in which they can run. Among up to 200 parts there is no pair left
        that could be joined; among more, none that are near each other in that order.
    """
    quotient = _Quotient(parts, succs)
    while quotient.join_once():
        pass
    return [
        Part(parts[index].device, tuple(sorted(quotient.ops[index])))
        for index in quotient.order
        if index is not None
    ]


class _Quotient(Generic[Device]):
    """The graph of parts, with an order in which they can run; joined ones leave a gap in it."""

    def __init__(self, parts: Sequence[Part[Device]], succs: Sequence[Sequence[int]]) -> None:
        home = {op: index for index, part in enumerate(parts) for op in part.ops}
        self.device = [part.device for part in parts]
        self.ops = [list(part.ops) for part in parts]
        self.readers = [
            {home[succ] for op in part.ops for succ in succs[op] if succ in home} - {index}
            for index, part in enumerate(parts)
        ]
        self.sources: list[set[int]] = [set() for _ in parts]
        for index, readers in enumerate(self.readers):
            for reader in readers:
                self.sources[reader].add(index)
        self.order: list[int | None] = list(range(len(parts)))
        self.position = list(range(len(parts)))
        self.window = max(_LEAST_WINDOW, _EFFORT // max(1, len(parts)))

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
            place = max(1, self.position[early])  # the joined part may join others before it
            joined = True
        return joined

    def _partner(self, late: int, place: int) -> int | None:
        """The nearest earlier part of the device from which no way leads here through others."""
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

    def _reached(self, part: int, step: Sequence[set[int]], start: int, end: int) -> set[int]:
        """The parts at positions from start to end that one leads to, itself left out."""
        found: set[int] = set()
        stack = [part]
        while stack:
            for other in step[stack.pop()]:
                if other not in found and start <= self.position[other] < end:
                    found.add(other)
                    stack.append(other)
        return found

    def _join(self, early: int, late: int) -> None:
        """Makes one part of two; between them, what waits for it comes after, all else before."""
        start, end = self.position[early], self.position[late]
        below = self._reached(early, self.readers, start, end)
        between = self.order[start + 1 : end]
        before = [part for part in between if part not in below]
        after = [part for part in between if part in below]
        self.order[start : end + 1] = [*before, early, *after, None]
        for place in range(start, end):
            part = self.order[place]
            if part is not None:
                self.position[part] = place
        self.ops[early] += self.ops[late]
        for edges, backward in ((self.readers, self.sources), (self.sources, self.readers)):
            for other in edges[late]:
                backward[other].discard(late)
                if other != early:
                    backward[other].add(early)
            edges[early] |= edges[late]
            edges[early] -= {early, late}

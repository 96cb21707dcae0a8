"""Fusion groups: operations that devices compute by one kernel, as one task, which no plan cuts.

A group is a cone: only its last operation is read from outside. So groups in the order of their
last operations can run in that order, and merging them never closes a cycle. Each holds at most one
heavy operation and the light ones behind it (bias, normalization, activation), or light ones alone
(a normalization or activation that is spelled in several operations).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from partita.model.op_traits import Trait, having
from partita_hetero.partition.op_graph import OpGraph

_LIGHT = having(Trait.LIGHT)


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that have one device.

    Attributes:
        ops: Their indices, ascending; the last one's results are all that others read.
    """

    ops: tuple[int, ...]


def group(op_graph: OpGraph, kind: Callable[[int], Hashable]) -> list[Group]:
    """Groups the live operations that are computed in every run.

    Args:
        op_graph: The model.
        kind: Operations of different kinds are never put together (other devices, other pins).

    Returns:
        In an order in which they can run; each such operation is in exactly one.
    """
    kept = [
        live and not const for live, const in zip(op_graph.live, op_graph.constant, strict=True)
    ]
    outputs = {op_graph.producer[name] for name in op_graph.outputs if name in op_graph.producer}
    for op in outputs:
        kept[op] = True  # a constant output has a place of its own
    home: dict[int, int] = {}
    heavy: dict[int, bool] = {}
    for op in range(len(op_graph.nodes) - 1, -1, -1):
        if not kept[op]:
            continue
        weighs = op_graph.nodes[op].op_type not in _LIGHT
        readers = [succ for succ in op_graph.succs[op] if kept[succ]]
        root = _common_root(readers, home)
        if (
            root is not None
            and op not in outputs
            and kind(op) == kind(root)
            and not (weighs and heavy[root])
            and all(op_graph.nodes[reader].op_type in _LIGHT for reader in readers)
        ):
            home[op] = root
            heavy[root] |= weighs
        else:
            home[op] = op
            heavy[op] = weighs
    members: dict[int, list[int]] = {}
    for op in sorted(home):
        members.setdefault(home[op], []).append(op)
    return [Group(tuple(members[root])) for root in sorted(members)]


def _common_root(readers: Sequence[int], home: dict[int, int]) -> int | None:
    roots = {home[reader] for reader in readers}
    return roots.pop() if len(roots) == 1 else None

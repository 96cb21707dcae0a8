"""Operations that compute nothing are placed with their neighbours, if these share another device.

A device that takes little of a model still takes its Reshape and Identity. Alone between operations
of another device, each of these costs two transfers and a launch, and saves nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from partita.model.model import is_static, value_shape
from partita.model.op_traits import Trait, having
from partita.model.value_uses import bodies

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita_hetero.partition.op_graph import OpGraph

HANDFUL = 64
"""Most integers or truth values of an operation on sizes, indices and flags."""

_MOVERS = having(Trait.MOVES)


def computes_nothing(node: ir.Node) -> bool:
    """Whether an operation only moves numbers, or works on a handful of integers or one number."""
    if node.domain not in ("", "ai.onnx") or any(bodies(node)):
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return node.op_type in _MOVERS or all(_is_handful(value) for value in values)


def _is_handful(value: ir.Value) -> bool:
    shape, dtype = value_shape(value), value.dtype
    if dtype is None or not is_static(shape):
        return False
    count = math.prod(shape)
    return count == 1 or (count <= HANDFUL and (dtype.is_integer() or dtype.name == "BOOL"))


def follow(
    graph: OpGraph,
    homes: Sequence[str | None],
    free: Sequence[bool],
    takes: Callable[[int, str], bool],
    devices: Sequence[str],
) -> dict[int, str]:
    """Who leaves its device, in linear time.

    Neighbouring operations that compute nothing and have one device are a region. It leaves if none
    of its neighbours is on that device, for the first device that has one and takes all of it.

    Args:
        graph: The model.
        homes: Device of each operation, or ``None``.
        free: Whether an operation may leave; those that may not are neighbours whatever they do.
        takes: Whether a device takes an operation; asked of devices that have one already.
        devices: Those that they may follow to, in order of priority.

    Returns:
        Operation to its new device.
    """
    homes = list(homes)
    present = [
        home is not None and live and not constant
        for home, live, constant in zip(homes, graph.live, graph.constant, strict=True)
    ]
    idle = [
        here and may and computes_nothing(node)
        for here, may, node in zip(present, free, graph.nodes, strict=True)
    ]

    def neighbours(op: int) -> list[int]:
        return [other for other in (*graph.preds[op], *graph.succs[op]) if present[other]]

    region_of, regions = _regions(homes, idle, neighbours)
    settled = [not waits for waits in idle]
    moved: dict[int, str] = {}
    queue = deque(regions)
    while queue:
        region = queue.popleft()
        if settled[region[0]]:
            continue
        around = {other for op in region for other in neighbours(op)}.difference(region)
        near = {homes[other] for other in around if settled[other]}
        if not near:
            continue  # it comes again when a neighbour is settled
        if homes[region[0]] not in near:
            ranked = [device for device in devices if device in near]
            target = next((d for d in ranked if all(takes(op, d) for op in region)), None)
            if target is not None:
                for op in region:
                    homes[op] = moved[op] = target
        for op in region:
            settled[op] = True
        queue.extend(regions[region_of[other]] for other in sorted(around) if not settled[other])
    return moved


def _regions(
    homes: Sequence[str | None], idle: Sequence[bool], neighbours: Callable[[int], list[int]]
) -> tuple[dict[int, int], list[list[int]]]:
    """Idle operations of one device that hang together, and the region of each."""
    region_of: dict[int, int] = {}
    regions: list[list[int]] = []
    for first, waits in enumerate(idle):
        if not waits or first in region_of:
            continue
        region_of[first] = len(regions)
        region = [first]
        for op in region:
            for other in neighbours(op):
                if idle[other] and other not in region_of and homes[other] == homes[first]:
                    region_of[other] = len(regions)
                    region.append(other)
        regions.append(region)
    return region_of, regions

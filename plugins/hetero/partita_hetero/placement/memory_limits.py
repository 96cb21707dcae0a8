"""Memory limits: what a placement keeps on each device, and which operations must go elsewhere.

Counted are the weights that a device's operations read, each once, and the values that it holds at
the same time: between its operations, and those that come from and go to others. What operations on
constants make counts as weights of those that read it, since it is computed once and kept. Of a
shape that is not fixed only the known dimensions count; `uncounted` names such values. What a
device needs on top (scratch memory, other layouts) is not known here, and fused operations need
less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from partita.contract.query import Reason, ReasonCode
from partita.errors import InfeasiblePlanError
from partita.model.model import numpy_dtype, value_shape
from partita.model.value_uses import values_read
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.by_priority import Placement
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Cost, Device, Link, Task, Value
from partita_hetero.planner.simulation.plan import Objective
from partita_hetero.planner.simulation.simulate import simulate

_ELSEWHERE = "elsewhere"
"""Stands for the device that takes what has no room; no device has such a name."""

Exclusions = dict[tuple[int, str], Reason]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a device holds.

    Attributes:
        weights: Bytes of weights.
        values: Most bytes of values at one time.
    """

    weights: int
    values: int

    @property
    def total(self) -> int:
        """Both."""
        return self.weights + self.values

    def __str__(self) -> str:
        return f"{format_bytes(self.weights)} of weights and {format_bytes(self.values)} of values"


class MemoryModel:
    """Counts what placements of one model need.

    Args:
        op_graph: The model's operations.
        sizes: Bytes of values; of others their known dimensions count.
        on_host: Whether a device works in host memory.
        objective: How it will run; ``PARALLEL`` holds more values at a time.

    Attributes:
        weights: By operation, the weights that it reads: name to bytes.
    """

    def __init__(
        self,
        op_graph: OpGraph,
        sizes: Mapping[str, int | None],
        on_host: Callable[[str], bool],
        objective: Objective,
    ) -> None:
        self._op_graph = op_graph
        self._sizes = {**_least_sizes(op_graph), **sizes}
        self._ask_host = on_host
        self._objective = objective
        self.weights = [op_graph.weights_of(op, self._sizes) for op in range(len(op_graph.nodes))]

    def everything(self) -> int:
        """All weights and values at once: more than any device holds under any placement."""
        every = {name: nbytes or 0 for name, nbytes in self._sizes.items()}
        for weights in self.weights:
            every |= weights
        return sum(every.values())

    def use(self, device: str, homes: Sequence[str | None]) -> MemoryUse:
        """What a device holds under a placement: device of each operation, or ``None``."""
        placed = [op for op, home in enumerate(homes) if home is not None]
        names = self._op_graph.names()
        devices = list(dict.fromkeys([device, *(home for home in homes if home is not None)]))
        number = {name: index for index, name in enumerate(devices)}
        free = (Cost(0.0),) * len(devices)
        place_of = {op: index for index, op in enumerate(placed)}
        away = [number[name] for name in devices if not self._on_host(name)]
        problem = Problem(
            tuple(Device(name, host_memory=self._on_host(name)) for name in devices),
            tuple(Task(names[op], free) for op in placed),
            tuple(self._values(place_of)),
            tuple(link for index in away for link in (Link(HOST, index), Link(index, HOST))),
        )
        assignment = [number[homes[op] or device] for op in placed]
        timeline = simulate(problem, assignment, self._objective)
        weights: dict[str, int] = {}
        for op in placed:
            if homes[op] == device:
                weights |= self._own_weights(op, lambda source: homes[source] is not None)
        return MemoryUse(sum(weights.values()), timeline.peak_bytes[device])

    def _on_host(self, device: str) -> bool:
        return device != _ELSEWHERE and self._ask_host(device)

    def alone(self, op: int) -> int:
        """What one operation needs: weights, and all that it reads and writes."""
        names = {*self._op_graph.reads[op], *self._op_graph.writes[op]}
        values = {name: self._sizes.get(name) or 0 for name in names}
        return sum({**values, **self.weights[op]}.values())

    def _own_weights(self, op: int, placed: Callable[[int], bool]) -> dict[str, int]:
        """Its weights; a constant that is computed in a place of its own is a value there."""
        producer = self._op_graph.producer
        return {
            name: nbytes
            for name, nbytes in self.weights[op].items()
            if name not in producer or not placed(producer[name])
        }

    def _values(self, place_of: Mapping[int, int]) -> list[Value]:
        readers: dict[str, list[int]] = {}
        for op, index in place_of.items():
            for name in self._op_graph.reads[op]:
                readers.setdefault(name, []).append(index)
        outputs = set(self._op_graph.outputs)
        values = []
        for name in dict.fromkeys(
            [*readers, *(n for op in place_of for n in self._op_graph.writes[op])]
        ):
            source = self._op_graph.producer.get(name)
            if source is not None and source not in place_of:
                continue  # computed along wherever it is read
            values.append(
                Value(
                    name,
                    None if source is None else place_of[source],
                    tuple(readers.get(name, ())),
                    self._sizes.get(name) or 0,
                    name in outputs,
                )
            )
        return values


def uncounted(op_graph: OpGraph, sizes: Mapping[str, int | None]) -> list[str]:
    """Values that operations compute for outputs, of which limits count the known dimensions."""
    writes = zip(op_graph.live, op_graph.writes, strict=True)
    return [name for live, names in writes if live for name in names if name not in sizes]


def _least_sizes(op_graph: OpGraph) -> dict[str, int]:
    """Bytes of each tensor if every dimension that is not known were 1."""
    found = {}
    for value in (
        value for node in op_graph.nodes for value in (*values_read(node), *node.outputs)
    ):
        dtype, shape = numpy_dtype(value.dtype), value_shape(value)
        if value.name and dtype is not None:
            dims = [dim for dim in shape or () if isinstance(dim, int)]
            found[value.name] = dtype.itemsize * math.prod(dims)
    return found


def enforce(
    model: MemoryModel,
    limits: Mapping[str, int],
    pinned: Callable[[int, str], bool],
    names: Sequence[str],
    place: Callable[[Exclusions], Placement],
) -> Placement:
    """Places so that every limit is kept: what a device has no room for goes to the next one.

    A device keeps the operations that are pinned to it and the first others that fit.

    Args:
        model: Counts.
        limits: Device to bytes.
        pinned: Whether an operation must stay on a device.
        names: Names of the operations.
        place: Places under exclusions.

    Raises:
        InfeasiblePlanError: What is pinned to a device does not fit.
        UnsupportedOpError: No device has room; each one's reason is in the message.
    """
    excluded: Exclusions = {}
    while True:
        placement = place(excluded)
        homes = placement.device
        for device, limit in limits.items():
            mine = [op for op, home in enumerate(homes) if home == device]
            if not mine or model.use(device, homes).total <= limit:
                continue
            keep = [op for op in mine if pinned(op, device)]
            _require(model, device, limit, keep, homes, names)
            rest = [op for op in mine if not pinned(op, device)]
            excluded |= _overflow(model, device, limit, rest, homes)
            break  # whoever gets it must be looked at anew
        else:
            return placement


def _without(homes: Sequence[str | None], ops: Sequence[int]) -> list[str | None]:
    """The placement with some operations on another device."""
    gone = set(ops)
    return [_ELSEWHERE if op in gone else home for op, home in enumerate(homes)]


def _require(
    model: MemoryModel,
    device: str,
    limit: int,
    keep: Sequence[int],
    homes: Sequence[str | None],
    names: Sequence[str],
) -> None:
    """Raises unless what is pinned to a device fits.

    Args:
        model: What operations take.
        device: The device.
        limit: Bytes that it may hold.
        keep: Operations that are pinned to it.
        homes: The device of each operation; ``None`` for one that needs none.
        names: The name of each operation.

    Raises:
        InfeasiblePlanError: It does not.
    """
    if not keep:
        return
    others = [op for op, home in enumerate(homes) if home == device and op not in set(keep)]
    use = model.use(device, _without(homes, others))
    if use.total > limit:
        largest = max(keep, key=model.alone)
        raise InfeasiblePlanError(
            f"What is pinned to '{device}' needs {use}, more than its limit of "
            f"{format_bytes(limit)}; most of all '{names[largest]}', which takes "
            f"{format_bytes(model.alone(largest))}. Raise the limit or drop the pin."
        )


def _overflow(
    model: MemoryModel,
    device: str,
    limit: int,
    rest: Sequence[int],
    homes: Sequence[str | None],
) -> Exclusions:
    """What must leave: operations that never fit, and those behind the first that fit together."""
    excluded: Exclusions = {}
    fitting = []
    for op in rest:
        need = model.alone(op)
        if need > limit:
            detail = f"takes {format_bytes(need)} alone; the limit is {format_bytes(limit)}"
            excluded[op, device] = Reason(ReasonCode.MEMORY_LIMIT, detail)
        else:
            fitting.append(op)
    gone = [op for op, _ in excluded]
    low, high = 0, len(fitting) + (1 if gone else 0)  # the first `low` fit; not so the first `high`
    used = model.use(device, _without(homes, [*gone, *fitting]))
    while high - low > 1:
        middle = (low + high) // 2
        use = model.use(device, _without(homes, [*gone, *fitting[middle:]]))
        if use.total <= limit:
            low, used = middle, use
        else:
            high = middle
    detail = f"those before it take {used}; the limit is {format_bytes(limit)}"
    for op in fitting[low:]:
        excluded[op, device] = Reason(ReasonCode.MEMORY_LIMIT, detail)
    return excluded

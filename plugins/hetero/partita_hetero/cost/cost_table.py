"""Costs of one model on one device list, and the placement problem that is made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from partita.contract.query import Reason, ReasonCode
from partita_hetero.cost.database import LinkCost
from partita_hetero.cost.estimate import Work, rates, work_of
from partita_hetero.cost.fusion_groups import Group
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.planner.problem.constraints import SOFT_PENALTY_US
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import (
    HOST,
    Cost,
    Device,
    Link,
    Pin,
    Source,
    Task,
    Value,
)

LAST_RESORT = Reason(ReasonCode.PRIORITY, "a last resort: other devices take it")
"""Why an operation that others take is not planned for a device of kind ``reference``."""


@dataclass
class DeviceCosts:
    """What is known of one device.

    Attributes:
        name: As the user spelled it.
        key: In the database.
        kind: As the device tells it.
        memory_bytes: Size of its memory, or ``None``.
        launch: Seconds to start a submodel.
        links: From the host and to the host; ``None`` if it works in host memory.
        direct: To other devices that read its memory themselves, by name, where that takes time.
        slots: Submodels that it runs at the same time.
        alike: Equal for devices that compute alike; empty for one that is like no other.
        groups: Seconds by group.
    """

    name: str
    key: str
    kind: str
    memory_bytes: int | None = None
    launch: float = 0.0
    links: tuple[LinkCost, LinkCost] | None = None
    direct: dict[str, LinkCost] = field(default_factory=dict)
    slots: int = 1
    alike: str = ""
    groups: dict[int, float] = field(default_factory=dict)


class CostTable:
    """Costs of every group on every device that takes it.

    Args:
        op_graph: The model's operations.
        groups: The tasks.
        devices: In order of priority.
        refusals: For each group, device name to the reason why it is not taken.
        pins: Group to the name of its device.
        soft: Groups whose pins give way to memory limits.
        sizes: Bytes of values, where known.
        shared: Pairs of device names that have one memory.
        name: The model's.
    """

    def __init__(
        self,
        op_graph: OpGraph,
        groups: Sequence[Group],
        devices: Sequence[DeviceCosts],
        refusals: Sequence[dict[str, Reason]],
        pins: Mapping[int, str],
        sizes: Mapping[str, int | None],
        shared: Sequence[tuple[str, str]] = (),
        name: str = "",
        soft: Collection[int] = (),
    ) -> None:
        self.op_graph = op_graph
        self.groups = groups
        self.devices = devices
        self.refusals = refusals
        self.pins = pins
        self.sizes = sizes
        self.shared = shared
        self.name = name
        self.soft = soft
        self.works: list[Work] = [work_of(op_graph, group.ops) for group in groups]
        self.home = {op: index for index, group in enumerate(groups) for op in group.ops}

    def inside(self, ops: Iterable[int]) -> list[int]:
        """The groups of some operations, in order."""
        return sorted({self.home[op] for op in ops if op in self.home})

    def shares(self, device: DeviceCosts, ops: Iterable[int]) -> dict[int, float]:
        """How the time of operations that one kernel computes is shared among their groups.

        By the work of each group's operations, as a device of that kind would do it; the shares
        add up to 1.
        """
        members: dict[int, list[int]] = {}
        for op in ops:
            if op in self.home:
                members.setdefault(self.home[op], []).append(op)
        if len(members) < 2:
            return dict.fromkeys(members, 1.0)
        speed = rates(device.kind, ())
        seconds = {i: speed.seconds(work_of(self.op_graph, own)) for i, own in members.items()}
        total = sum(seconds.values())
        if total <= 0:
            return dict.fromkeys(members, 1 / len(members))
        return {index: own / total for index, own in seconds.items()}

    def refuse(self, excluded: Mapping[tuple[int, str], Reason]) -> None:
        """Takes from devices what they failed to compile."""
        for (op, device), reason in excluded.items():
            if op in self.home:
                self.refusals[self.home[op]].setdefault(device, reason)

    def estimated(self, device: DeviceCosts) -> dict[int, float]:
        """Seconds of groups that the device takes and that were not measured there."""
        known = [(self.works[index], seconds) for index, seconds in device.groups.items()]
        speed = rates(device.kind, known)
        return {
            index: speed.seconds(self.works[index])
            for index, refusals in enumerate(self.refusals)
            if device.name not in refusals and index not in device.groups
        }

    def problem(self, scales: Mapping[tuple[int, str], float], overhead: float) -> Problem:
        """The placement problem.

        Args:
            scales: Group and device to a factor for its time, learned from whole submodels.
            overhead: Seconds of every submodel beyond its device's launch.
        """
        guesses = [self.estimated(device) for device in self.devices]

        def cost(index: int, number: int) -> Cost:
            device = self.devices[number]
            refusal = self.refusals[index].get(device.name)
            if refusal is not None:
                return Cost(None, reason=str(refusal))
            source: Source = "measured" if index in device.groups else "estimated"
            seconds = device.groups.get(index, guesses[number].get(index, 0.0))
            return Cost(seconds * 1e6 * scales.get((index, device.name), 1.0), source)

        names = self.op_graph.names()
        tasks = [
            Task(
                names[group.ops[-1]],
                tuple(cost(index, number) for number in range(len(self.devices))),
                tuple(names[op] for op in group.ops),
                tuple(self.op_graph.nodes[op].op_type for op in group.ops),
                self._weight_bytes(group),
            )
            for index, group in enumerate(self.groups)
        ]
        number_of = {device.name: number for number, device in enumerate(self.devices)}
        return Problem(
            tuple(
                Device(
                    device.name,
                    device.memory_bytes,
                    (device.launch + overhead) * 1e6,
                    device.slots,
                    device.links is None,
                    alike=device.alike,
                )
                for device in self.devices
            ),
            tuple(tasks),
            tuple(self._values()),
            tuple(self._links(number_of)),
            tuple(
                Pin(index, number_of[device], False, SOFT_PENALTY_US)
                if index in self.soft
                else Pin(index, number_of[device])
                for index, device in self.pins.items()
            ),
            self.name,
        )

    def _weight_bytes(self, group: Group) -> int:
        """What a device keeps for a group, each thing once."""
        kept: dict[str, int] = {}
        for op in group.ops:
            kept |= self.op_graph.weights_of(op, self.sizes)
        return sum(kept.values())

    def _values(self) -> list[Value]:
        """What passes between groups, comes in, or goes out."""
        readers: dict[str, dict[int, None]] = {}
        for index, group in enumerate(self.groups):
            for op in group.ops:
                for name in self.op_graph.reads[op]:
                    readers.setdefault(name, {})[index] = None
        outputs = set(self.op_graph.outputs)
        values = []
        for name in dict.fromkeys([*readers, *self.op_graph.outputs]):
            source = self.op_graph.producer.get(name)
            producer = None if source is None else self.home.get(source)
            if source is not None and producer is None:
                continue  # a constant, which is computed wherever it is read
            consumers = tuple(index for index in readers.get(name, ()) if index != producer)
            if not consumers and name not in outputs:
                continue
            nbytes = self.sizes.get(name) or 0
            values.append(Value(name, producer, consumers, nbytes, name in outputs))
        return values

    def _links(self, number_of: Mapping[str, int]) -> list[Link]:
        links = []
        for number, device in enumerate(self.devices):
            if device.links is None:
                continue
            there, back = device.links
            links.append(_link(HOST, number, there))
            links.append(_link(number, HOST, back))
            links += [_link(number, number_of[name], cost) for name, cost in device.direct.items()]
        for source, target in self.shared:
            links.append(Link(number_of[source], number_of[target], shared=True))
        return links


def _link(source: int, target: int, cost: LinkCost) -> Link:
    per_us = 1e-6 / cost.per_byte if cost.per_byte > 0 else float("inf")
    return Link(source, target, cost.latency * 1e6, per_us)

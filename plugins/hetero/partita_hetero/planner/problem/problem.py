"""A placement problem: tasks, the values between them, and what devices and links cost.

This is the cost table that ``partita plan --costs table.json`` reads. Times are microseconds and
sizes bytes. The cost model, which :mod:`partita_hetero.planner.simulation.simulate` carries out:

- Neighbouring tasks of one device form a submodel. A submodel starts once all that it reads is
  there, moves in what its device does not hold yet, pays the launch, runs its tasks one after
  another, and moves out what others need through the host.
- A value is moved once to each device that reads it: over the direct link if there is one,
  otherwise out to the host (once) and in from there. A device that works in host memory moves
  nothing.
- Model inputs arrive in host memory, and model outputs are wanted there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from partita.errors import PlanError

HOST = -1
"""The host's memory as an end of a link; in a cost table its name is ``host``."""

HOST_NAME = "host"

Source = Literal["measured", "estimated"]
SOURCES: tuple[Source, ...] = ("measured", "estimated")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a task costs on one device.

    Attributes:
        us: Microseconds, or None if the device refuses the task.
        source: Whether the time was measured or estimated.
        reason: Why the device refuses it, if known.
    """

    us: float | None
    source: Source = "measured"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Something that has one device: an operation, or operations that are always fused.

    Attributes:
        name: Unique.
        costs: One for each device.
        ops: Names of the model's operations in it; empty means one that has the task's name.
        op_types: Their types, for reports.
        weight_bytes: What it keeps in its device's memory all the time.
        group: Tasks of one group share a device; None for a task on its own.
    """

    name: str
    costs: tuple[Cost, ...]
    ops: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    weight_bytes: int = 0
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor between tasks, into the model or out of it.

    Attributes:
        name: Unique.
        producer: Index of the task that writes it; None for an input of the model.
        consumers: Indices of the tasks that read it.
        nbytes: Its size.
        is_output: Whether the model returns it.
        transfer_us: Time of one move, instead of what the link says; a shared link stays free.
    """

    name: str
    producer: int | None
    consumers: tuple[int, ...]
    nbytes: int = 0
    is_output: bool = False
    transfer_us: float | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """Something that runs tasks.

    Attributes:
        name: Unique, for example ``CPU`` or ``GPU.0``.
        memory_bytes: Room for weights and live values, or None for no limit.
        launch_us: Cost of starting a submodel.
        slots: How many submodels it runs at the same time without slowing down; None for any
            number.
        host_memory: Whether it works in host memory, so that the host's values are its own.
        per_task: Whether it runs each task by itself as soon as that is ready, instead of whole
            submodels.
    """

    name: str
    memory_bytes: int | None = None
    launch_us: float = 0.0
    slots: int | None = 1
    host_memory: bool = False
    per_task: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """How values pass from one device to another, or from or to the host.

    Attributes:
        source: Device index or ``HOST``.
        target: Device index or ``HOST``.
        latency_us: Cost of a move of no bytes.
        bytes_per_us: Bandwidth.
        shared: Both ends use the same memory: nothing is moved.
    """

    source: int
    target: int
    latency_us: float = 0.0
    bytes_per_us: float = math.inf
    shared: bool = False

    def time_us(self, value: Value) -> float:
        """Time that one move of a value takes."""
        if self.shared:
            return 0.0
        if value.transfer_us is not None:
            return value.transfer_us
        return self.latency_us + value.nbytes / self.bytes_per_us


@dataclass(frozen=True, slots=True)
class Pin:
    """A wish for a task's device.

    Attributes:
        task: Task index.
        device: Device index.
        hard: Whether it must be kept.
        penalty_us: What ignoring a soft pin costs.
    """

    task: int
    device: int
    hard: bool = True
    penalty_us: float = 0.0


@dataclass(frozen=True)
class Problem:
    """All that a placement depends on; checked when it is made.

    Attributes:
        devices: In order of the user's preference.
        tasks: In an order in which they can run.
        values: What passes between tasks.
        links: Device to host and host to device for each device that does not work in host memory;
            device to device where there is a direct way.
        pins: Wishes for tasks.
        name: Of the model, for reports.
        early_handover: Whether submodels that run at the same time are cut where values cross, as
            HETERO does; otherwise a device's tasks form one submodel wherever that can run.

    Raises:
        PlanError: Something does not fit; the message says where.
    """

    devices: tuple[Device, ...]
    tasks: tuple[Task, ...]
    values: tuple[Value, ...] = ()
    links: tuple[Link, ...] = ()
    pins: tuple[Pin, ...] = ()
    name: str = ""
    early_handover: bool = True
    _link: dict[tuple[int, int], Link] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        from partita_hetero.planner.problem.checks import check

        check(self)
        self._link.update({(link.source, link.target): link for link in self.links})
        for index, device in enumerate(self.devices):
            if device.host_memory:
                for ends in ((HOST, index), (index, HOST)):
                    self._link[ends] = Link(*ends, shared=True)

    def link(self, source: int, target: int) -> Link | None:
        """The direct way between two ends; None if values pass through the host."""
        if source >= 0 and self.devices[source].host_memory:
            source = HOST
        if target >= 0 and self.devices[target].host_memory:
            target = HOST
        if source == target:
            return Link(source, target, shared=True)
        return self._link.get((source, target))

    def need_link(self, source: int, target: int) -> Link:
        """The direct way between two ends of which one is the host."""
        link = self.link(source, target)
        if link is None:
            raise PlanError(f"There is no link from {self.end(source)} to {self.end(target)}.")
        return link

    def end(self, index: int) -> str:
        """Name of a device index or of the host, quoted."""
        return f"'{HOST_NAME if index == HOST else self.devices[index].name}'"

    def device_index(self, name: str) -> int:
        """Index of a device.

        Raises:
            PlanError: There is none of that name.
        """
        for index, device in enumerate(self.devices):
            if device.name == name:
                return index
        known = ", ".join(f"'{device.name}'" for device in self.devices)
        raise PlanError(f"There is no device '{name}'; there are {known}.")

    @cached_property
    def task_index(self) -> dict[str, int]:
        """Task name to index."""
        return {task.name: index for index, task in enumerate(self.tasks)}

    @cached_property
    def preds(self) -> list[list[int]]:
        """For each task those it reads from, without doubles."""
        preds: list[dict[int, None]] = [{} for _ in self.tasks]
        for value in self.values:
            if value.producer is not None:
                for consumer in value.consumers:
                    preds[consumer][value.producer] = None
        return [list(sources) for sources in preds]

    @cached_property
    def succs(self) -> list[list[int]]:
        """For each task those that read from it, without doubles."""
        succs: list[list[int]] = [[] for _ in self.tasks]
        for task, sources in enumerate(self.preds):
            for source in sources:
                succs[source].append(task)
        return succs

    @cached_property
    def groups(self) -> list[list[int]]:
        """Tasks that share a device, each task in exactly one list; in order of the first task."""
        members: dict[object, list[int]] = {}
        for index, task in enumerate(self.tasks):
            members.setdefault(index if task.group is None else task.group, []).append(index)
        return list(members.values())

    def with_pins(self, pins: Sequence[Pin]) -> Problem:
        """The same problem with other pins."""
        return replace(self, pins=tuple(pins))

"""Validation of placement problems, with messages that say where the mistake is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from partita.errors import PlanError
from partita_hetero.planner.problem.records import (
    HOST,
    HOST_NAME,
    Device,
    Link,
    Pin,
    Task,
    Value,
    end_name,
)


def check(
    devices: Sequence[Device],
    tasks: Sequence[Task],
    values: Sequence[Value],
    links: Sequence[Link],
    pins: Sequence[Pin],
) -> None:
    """Checks that everything in a placement problem fits together.

    Args:
        devices: Their names must differ, as must those of tasks and of values.
        tasks: In an order in which they can run.
        values: Which tasks make and read them.
        links: Between devices, or a device and the host.
        pins: Which tasks shall be where.

    Raises:
        PlanError: Something does not; the message names the entry.
    """
    if not devices:
        raise PlanError("A placement problem needs at least one device.")
    _unique("devices", (device.name for device in devices))
    _unique("tasks", (task.name for task in tasks))
    _unique("values", (value.name for value in values))
    for index, device in enumerate(devices):
        where = f"devices[{index}] '{device.name}'"
        if device.name == HOST_NAME:
            raise PlanError(f"{where}: the name '{HOST_NAME}' stands for the host's memory.")
        _number(where, "launch_us", device.launch_us)
        if device.memory_bytes is not None:
            _number(where, "memory_bytes", device.memory_bytes)
        if device.slots is not None and device.slots < 1:
            raise PlanError(f"{where}: 'slots' is {device.slots}; it must be 1 or more, or null.")
    _check_tasks(devices, tasks)
    _check_values(tasks, values)
    _check_links(devices, links)
    for index, pin in enumerate(pins):
        where = f"pins[{index}]"
        _index(where, "task", pin.task, len(tasks))
        _index(where, "device", pin.device, len(devices))
        _number(where, "penalty_us", pin.penalty_us)


def _check_tasks(devices: Sequence[Device], tasks: Sequence[Task]) -> None:
    for index, task in enumerate(tasks):
        where = f"tasks[{index}] '{task.name}'"
        if len(task.costs) != len(devices):
            raise PlanError(
                f"{where}: {len(task.costs)} costs for {len(devices)} devices; "
                "give one for each, with a null time where the device refuses the task."
            )
        for device, cost in zip(devices, task.costs, strict=True):
            if cost.us is not None:
                _number(where, f"cost on '{device.name}'", cost.us)
        _number(where, "weight_bytes", task.weight_bytes)


def _check_values(tasks: Sequence[Task], values: Sequence[Value]) -> None:
    count = len(tasks)
    for index, value in enumerate(values):
        where = f"values[{index}] '{value.name}'"
        _number(where, "nbytes", value.nbytes)
        if value.transfer_us is not None:
            _number(where, "transfer_us", value.transfer_us)
        if value.producer is not None:
            _index(where, "producer", value.producer, count)
        if len(set(value.consumers)) != len(value.consumers):
            raise PlanError(f"{where}: a consumer is named twice.")
        for consumer in value.consumers:
            _index(where, "consumer", consumer, count)
            if value.producer is not None and consumer <= value.producer:
                raise PlanError(
                    f"{where}: task '{tasks[consumer].name}' reads it but does not come "
                    f"after '{tasks[value.producer].name}', which writes it; put tasks in "
                    "an order in which they can run."
                )


def _check_links(devices: Sequence[Device], links: Sequence[Link]) -> None:
    seen: dict[tuple[int, int], Link] = {}
    for index, link in enumerate(links):
        where = f"links[{index}]"
        for what, end in (("source", link.source), ("target", link.target)):
            if end != HOST:
                _index(where, what, end, len(devices))
                if devices[end].host_memory:
                    raise PlanError(
                        f"{where}: {end_name(devices, end)} works in host memory; "
                        f"make 'host' the {what}."
                    )
        ends = f"from {end_name(devices, link.source)} to {end_name(devices, link.target)}"
        if link.source == link.target:
            raise PlanError(f"{where}: it leads {ends}.")
        if (link.source, link.target) in seen:
            raise PlanError(f"{where}: there is another link {ends}.")
        seen[link.source, link.target] = link
        _number(where, "latency_us", link.latency_us)
        if not link.bytes_per_us > 0:
            raise PlanError(f"{where}: 'bytes_per_us' is {link.bytes_per_us}; it must be above 0.")
    for index, device in enumerate(devices):
        if device.host_memory:
            continue
        for source, target in ((HOST, index), (index, HOST)):
            if (source, target) not in seen:
                ends = f"from {end_name(devices, source)} to {end_name(devices, target)}"
                raise PlanError(
                    f"links: there is none {ends}; "
                    "give one, or set 'host_memory' if the device works there."
                )


def _unique(what: str, names: Iterable[str]) -> None:
    seen = set()
    for index, name in enumerate(names):
        if not name:
            raise PlanError(f"{what}[{index}]: the name is empty.")
        if name in seen:
            raise PlanError(f"{what}[{index}]: the name '{name}' is used twice.")
        seen.add(name)


def _number(where: str, what: str, number: float) -> None:
    if not (math.isfinite(number) and number >= 0):
        raise PlanError(f"{where}: {what} is {number}; it must be a finite number, 0 or more.")


def _index(where: str, what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise PlanError(f"{where}: {what} {index} does not exist; there are {count}.")

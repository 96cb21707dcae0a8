"""Cost tables: placement problems as JSON, by name, strictly checked when they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import PlanError
from partita_hetero.planner.problem.json_entry import Entry
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import (
    HOST,
    HOST_NAME,
    SOURCES,
    Cost,
    Device,
    Link,
    Pin,
    Task,
    Value,
)

SCHEMA = "partita-costs"
VERSION = 1


def to_json(problem: Problem) -> dict[str, Any]:
    """The problem as plain data, which :func:`from_json` takes back."""
    tasks = [task.name for task in problem.tasks]
    devices = [device.name for device in problem.devices]

    def end(index: int) -> str:
        return HOST_NAME if index == HOST else devices[index]

    return {
        "schema": SCHEMA,
        "version": VERSION,
        "name": problem.name,
        "early_handover": problem.early_handover,
        "devices": [
            {
                "name": device.name,
                "memory_bytes": device.memory_bytes,
                "launch_us": device.launch_us,
                "slots": device.slots,
                "host_memory": device.host_memory,
                "per_task": device.per_task,
            }
            for device in problem.devices
        ],
        "links": [
            {
                "source": end(link.source),
                "target": end(link.target),
                "latency_us": link.latency_us,
                "bytes_per_us": None if math.isinf(link.bytes_per_us) else link.bytes_per_us,
                "shared": link.shared,
            }
            for link in problem.links
        ],
        "tasks": [
            {
                "name": task.name,
                "ops": list(task.ops),
                "op_types": list(task.op_types),
                "weight_bytes": task.weight_bytes,
                "group": task.group,
                "costs": {
                    device: {"refused": cost.reason}
                    if cost.us is None
                    else {"us": cost.us, "source": cost.source}
                    for device, cost in zip(devices, task.costs, strict=True)
                },
            }
            for task in problem.tasks
        ],
        "values": [
            {
                "name": value.name,
                "producer": None if value.producer is None else tasks[value.producer],
                "consumers": [tasks[consumer] for consumer in value.consumers],
                "nbytes": value.nbytes,
                "is_output": value.is_output,
                "transfer_us": value.transfer_us,
            }
            for value in problem.values
        ],
        "pins": [
            {
                "task": tasks[pin.task],
                "device": devices[pin.device],
                "hard": pin.hard,
                "penalty_us": pin.penalty_us,
            }
            for pin in problem.pins
        ],
    }


def save(problem: Problem, path: Path) -> None:
    """Writes a cost table."""
    path.write_text(json.dumps(to_json(problem), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Problem:
    """Reads a cost table.

    Raises:
        PlanError: The file cannot be read or is not a cost table; says what is wrong and where.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"The cost table '{path}' cannot be read: {error}") from error
    try:
        return from_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise PlanError(f"The cost table '{path}' is not JSON: {error}") from error
    except PlanError as error:
        raise PlanError(f"The cost table '{path}': {error}") from error


def from_json(data: object) -> Problem:
    """Reads a problem from plain data.

    Raises:
        PlanError: Something is missing, unknown, of a wrong type, or does not fit together.
    """
    table = Entry(data, "the table")
    schema, version = table.text("schema"), table.whole("version")
    if (schema, version) != (SCHEMA, VERSION):
        raise PlanError(
            f"It is '{schema}' version {version}; this version of Partita reads '{SCHEMA}' "
            f"version {VERSION}."
        )
    devices = tuple(_device(entry) for entry in table.entries("devices"))
    at_device = {device.name: index for index, device in enumerate(devices)}
    at_end = {**at_device, HOST_NAME: HOST}
    tasks = tuple(_task(entry, devices) for entry in table.entries("tasks"))
    at_task = {task.name: index for index, task in enumerate(tasks)}
    problem = Problem(
        devices,
        tasks,
        tuple(_value(entry, at_task) for entry in table.entries("values")),
        tuple(_link(entry, at_end) for entry in table.entries("links")),
        tuple(_pin(entry, at_task, at_device) for entry in table.entries("pins")),
        table.text("name", ""),
        table.flag("early_handover", True),
    )
    table.end()
    return problem


def _device(entry: Entry) -> Device:
    return Device(
        entry.text("name"),
        entry.optional_whole("memory_bytes"),
        entry.number("launch_us", 0.0),
        entry.optional_whole("slots", 1),
        entry.flag("host_memory", False),
        entry.flag("per_task", False),
    )


def _task(entry: Entry, devices: tuple[Device, ...]) -> Task:
    return Task(
        entry.text("name"),
        _costs(entry.entry("costs"), devices),
        entry.texts("ops"),
        entry.texts("op_types"),
        entry.whole("weight_bytes", 0),
        entry.optional_text("group"),
    )


def _costs(table: Entry, devices: tuple[Device, ...]) -> tuple[Cost, ...]:
    costs = []
    for device in devices:
        entry = table.entry(device.name)
        if "refused" in entry:
            costs.append(Cost(None, reason=entry.text("refused")))
        else:
            costs.append(Cost(entry.number("us"), entry.choice("source", SOURCES, "measured")))
        entry.end()
    table.end()
    return tuple(costs)


def _value(entry: Entry, at_task: Mapping[str, int]) -> Value:
    return Value(
        entry.text("name"),
        entry.optional_index("producer", at_task),
        entry.indices("consumers", at_task),
        entry.whole("nbytes", 0),
        entry.flag("is_output", False),
        entry.optional_number("transfer_us", None),
    )


def _link(entry: Entry, at_end: Mapping[str, int]) -> Link:
    return Link(
        entry.index("source", at_end),
        entry.index("target", at_end),
        entry.number("latency_us", 0.0),
        entry.optional_number("bytes_per_us", math.inf),
        entry.flag("shared", False),
    )


def _pin(entry: Entry, at_task: Mapping[str, int], at_device: Mapping[str, int]) -> Pin:
    return Pin(
        entry.index("task", at_task),
        entry.index("device", at_device),
        entry.flag("hard", True),
        entry.number("penalty_us", 0.0),
    )

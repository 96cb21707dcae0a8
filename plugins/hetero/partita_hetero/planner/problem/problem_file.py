"""Reading and writing placement problems as JSON files (cost tables), strictly checked."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import ValidationError

from partita.errors import PlanError
from partita.system.written_file import writing
from partita_hetero.planner.problem.cost_table import (
    CostRow,
    LinkRow,
    PinRow,
    Table,
    TableHead,
    TaskRow,
    ValueRow,
)
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import (
    HOST,
    HOST_NAME,
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
        "devices": [asdict(device) for device in problem.devices],
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
                **asdict(value),
                "producer": None if value.producer is None else tasks[value.producer],
                "consumers": [tasks[consumer] for consumer in value.consumers],
            }
            for value in problem.values
        ],
        "pins": [
            {**asdict(pin), "task": tasks[pin.task], "device": devices[pin.device]}
            for pin in problem.pins
        ],
    }


def save(problem: Problem, path: Path) -> None:
    """Writes a cost table."""
    with writing(path):
        path.write_text(json.dumps(to_json(problem), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Problem:
    """Reads a cost table.

    Args:
        path: A file as ``partita plan --save-costs`` writes it.

    Raises:
        PlanError: The file cannot be read or is not a cost table; says what is wrong and where.
    """
    try:
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise PlanError(f"The cost table '{path}' cannot be read: {error}") from error
    try:
        return from_json(pydantic_core.from_json(text))
    except ValueError as error:
        what = f": {error}" if isinstance(error, PlanError) else f" is not JSON: {error}"
        raise PlanError(f"The cost table '{path}'{what}") from error


def from_json(data: object) -> Problem:
    """Reads a problem from plain data.

    Raises:
        PlanError: Something is missing, unknown, of a wrong type, or does not fit together.
    """
    try:
        head = TableHead.model_validate(data)
        if (head.schema_, head.version) != (SCHEMA, VERSION):
            raise PlanError(
                f"It is '{head.schema_}' version {head.version}; this version of Partita reads "
                f"'{SCHEMA}' version {VERSION}."
            )
        table = Table.model_validate(data)
    except ValidationError as error:
        raise PlanError(_first_fault(error)) from error
    devices = tuple(Device(**row.model_dump()) for row in table.devices)
    at_device = {device.name: index for index, device in enumerate(devices)}
    at_end = {**at_device, HOST_NAME: HOST}
    at_task = {row.name: index for index, row in enumerate(table.tasks)}
    return Problem(
        devices,
        tuple(_task(row, f"tasks[{i}]", at_device) for i, row in enumerate(table.tasks)),
        tuple(_value(row, f"values[{i}]", at_task) for i, row in enumerate(table.values_)),
        tuple(_link(row, f"links[{i}]", at_end) for i, row in enumerate(table.links)),
        tuple(_pin(row, f"pins[{i}]", at_task, at_device) for i, row in enumerate(table.pins)),
        table.name,
        table.early_handover,
    )


def _first_fault(error: ValidationError) -> str:
    """What is wrong first, and where, e.g. ``tasks[1].costs.GPU.us``."""
    fault = error.errors(include_url=False)[0]
    place = "the table"
    for step in fault["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    place = place.removeprefix("the table.")
    match fault["type"]:
        case "missing":
            return f"{place} is missing."
        case "extra_forbidden":
            return f"{place} is unknown."
    found = json.dumps(fault["input"], default=str)
    shown = found if len(found) <= 40 else f"{found[:40]}..."
    if fault["type"] == "model_type":
        return f"{place} is {shown}; it must be an object."
    return f"{place} is {shown}: {fault['msg']}."


def _task(row: TaskRow, where: str, at_device: Mapping[str, int]) -> Task:
    for name in row.costs:
        _index(name, f"{where}.costs", at_device)
    missing = [name for name in at_device if name not in row.costs]
    if missing:
        raise PlanError(f"{where}.costs.{missing[0]} is missing.")
    costs = tuple(_cost(row.costs[name], f"{where}.costs.{name}") for name in at_device)
    return Task(row.name, costs, tuple(row.ops), tuple(row.op_types), row.weight_bytes, row.group)


def _cost(row: CostRow, where: str) -> Cost:
    if (row.us is None) == (row.refused is None):
        raise PlanError(f"{where} must have either 'us' or 'refused'.")
    return Cost(row.us, row.source, row.refused or "")


def _value(row: ValueRow, where: str, at_task: Mapping[str, int]) -> Value:
    return Value(
        row.name,
        None if row.producer is None else _index(row.producer, f"{where}.producer", at_task),
        _indices(row.consumers, f"{where}.consumers", at_task),
        row.nbytes,
        row.is_output,
        row.transfer_us,
    )


def _link(row: LinkRow, where: str, at_end: Mapping[str, int]) -> Link:
    return Link(
        _index(row.source, f"{where}.source", at_end),
        _index(row.target, f"{where}.target", at_end),
        row.latency_us,
        math.inf if row.bytes_per_us is None else row.bytes_per_us,
        row.shared,
    )


def _pin(row: PinRow, where: str, at_task: Mapping[str, int], at_device: Mapping[str, int]) -> Pin:
    return Pin(
        _index(row.task, f"{where}.task", at_task),
        _index(row.device, f"{where}.device", at_device),
        row.hard,
        row.penalty_us,
    )


def _indices(names: Sequence[str], where: str, known: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(_index(name, where, known) for name in names)


def _index(name: str, where: str, known: Mapping[str, int]) -> int:
    if name not in known:
        raise PlanError(f"{where} names '{name}', which does not exist.")
    return known[name]

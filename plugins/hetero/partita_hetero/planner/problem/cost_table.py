"""The schema of cost tables in JSON, with names in place of indices."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from partita_hetero.planner.problem.records import Source


class TableHead(BaseModel):
    """What says how to read the rest."""

    model_config = ConfigDict(strict=True)

    schema_: str = Field(alias="schema")
    version: int


class Row(BaseModel):
    """An object of a cost table: each key is known, each value of its type, nothing converted."""

    model_config = ConfigDict(strict=True, extra="forbid")


class DeviceRow(Row):
    """A :class:`~partita_hetero.planner.problem.records.Device`."""

    name: str
    memory_bytes: int | None = None
    launch_us: float = 0.0
    slots: int | None = 1
    host_memory: bool = False
    per_task: bool = False
    alike: str = ""


class LinkRow(Row):
    """A :class:`~partita_hetero.planner.problem.records.Link`; no bandwidth stands for no limit."""

    source: str
    target: str
    latency_us: float = 0.0
    bytes_per_us: float | None = None
    shared: bool = False


class CostRow(Row):
    """A time with its source, or why the device refuses the task."""

    us: float | None = None
    source: Source = "measured"
    refused: str | None = None


class TaskRow(Row):
    """A :class:`~partita_hetero.planner.problem.records.Task`; its costs by device."""

    name: str
    costs: dict[str, CostRow]
    ops: list[str] = []
    op_types: list[str] = []
    weight_bytes: int = 0
    group: str | None = None


class ValueRow(Row):
    """A :class:`~partita_hetero.planner.problem.records.Value`; its tasks by name."""

    name: str
    producer: str | None = None
    consumers: list[str] = []
    nbytes: int = 0
    is_output: bool = False
    transfer_us: float | None = None


class PinRow(Row):
    """A :class:`~partita_hetero.planner.problem.records.Pin`."""

    task: str
    device: str
    hard: bool = True
    penalty_us: float = 0.0


class Table(Row):
    """A :class:`~partita_hetero.planner.problem.problem.Problem`."""

    schema_: str = Field(alias="schema")
    version: int
    name: str = ""
    early_handover: bool = True
    devices: list[DeviceRow] = []
    links: list[LinkRow] = []
    tasks: list[TaskRow] = []
    values_: list[ValueRow] = Field([], alias="values")
    pins: list[PinRow] = []

"""The records of a placement problem: devices, tasks, values between them, links and pins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

HOST = -1
"""The host's memory as an end of a link; in a cost table its name is ``host``."""

HOST_NAME = "host"

Source = Literal["measured", "estimated"]


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
        alike: Those that have the same text here compute alike: what comes out does not depend on
            which of them runs a task, so that each may have a replica. Empty: like no other.
    """

    name: str
    memory_bytes: int | None = None
    launch_us: float = 0.0
    slots: int | None = 1
    host_memory: bool = False
    per_task: bool = False
    alike: str = ""


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


def end_name(devices: Sequence[Device], index: int) -> str:
    """Name of a device index or of the host, quoted."""
    return f"'{HOST_NAME if index == HOST else devices[index].name}'"

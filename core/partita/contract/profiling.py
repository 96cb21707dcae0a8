"""Performance counters: of operations and parts, and the lines that OpenVINO's samples print."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from partita.printable import printable


class Status(enum.StrEnum):
    """Whether an operation was executed in the last run."""

    EXECUTED = "EXECUTED"
    OPTIMIZED_OUT = "OPTIMIZED_OUT"
    NOT_RUN = "NOT_RUN"


_Status = Status


@dataclass(frozen=True, slots=True)
class ProfilingInfo:
    """One operation of the last run.

    Attributes:
        node_name: The operation's name; HETERO puts ``subgraph0: 1. `` before it.
        node_type: The operator, e.g. ``"Conv"``.
        exec_type: The kernel that ran, e.g. ``"openblas"``; empty if none did.
        status: Whether it was executed.
        real_time_us: Time from start to end in microseconds.
        cpu_time_us: The part of it spent on the host's processor, in microseconds.
        covers: Names of other operations that the same kernels computed; their time is in this
            record and not in their own.
    """

    Status: ClassVar[type[_Status]] = _Status
    EXECUTED: ClassVar[_Status] = _Status.EXECUTED
    OPTIMIZED_OUT: ClassVar[_Status] = _Status.OPTIMIZED_OUT
    NOT_RUN: ClassVar[_Status] = _Status.NOT_RUN

    node_name: str
    node_type: str
    exec_type: str = ""
    status: _Status = _Status.EXECUTED
    real_time_us: float = 0.0
    cpu_time_us: float = 0.0
    covers: tuple[str, ...] = ()

    @property
    def real_time(self) -> timedelta:
        """Time from start to end (OpenVINO's spelling)."""
        return timedelta(microseconds=self.real_time_us)

    @property
    def cpu_time(self) -> timedelta:
        """The part of it spent on the host's processor (OpenVINO's spelling)."""
        return timedelta(microseconds=self.cpu_time_us)


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """A part of the last run, and when a device was busy with it.

    Attributes:
        device: The device that was busy.
        name: Name of the submodel, or of the tensor that was moved.
        start_s: Start in seconds, by ``time.perf_counter()`` of this process.
        end_s: End in seconds, by the same clock.
        kind: ``"compute"`` or ``"transfer"``.
    """

    device: str
    name: str
    start_s: float
    end_s: float
    kind: str = "compute"


def format_counters(infos: Iterable[ProfilingInfo]) -> str:
    """The counters as text: one line per operation and one for the total, in microseconds.

    The form is that of the performance counters on OpenVINO's page on heterogeneous execution.
    """
    infos = list(infos)
    lines = [
        f"{printable(info.node_name)}:{info.status:<14} layerType: {info.node_type:<18} "
        f"realTime: {info.real_time_us:<9.0f} cpu: {info.cpu_time_us:<9.0f} "
        f"execType: {info.exec_type}".rstrip()
        for info in infos
    ]
    lines.append(f"Total time: {total_us(infos):.0f} microseconds")
    return "\n".join(lines)


def total_us(infos: Sequence[ProfilingInfo]) -> float:
    """Sum of the real times in microseconds."""
    return sum(info.real_time_us for info in infos)

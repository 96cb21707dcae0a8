"""Timelines of steps on devices, of a simulated run or a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from partita.trace import complete, document, label

Kind = Literal["compute", "transfer", "launch"]


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a device did.

    Attributes:
        device: Name of the device whose time it took.
        name: Of the task, submodel or value.
        start_us: Since the start of the run.
        end_us: Since the start of the run.
        kind: What it was.
        nbytes: How much was moved.
    """

    device: str
    name: str
    start_us: float
    end_us: float
    kind: Kind = "compute"
    nbytes: int = 0

    @property
    def duration_us(self) -> float:
        """How long it took."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Timeline:
    """One run of a model.

    Attributes:
        spans: In any order.
        name: What ran, for example "predicted" or "measured".
        devices: Rows of a chart, in order; those of the spans come after them.
        peak_bytes: Device to the most memory it held, as far as known.
    """

    spans: tuple[Span, ...]
    name: str = ""
    devices: tuple[str, ...] = ()
    peak_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def latency_us(self) -> float:
        """From the start of the run to the end of the last span."""
        return max((span.end_us for span in self.spans), default=0.0)

    @property
    def rows(self) -> tuple[str, ...]:
        """All devices, in order."""
        return tuple(dict.fromkeys((*self.devices, *(span.device for span in self.spans))))

    def load_us(self) -> dict[str, float]:
        """Time that each device was in use, overlapping spans counted each."""
        load = dict.fromkeys(self.rows, 0.0)
        for span in self.spans:
            load[span.device] += span.duration_us
        return load

    def time_us(self, kind: Kind) -> float:
        """Time of all spans of one kind."""
        return sum(span.duration_us for span in self.spans if span.kind == kind)

    def bytes_moved(self) -> int:
        """Bytes of all transfers."""
        return sum(span.nbytes for span in self.spans if span.kind == "transfer")

    def to_json(self) -> dict[str, Any]:
        """A summary and all spans, as plain data."""
        return {
            "name": self.name,
            "latency_us": self.latency_us,
            "load_us": self.load_us(),
            "bytes_moved": self.bytes_moved(),
            "peak_bytes": dict(self.peak_bytes),
            "devices": list(self.rows),
            "spans": [asdict(span) for span in self.spans],
        }

    def to_chrome_trace(self) -> dict[str, Any]:
        """This run alone in the form of :func:`chrome_trace`."""
        return chrome_trace([self])


def chrome_trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Runs side by side in the Trace Event Format, which chrome://tracing and Perfetto read.

    Each run is a process and each device a thread of it.
    """
    events: list[dict[str, Any]] = []
    for process, timeline in enumerate(timelines):
        events.append(label("process_name", process, 0, timeline.name or f"run {process}"))
        thread = {device: index for index, device in enumerate(timeline.rows)}
        for device, index in thread.items():
            events.append(label("thread_name", process, index, device))
        for span in timeline.spans:
            times = span.start_us, span.end_us
            event = complete(process, thread[span.device], span.name, span.kind, times)
            if span.nbytes:
                event["args"] = {"bytes": span.nbytes}
            events.append(event)
    return document(events)

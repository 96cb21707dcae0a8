"""Traces: what ran where and when, as files that chrome://tracing and Perfetto read.

The form is the Trace Event Format: a process of it is a run or a request here, and a thread a
device. The spans of devices on other machines are by this process's clock, so all lie on one axis::

    request.infer(inputs)  # compiled with PERF_COUNT
    text = json.dumps(chrome_trace({"my request": request.device_spans()}))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partita.contract.profiling import DeviceSpan

Event = dict[str, Any]


def chrome_trace(runs: Mapping[str, Sequence[DeviceSpan]]) -> dict[str, Any]:
    """What devices did in some runs or requests, on one axis that begins with the first span.

    Spans of one device that overlap, as those of several requests do, get rows of their own.

    Args:
        runs: By name, what ``InferRequest.device_spans`` returned.
    """
    start = min((span.start_s for spans in runs.values() for span in spans), default=0.0)
    events: list[Event] = []
    for process, (name, spans) in enumerate(runs.items()):
        events.append(label("process_name", process, 0, name))
        for thread, (device, row) in enumerate(_rows(spans)):
            events.append(label("thread_name", process, thread, device))
            for span in row:
                times = (span.start_s - start) * 1e6, (span.end_s - start) * 1e6
                events.append(complete(process, thread, span.name, span.kind, times))
    return document(events)


def document(events: Sequence[Event]) -> dict[str, Any]:
    """A whole file, of events."""
    return {"traceEvents": list(events), "displayTimeUnit": "ms"}


def label(what: str, process: int, thread: int, name: str) -> Event:
    """Names a process or a thread.

    Args:
        what: ``"process_name"`` or ``"thread_name"``.
        process: Number of the process.
        thread: Number of the thread; 0 where a process is named.
        name: What viewers show.
    """
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def complete(
    process: int, thread: int, name: str, category: str, times_us: tuple[float, float]
) -> Event:
    """Something that began and ended.

    Args:
        process: Number of the process that it belongs to.
        thread: Number of the thread, which becomes its row.
        name: What viewers show.
        category: By which viewers filter and colour.
        times_us: Beginning and end, in microseconds from one origin of all events.
    """
    start, end = times_us
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": end - start,
    }


def _rows(spans: Sequence[DeviceSpan]) -> list[tuple[str, list[DeviceSpan]]]:
    """Spans by device, in rows within which none begins before the one before it has ended."""
    rows: dict[str, list[list[DeviceSpan]]] = {}
    for span in sorted(spans, key=lambda one: (one.start_s, one.end_s)):
        lanes = rows.setdefault(span.device, [])
        free = next((lane for lane in lanes if lane[-1].end_s <= span.start_s), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return [(device, lane) for device, lanes in rows.items() for lane in lanes]

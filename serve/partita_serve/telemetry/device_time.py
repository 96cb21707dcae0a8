"""Busy times of devices, by run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from partita.plugin import DeviceSpan
from partita_serve.protocol.observer import BatchRun


def device_spans(run: BatchRun) -> Sequence[DeviceSpan]:
    """When devices were busy with a run.

    A run over several devices that was not measured, since ``PERF_COUNT`` is not set, is one span
    of all of them together: device ``"GPU,CPU"``.
    """
    return run.spans or (
        DeviceSpan(",".join(run.devices), "run", run.infer_ns * 1e-9, run.inferred_ns * 1e-9),
    )


def busy_seconds(run: BatchRun) -> dict[str, float]:
    """Device to the seconds that it was busy with a run."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in device_spans(run):
        seconds[span.device] += span.end_s - span.start_s
    return dict(seconds)

"""Counts and times of a model, in the form in which the protocol's clients ask for them."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from partita_serve.protocol.observer import BatchRun


class _Duration:
    """How often something was done, and for how long in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns * count

    def to_dict(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class ModelStatistics:
    """What one version of a model has done since it was loaded."""

    def __init__(self) -> None:
        self._last_ms = 0
        self._inferences = 0
        self._executions = 0
        self._times: dict[str, _Duration] = {
            name: _Duration()
            for name in (
                *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
                *("cache_hit", "cache_miss"),
            )
        }
        self._by_rows: defaultdict[int, list[_Duration]] = defaultdict(
            lambda: [_Duration() for _ in range(3)]
        )

    def add_run(self, run: BatchRun) -> None:
        """Counts one run on the device."""
        self._last_ms = time.time_ns() // 1_000_000
        self._executions += 1
        self._inferences += run.rows
        parts = (
            run.infer_ns - run.started_ns,
            run.inferred_ns - run.infer_ns,
            run.ended_ns - run.inferred_ns,
        )
        for waited in run.queued_ns:
            self._times["queue"].add(waited)
        for name, ns in zip(("input", "infer", "output"), parts, strict=True):
            self._times[f"compute_{name}"].add(ns, len(run.requests))
        for duration, ns in zip(self._by_rows[run.rows], parts, strict=True):
            duration.add(ns)

    def add_request(self, elapsed_ns: int, failed: bool) -> None:
        """Counts one request that was answered."""
        self._times["fail" if failed else "success"].add(elapsed_ns)

    def to_dict(self, name: str, version: str) -> dict[str, Any]:
        """The entry of the model among ``model_stats``."""
        names = ("compute_input", "compute_infer", "compute_output")
        return {
            "name": name,
            "version": version,
            "last_inference": self._last_ms,
            "inference_count": self._inferences,
            "execution_count": self._executions,
            "inference_stats": {key: one.to_dict() for key, one in self._times.items()},
            "batch_stats": [
                {
                    "batch_size": rows,
                    **{key: one.to_dict() for key, one in zip(names, times, strict=True)},
                }
                for rows, times in sorted(self._by_rows.items())
            ],
        }

"""Observers of a server's requests, for metrics and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from partita.contract.profiling import DeviceSpan
from partita_serve.protocol.errors import ServingError
from partita_serve.protocol.records import InferenceRequest


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run on a device, for one request or for several that were joined.

    Times are those of ``time.perf_counter_ns``.

    Attributes:
        model: The model's name.
        version: Its version.
        devices: The devices that took part.
        requests: The requests that it answered.
        rows: Rows along the batch axis; the number of requests where nothing is joined.
        queued_ns: How long each request had waited.
        started_ns: When a thread began to join the inputs.
        infer_ns: When inference began.
        inferred_ns: When inference had ended.
        ended_ns: When the outputs were parted.
        spans: When which device was busy, where the device reports it.
        failures: How many of the requests failed.
    """

    model: str
    version: str
    devices: Sequence[str]
    requests: Sequence[InferenceRequest]
    rows: int
    queued_ns: Sequence[int]
    started_ns: int
    infer_ns: int
    inferred_ns: int
    ended_ns: int
    spans: Sequence[DeviceSpan]
    failures: int


class Observer(Protocol):
    """Notified of requests on the thread of the event loop; must not block it."""

    def request_started(self, request: InferenceRequest) -> None:
        """A request came; called in the task that answers it."""

    def request_finished(
        self, request: InferenceRequest, elapsed_ns: int, error: ServingError | None
    ) -> None:
        """A request was answered, or failed; called once its answer is on its way."""

    def batch_run(self, run: BatchRun) -> None:
        """A device ran."""

    def refused(self, model: str, error: ServingError) -> None:
        """A request was turned away before a device saw it: queue full, or its time over.

        If it had been taken in, :meth:`request_finished` follows.
        """

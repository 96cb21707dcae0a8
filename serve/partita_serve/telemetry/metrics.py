"""Metrics for Prometheus: requests, queues, batches, devices, and why operations run elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from partita_serve.protocol.errors import NotFound, ServingError, Unavailable
from partita_serve.protocol.observer import BatchRun
from partita_serve.protocol.records import InferenceRequest
from partita_serve.server import ModelServer
from partita_serve.telemetry.device_time import busy_seconds

Model = tuple[str, str]
"""Name and version."""

_SECONDS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Metrics:
    """An observer that counts for Prometheus.

    Names of models that the server does not have come from strangers; they are counted under the
    empty name, so that nobody can make the server keep a series for each.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered.", "model", "outcome")
        self._refused = self._counter(
            "refused", "Requests turned away before a device saw them.", "model", "reason"
        )
        self._in_flight = Gauge(
            "partita_requests_in_flight", "Requests being answered.", registry=self._registry
        )
        self._request_seconds = self._histogram(
            "request_seconds", "From a request's arrival to its answer.", _SECONDS
        )
        self._queue_seconds = self._histogram(
            "queue_seconds", "How long requests waited for a device.", _SECONDS
        )
        self._infer_seconds = self._histogram(
            "infer_seconds", "How long runs on devices took.", _SECONDS
        )
        self._rows = self._histogram("batch_rows", "Rows that ran together.", _ROWS)
        self._busy = self._counter(
            "device_busy_seconds", "How long devices were busy.", "model", "device"
        )
        self._placements = _Placements()
        self._registry.register(self._placements)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"partita_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"partita_{name}", text, ("model",), buckets=buckets, registry=self._registry
        )

    async def exposition(self, server: ModelServer, accept: str) -> tuple[bytes, str]:
        """All metrics as text, and the type of the text.

        Args:
            server: Whose placements are reported.
            accept: Which types the client takes, as in HTTP's header.
        """
        encode, content_type = choose_encoder(accept)
        models = [(one["name"], one["version"]) for one in server.repository_index(ready=True)]

        def encoded() -> bytes:
            self._placements.ops = _operations(server, models)
            return encode(self._registry)

        # Explaining large models takes milliseconds, which requests should not wait for.
        return await asyncio.to_thread(encoded), content_type

    # ------------------------------------------------------------------ as an observer

    def request_started(self, request: InferenceRequest) -> None:
        """Counts a request that is being answered."""
        self._in_flight.inc()

    def request_finished(
        self, request: InferenceRequest, elapsed_ns: int, error: ServingError | None
    ) -> None:
        """Counts an answer."""
        model = "" if isinstance(error, NotFound) else request.model
        self._in_flight.dec()
        self._requests.labels(model, "ok" if error is None else type(error).__name__).inc()
        self._request_seconds.labels(model).observe(elapsed_ns * 1e-9)

    def batch_run(self, run: BatchRun) -> None:
        """Counts a run."""
        self._rows.labels(run.model).observe(run.rows)
        self._infer_seconds.labels(run.model).observe((run.inferred_ns - run.infer_ns) * 1e-9)
        queued = self._queue_seconds.labels(run.model)
        for waited_ns in run.queued_ns:
            queued.observe(waited_ns * 1e-9)
        for device, seconds in busy_seconds(run).items():
            self._busy.labels(run.model, device).inc(seconds)

    def refused(self, model: str, error: ServingError) -> None:
        """Counts a request that was turned away."""
        name = "" if isinstance(error, NotFound) else model
        self._refused.labels(name, type(error).__name__).inc()


class _Placements(Collector):
    """Where operations run, and which devices did not take them.

    Attributes:
        ops: The operations of each model, as its explanation has them.
    """

    def __init__(self) -> None:
        self.ops: Mapping[Model, Sequence[Mapping[str, Any]]] = {}

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus' client collects them."""
        operations = GaugeMetricFamily(
            "partita_operations",
            "Operations of a model that run on a device.",
            labels=("model", "version", "device"),
        )
        fallbacks = GaugeMetricFamily(
            "partita_fallback_operations",
            "Operations that a device did not take and another one runs, by the reason.",
            labels=("model", "version", "device", "reason"),
        )
        for of, ops in self.ops.items():
            places = Tally(op["device"] for op in ops if op["subgraph"] is not None)
            refusals = Tally(
                (device, str(reason["code"]))
                for op in ops
                for device, reason in op["refused"].items()
            )
            for device, count in places.items():
                operations.add_metric((*of, device), count)
            for refusal, count in refusals.items():
                fallbacks.add_metric((*of, *refusal), count)
        yield operations
        yield fallbacks


def _operations(
    server: ModelServer, models: Sequence[Model]
) -> dict[Model, Sequence[Mapping[str, Any]]]:
    """The operations of the models that are still there."""
    found = {}
    for model in models:
        with suppress(NotFound, Unavailable):
            found[model] = server.explanation(*model)["ops"]
    return found

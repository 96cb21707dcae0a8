"""Spans of OpenTelemetry: of each request, its queue, its run, and its submodels on their devices.

Only OpenTelemetry's API is used: without an SDK that an application or ``opentelemetry-instrument``
sets up, nothing is recorded and requests cost a few microseconds more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, propagate, trace

from partita_serve.protocol.errors import ServingError
from partita_serve.protocol.observer import BatchRun
from partita_serve.protocol.records import InferenceRequest


@contextmanager
def continuing(headers: Mapping[str, str]) -> Iterator[None]:
    """Lets spans be part of the trace that a request's headers name, e.g. in ``traceparent``."""
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


class Tracing:
    """An observer that makes spans."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("partita_serve")
        self._spans: dict[int, trace.Span] = {}  # by the identity of the request
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def request_started(self, request: InferenceRequest) -> None:
        """Begins the span of a request, below the one that its client began."""
        span = self._tracer.start_span(
            f"infer {request.model}",
            kind=trace.SpanKind.SERVER,
            attributes={"partita.model": request.model, "partita.request_id": request.id},
        )
        if span.is_recording():
            self._spans[id(request)] = span

    def request_finished(
        self, request: InferenceRequest, elapsed_ns: int, error: ServingError | None
    ) -> None:
        """Ends it."""
        span = self._spans.pop(id(request), None)
        if span is None:
            return
        if error is not None:
            span.set_status(trace.StatusCode.ERROR, str(error))
        span.end()

    def batch_run(self, run: BatchRun) -> None:
        """Adds what a request waited and where it ran."""
        for request, queued_ns in zip(run.requests, run.queued_ns, strict=True):
            span = self._spans.get(id(request))
            if span is None:
                continue
            span.set_attribute("partita.version", run.version)
            self._child(span, "queue", run.started_ns - queued_ns, run.started_ns)
            infer = self._child(span, "run", run.infer_ns, run.inferred_ns, rows=run.rows)
            for part in run.spans:
                begin, end = int(part.start_s * 1e9), int(part.end_s * 1e9)
                self._child(infer, part.name, begin, end, device=part.device, kind=part.kind)

    def refused(self, model: str, error: ServingError) -> None:
        """Leaves it to the end of the request, if it was taken in."""

    def _child(
        self, parent: trace.Span, name: str, begin_ns: int, end_ns: int, **facts: str | int
    ) -> trace.Span:
        """A span that has ended; its times are those of ``time.perf_counter_ns``."""
        span = self._tracer.start_span(
            name,
            trace.set_span_in_context(parent),
            start_time=self._epoch_ns + begin_ns,
            attributes={f"partita.{key}": value for key, value in facts.items()},
        )
        span.end(self._epoch_ns + end_ns)
        return span

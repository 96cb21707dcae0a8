"""What observers make of requests and runs: metrics, spans of traces, latencies."""

import asyncio
import itertools

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from partita.plugin import DeviceSpan
from partita_serve.protocol.errors import InternalError, NotFound, Overloaded
from partita_serve.protocol.observer import BatchRun
from partita_serve.protocol.records import InferenceRequest
from partita_serve.telemetry.activity import Activity
from partita_serve.telemetry.device_time import busy_seconds
from partita_serve.telemetry.metrics import Metrics
from partita_serve.telemetry.tracing import Tracing, continuing

OCR = InferenceRequest("ocr", "", "one", ())
OTHER = InferenceRequest("ocr", "", "two", ())
PARTS = [
    DeviceSpan("GPU", "subgraph1", 5e-3, 6e-3),
    DeviceSpan("GPU", "x", 6e-3, 6.5e-3, "transfer"),
    DeviceSpan("CPU", "subgraph2", 6.5e-3, 9e-3),
]


def run(*requests, spans=()):
    """A run of 4 milliseconds, 2 after the first request came."""
    return BatchRun(
        model="ocr",
        version="3",
        devices=["GPU", "CPU"],
        requests=requests,
        rows=len(requests),
        queued_ns=[2_000_000 - 500_000 * index for index in range(len(requests))],
        started_ns=4_900_000,
        infer_ns=5_000_000,
        inferred_ns=9_000_000,
        ended_ns=9_100_000,
        spans=spans,
        failures=0,
    )


class Server:
    """A server with one model that is there and one that has gone since it was listed."""

    def repository_index(self, ready):
        assert ready
        return [{"name": name, "version": "3", "state": "READY"} for name in ("gone", "ocr")]

    def explanation(self, name, version):
        if name == "gone":
            raise NotFound("gone")
        refused = {"GPU": {"code": "UNSUPPORTED_OP", "detail": ""}}
        ops = [
            {"device": "GPU", "subgraph": 1, "refused": {}},
            {"device": "CPU", "subgraph": 2, "refused": refused},
            {"device": "CPU", "subgraph": 2, "refused": refused},
            {"device": "-", "subgraph": None, "refused": {}},
        ]
        return {"ops": ops}


def samples(metrics, accept=""):
    """Names and labels to values."""
    text, _ = asyncio.run(metrics.exposition(Server(), accept))
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_requests_are_counted_by_outcome():
    metrics = Metrics()
    for _ in range(3):
        metrics.request_started(OCR)
    metrics.request_finished(OCR, 2_000_000, None)
    metrics.refused("ocr", Overloaded("full"))
    metrics.request_finished(OCR, 1_000, Overloaded("full"))
    found = samples(metrics)
    ocr = ("model", "ocr")
    assert found["partita_requests_total", ocr, ("outcome", "ok")] == 1
    assert found["partita_requests_total", ocr, ("outcome", "Overloaded")] == 1
    assert found["partita_refused_total", ocr, ("reason", "Overloaded")] == 1
    assert found["partita_requests_in_flight",] == 1
    assert found["partita_request_seconds_sum", ocr] == pytest.approx(2.001e-3)
    assert found["partita_request_seconds_bucket", ("le", "0.003"), ocr] == 2
    assert found["partita_request_seconds_bucket", ("le", "0.001"), ocr] == 1


def test_names_of_strangers_make_no_series():
    metrics = Metrics()
    before = None
    for number in range(50):
        request = InferenceRequest(f"guess{number}", "", "", ())
        metrics.request_started(request)
        metrics.request_finished(request, 1000, NotFound("no model"))
        metrics.refused(request.model, NotFound("no model"))
        found = samples(metrics)
        assert before is None or found.keys() == before
        before = found.keys()
    assert found["partita_requests_total", ("model", ""), ("outcome", "NotFound")] == 50


def test_runs_are_counted():
    metrics = Metrics()
    metrics.batch_run(run(OCR, OTHER, spans=PARTS))
    metrics.batch_run(run(OCR))
    found = samples(metrics)
    ocr = ("model", "ocr")
    assert found["partita_batch_rows_count", ocr] == 2
    assert found["partita_batch_rows_sum", ocr] == 3
    assert found["partita_infer_seconds_sum", ocr] == pytest.approx(8e-3)
    assert found["partita_queue_seconds_sum", ocr] == pytest.approx(5.5e-3)
    busy = {
        key[1][1]: value
        for key, value in found.items()
        if key[0] == "partita_device_busy_seconds_total"
    }
    assert busy == {
        "GPU": pytest.approx(1.5e-3),
        "CPU": pytest.approx(2.5e-3),
        "GPU,CPU": pytest.approx(4e-3),  # of the run that was not measured by device
    }


def test_operations_by_device_and_reasons_of_fallbacks():
    found = samples(Metrics())
    model = (("model", "ocr"), ("version", "3"))
    assert found["partita_operations", ("device", "CPU"), *model] == 2
    assert found["partita_operations", ("device", "GPU"), *model] == 1
    reason = ("reason", "UNSUPPORTED_OP")
    key = "partita_fallback_operations", ("device", "GPU"), model[0], reason, model[1]
    assert found[key] == 2
    assert not [key for key in found if ("model", "gone") in key]


def test_types_of_text():
    metrics = Metrics()

    def content_type(accept):
        return asyncio.run(metrics.exposition(Server(), accept))[1]

    assert content_type("").startswith("text/plain")
    assert content_type("application/openmetrics-text").startswith("application/openmetrics-text")


def test_busy_seconds_of_devices():
    assert busy_seconds(run(OCR, spans=PARTS)) == {
        "GPU": pytest.approx(1.5e-3),
        "CPU": pytest.approx(2.5e-3),
    }


def test_activity_remembers_answers_and_runs():
    activity = Activity()
    for ms in (1, 2, 3):
        activity.request_started(OCR)
        activity.request_finished(OCR, ms * 1_000_000, None)
    activity.request_finished(OCR, 9, InternalError("failed"))
    activity.request_finished(InferenceRequest("guess", "", "", ()), 9, NotFound("none"))
    activity.refused("ocr", Overloaded("full"))
    activity.batch_run(run(OCR))
    assert list(activity.models) == ["ocr"]
    ocr = activity.models["ocr"]
    assert (ocr.answered, ocr.failed) == (3, 1)
    assert ocr.percentiles(0, 50, 100) == [1000, 2000, 3000]
    assert len(activity.runs) == 1


# ------------------------------------------------------------------------------ traces


@pytest.fixture
def traced(monkeypatch):
    """Tracing, and the spans that it made."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return Tracing(), lambda: {span.name: span for span in exporter.get_finished_spans()}


def test_spans_of_a_request_its_queue_its_run_and_its_parts(traced):
    tracing, spans = traced
    tracing.request_started(OCR)
    tracing.batch_run(run(OCR, OTHER, spans=PARTS))
    tracing.request_finished(OCR, 1, None)
    found = spans()
    assert set(found) == {"infer ocr", "queue", "run", "subgraph1", "x", "subgraph2"}
    request = found["infer ocr"]
    assert request.attributes["partita.request_id"] == "one"
    assert request.attributes["partita.version"] == "3"
    for name, parent in (("queue", "infer ocr"), ("run", "infer ocr"), ("subgraph1", "run")):
        assert found[name].parent.span_id == found[parent].context.span_id
    assert found["run"].attributes["partita.rows"] == 2
    assert found["x"].attributes["partita.kind"] == "transfer"
    assert [found[name].attributes["partita.device"] for name in ("subgraph1", "subgraph2")] == [
        "GPU",
        "CPU",
    ]
    length = {name: span.end_time - span.start_time for name, span in found.items()}
    assert length["queue"] == 2_000_000
    assert length["run"] == 4_000_000
    assert length["subgraph1"] == pytest.approx(1_000_000, abs=2)
    starts = [found[name].start_time for name in ("queue", "run", "x", "subgraph2")]
    assert all(one < other for one, other in itertools.pairwise(starts))


def test_a_request_that_fails_says_why(traced):
    tracing, spans = traced
    tracing.request_started(OCR)
    tracing.refused("ocr", Overloaded("full"))
    tracing.request_finished(OCR, 1, Overloaded("full"))
    status = spans()["infer ocr"].status
    assert (status.status_code, status.description) == (trace.StatusCode.ERROR, "full")


def test_a_request_goes_on_with_the_trace_of_its_client(traced):
    tracing, spans = traced
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with continuing({"traceparent": f"00-{trace_id}-{parent}-01"}):
        tracing.request_started(OCR)
    tracing.request_finished(OCR, 1, None)
    span = spans()["infer ocr"]
    assert f"{span.context.trace_id:032x}" == trace_id
    assert f"{span.parent.span_id:016x}" == parent


def test_without_an_sdk_nothing_is_kept():
    tracing = Tracing()
    tracing.request_started(OCR)
    tracing.batch_run(run(OCR, spans=PARTS))
    tracing.request_finished(OCR, 1, None)
    assert not trace.get_current_span().is_recording()

"""The status page of a server in a real browser."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from partita.plugin import DeviceSpan
from partita_serve.protocol.errors import NotFound, Unavailable
from partita_serve.protocol.observer import BatchRun
from partita_serve.protocol.records import InferenceRequest
from partita_serve.rest.status_page import status_page
from partita_serve.telemetry.activity import Activity

NASTY = '<b>1</b> & "2" </script><script>document.title = "broken"</script>'


def op(name, device, part, **refused):
    reason = {"code": "PRIORITY", "detail": NASTY}
    why = {one: {"code": code, "detail": ""} for one, code in refused.items()}
    facts = {"op_type": "Conv", "device": device, "subgraph": part, "reason": reason}
    return {"name": name, **facts, "refused": why}


class Server:
    """Answers what the page asks of a server."""

    def server_metadata(self):
        return {"name": "partita", "version": "1.2"}

    def is_ready(self):
        return True

    def repository_index(self):
        return [
            {"name": "ocr", "version": "2", "state": "READY", "reason": ""},
            {"name": NASTY, "version": "1", "state": "UNAVAILABLE", "reason": "no such file"},
        ]

    def explanation(self, name, version):
        if name != "ocr":
            raise Unavailable("not ready")
        ops = [op("conv1", "GPU", 1), op("conv2", "CPU", 2, GPU="UNSUPPORTED_OP")]
        return {"ops": ops, "notes": ["GPU failed once"], "summary": "GPU 1 ops, CPU 1 ops"}


class Texts(dict):
    """One language model."""

    def __init__(self):
        explained = {"ops": [op("head", "CPU", 1)], "notes": [], "summary": "CPU 1 ops"}
        super().__init__(chat=SimpleNamespace(explanation=lambda: explained))


def busy():
    """What a server did: 100 answers, one of them wrong, and a run on two devices."""
    activity = Activity()
    for number in range(1, 101):
        request = InferenceRequest("ocr", "", "", ())
        error = Unavailable("x") if number == 100 else None
        activity.request_finished(request, number * 1_000_000, error)
    activity.request_finished(InferenceRequest("guess", "", "", ()), 5, NotFound("x"))
    spans = [DeviceSpan("GPU", "subgraph1", 1.0, 1.004), DeviceSpan("CPU", NASTY, 1.004, 1.01)]
    facts = {"rows": 1, "queued_ns": [0], "failures": 0, "requests": (), "spans": spans}
    times = {"started_ns": 0, "infer_ns": 0, "inferred_ns": 0, "ended_ns": 0}
    activity.batch_run(BatchRun("ocr", "2", ["GPU", "CPU"], **facts, **times))
    return activity


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("status") / "status.html"
    page = asyncio.run(status_page(Server(), Texts(), busy()))
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture
def page(opened, path):
    return opened(path)


def cells(page, column):
    return page.texts(f".models td.{column}")


def test_at_a_glance(page):
    assert page.texts("h1") == ["partita 1.2: ready"]
    assert page.evaluate("document.title") == "partita 1.2: ready"
    assert page.texts("p.soft")[0].startswith("3 models · up for 0 min")


def test_models(page):
    assert cells(page, "model") == ["ocr", NASTY, "chat"]
    assert cells(page, "state") == ["READY", "UNAVAILABLE", "READY"]
    assert cells(page, "where") == ["GPU 1 ops, CPU 1 ops", "no such file", "CPU 1 ops"]
    assert cells(page, "answered") == ["99", "0", "0"]
    assert cells(page, "failed") == ["1", "0", "0"]
    assert cells(page, "p50_us") == ["50 ms", "", ""]
    assert cells(page, "p95_us") == ["94.1 ms", "", ""]  # of 1, 2, ... 99 ms


def test_operations_and_why(page):
    assert page.texts("td.name") == ["conv1", "conv2", "head"]
    assert page.texts("td.why")[1] == f"PRIORITY: {NASTY}; not GPU: UNSUPPORTED_OP"
    page.type("conv2", "searchbox", "Search")
    assert page.texts("td.name") == ["conv2"]
    assert "ocr 2: GPU failed once" in page.texts("section p")


def test_runs(page):
    assert page.texts(".lane .device") == ["GPU", "CPU"]
    assert page.texts(".lane title") == []  # shown by the browser when a pointer rests there
    told = page.evaluate('[...document.querySelectorAll(".lane title")].map(x => x.textContent)')
    assert told == ["ocr: subgraph1, 4.00 ms", f"ocr: {NASTY}, 6.00 ms"]
    places = page.evaluate(
        '[...document.querySelectorAll(".lane rect")].map(x => Math.round(x.getAttribute("x")))'
    )
    assert places == [0, 400]
    assert len(page.named("image", "when GPU ran")) == 1


def test_nothing_ran(opened, tmp_path):
    path = tmp_path / "idle.html"
    path.write_text(asyncio.run(status_page(Server(), {}, Activity())), encoding="utf-8")
    assert "Nothing has run yet." in opened(path).texts("section p")


def test_readable_everywhere(readable, path):
    readable(path)

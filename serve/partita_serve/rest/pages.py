"""Routes for people and monitors: the status page, metrics, and a trace of the last runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from partita.plugin import DeviceSpan
from partita.trace import chrome_trace
from partita_serve.models.text_model import TextModels
from partita_serve.rest.model_routes import json_response
from partita_serve.rest.status_page import status_page
from partita_serve.server import ModelServer
from partita_serve.telemetry.activity import Activity
from partita_serve.telemetry.device_time import device_spans
from partita_serve.telemetry.metrics import Metrics

_PAGE_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
}


def page_routes(
    server: ModelServer, texts: TextModels, activity: Activity, metrics: Metrics
) -> list[Route]:
    """The routes ``/``, ``/metrics`` and ``/v2/trace``.

    Args:
        server: The server that they describe.
        texts: Its language models.
        activity: What it did lately; one of its observers.
        metrics: What is counted; another one.
    """

    async def status(request: Request) -> Response:
        page = await status_page(server, texts, activity)
        return Response(page, media_type="text/html", headers=_PAGE_HEADERS)

    async def exposition(request: Request) -> Response:
        content, content_type = await metrics.exposition(server, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    async def trace(request: Request) -> Response:
        spans: dict[str, list[DeviceSpan]] = {}
        for run in activity.runs:
            spans.setdefault(run.model, []).extend(device_spans(run))
        return json_response(chrome_trace(spans))

    return [Route("/", status), Route("/metrics", exposition), Route("/v2/trace", trace)]

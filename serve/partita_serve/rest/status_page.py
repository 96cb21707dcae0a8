"""The status page: which models there are, what runs where, how fast, and when it ran lately."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any

from partita.pages.page import build_page
from partita_serve.models.text_model import TextModels
from partita_serve.protocol.errors import NotFound, Unavailable
from partita_serve.protocol.observer import BatchRun
from partita_serve.server import ModelServer
from partita_serve.telemetry.activity import Activity
from partita_serve.telemetry.device_time import device_spans

Explain = Callable[[], Mapping[str, Any]]


async def status_page(server: ModelServer, texts: TextModels, activity: Activity) -> str:
    """The page, which needs nothing from elsewhere.

    Args:
        server: The server that it describes.
        texts: Its language models.
        activity: What it did lately.
    """
    metadata = server.server_metadata()
    state = "ready" if server.is_ready() else "not ready"
    data = {
        "uptime_s": int(time.time() - activity.started),
        "runs": len(activity.runs),
        "spans": _spans(list(activity.runs)),
    }
    models = [(entry | _latencies(entry["name"], activity)) for entry in server.repository_index()]
    explain: list[Explain] = [
        partial(server.explanation, entry["name"], entry["version"]) for entry in models
    ]
    for name in texts:
        entry = {"name": name, "version": "", "state": "READY", "reason": ""}
        models.append(entry | _latencies(name, activity))
        explain.append(texts[name].explanation)

    def build() -> str:
        placed = [
            _placed(entry, explained) for entry, explained in zip(models, explain, strict=True)
        ]
        assets = resources.files("partita_serve.rest") / "assets"
        whole = {
            **data,
            "models": [model for model, _, _ in placed],
            "notes": [note for _, notes, _ in placed for note in notes],
            "operations": [op for _, _, ops in placed for op in ops],
        }
        title = f"{metadata['name']} {metadata['version']}: {state}"
        return build_page(title, assets, "status", {"server": whole})

    # Explaining large models takes milliseconds, which requests should not wait for.
    return await asyncio.to_thread(build)


def _latencies(name: str, activity: Activity) -> dict[str, Any]:
    """What a model answered, and the microseconds that it took."""
    done = activity.models.get(name)
    if done is None:
        return {"answered": 0, "failed": 0}
    found: dict[str, Any] = {"answered": done.answered, "failed": done.failed}
    if done.microseconds:
        percentiles = done.percentiles(50, 95, 99)
        found |= zip(("p50_us", "p95_us", "p99_us"), percentiles, strict=True)
    return found


def _placed(
    entry: dict[str, Any], explain: Explain
) -> tuple[dict[str, Any], Sequence[str], Sequence[dict[str, Any]]]:
    """A model's row, notes on it, and its operations."""
    name = f"{entry['name']} {entry['version']}".strip()
    model = {**entry, "model": entry["name"], "where": entry["reason"]}
    try:
        explanation = explain()
    except (NotFound, Unavailable):
        return model, (), ()
    model["where"] = explanation["summary"]
    notes = [f"{name}: {note}" for note in explanation["notes"]]
    return model, notes, [_operation(name, op) for op in explanation["ops"]]


def _operation(model: str, op: Mapping[str, Any]) -> dict[str, Any]:
    refused = [f"not {device}: {_reason(why)}" for device, why in op["refused"].items()]
    return {
        "model": model,
        "name": op["name"],
        "type": op["op_type"],
        "device": op["device"],
        "part": op["subgraph"],
        "why": "; ".join([_reason(op["reason"]), *refused]),
    }


def _reason(reason: Mapping[str, Any]) -> str:
    return f"{reason['code']}: {reason['detail']}" if reason["detail"] else str(reason["code"])


def _spans(runs: Sequence[BatchRun]) -> list[dict[str, Any]]:
    """What devices did in these runs, in microseconds since the first of them."""
    spans = [(run.model, span) for run in runs for span in device_spans(run)]
    first = min((span.start_s for _, span in spans), default=0.0)
    return [
        {
            "model": model,
            "device": span.device,
            "name": span.name,
            "start_us": (span.start_s - first) * 1e6,
            "end_us": (span.end_s - first) * 1e6,
        }
        for model, span in spans
    ]

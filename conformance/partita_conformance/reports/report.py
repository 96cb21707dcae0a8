"""The report of a run: JSON of a stable schema, and an HTML page that needs nothing else."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from partita.pages.page import build_page
from partita.system.written_file import writing
from partita_conformance.bench.bench import Bench, Target
from partita_conformance.reports.claims import claims_of
from partita_conformance.runs.running import Outcome, count

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""

_PACKAGES = ("partita", "numpy", "onnx", "onnx-ir")


def as_data(target: Target, outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """The report as plain data.

    Args:
        target: The device.
        outcomes: What became of each check.
        seconds: How long the run took.
    """
    claims = claims_of(outcomes)
    return {
        "schema": SCHEMA,
        "device": target.device,
        "about": _about(target),
        "config": dict(target.config),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "machine": {
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
        },
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "counts": dict(count(list(outcomes))),
        "claims": {
            "share": round(claims.share, 3),
            "tried": list(claims.tried),
            "never_tried": list(claims.never_tried),
        },
        "checks": [
            {
                "name": outcome.check.name,
                "suite": outcome.check.suite,
                "status": outcome.status,
                "detail": outcome.detail,
                "seconds": round(outcome.seconds, 3),
                "summary": outcome.check.summary,
                "op": outcome.check.op,
                "dtype": outcome.check.dtype,
            }
            for outcome in outcomes
        ],
    }


def write(folder: Path, data: dict[str, Any]) -> list[Path]:
    """Writes ``conformance.json`` and ``conformance.html`` into a folder; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=1)
    own = resources.files("partita_conformance.reports") / "assets"
    page = build_page(f"Conformance of {data['device']}", own, "conformance", {"report": data})
    paths = [folder / "conformance.json", folder / "conformance.html"]
    for path, content in zip(paths, (text, page), strict=True):
        with writing(path):
            path.write_text(content, encoding="utf-8")
    return paths


def _about(target: Target) -> dict[str, str]:
    """Name, kind and driver of the device, as far as it says."""
    bench = Bench(target)
    info = bench.core.device_info(target.device)
    return {"name": info.full_name, "kind": info.kind, "driver": info.driver, "memory": info.memory}

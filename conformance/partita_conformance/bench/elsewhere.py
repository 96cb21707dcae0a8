"""Queries and runs in a fresh process, which has seen no other model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partita_conformance.bench.bench import Target
from partita_conformance.judging.requirements import ConformanceError

_LIMIT_S = 100


class Elsewhere(NamedTuple):
    """What came of a run in another process.

    Attributes:
        results: The outputs.
        printed: What it wrote to its standard output.
    """

    results: list[Any]
    printed: str


def run_elsewhere(
    target: Target, content: bytes, feeds: Mapping[str, Any], exported: bool = True
) -> Elsewhere:
    """What a new process computes with a model.

    Args:
        target: The device.
        content: A blob that it imports, or an ONNX model that it compiles.
        feeds: The inputs.
        exported: Whether it is a blob.

    Raises:
        ConformanceError: It does not come to an end, or raises; the message has its last words.
    """
    what = "blob" if exported else "model"
    with tempfile.TemporaryDirectory(prefix="partita-conformance-") as name:
        folder = Path(name)
        (folder / what).write_bytes(content)
        np.savez(folder / "feeds.npz", **feeds)
        printed = _process(target, folder, what, {})
        with np.load(folder / "results.npz") as results:
            return Elsewhere([results[key] for key in results.files], printed)


def identities_elsewhere(target: Target, settings: str, seed: str) -> list[str]:
    """What a device's ``identity()`` says in a new process.

    Args:
        target: The device.
        settings: Properties to ask with, a list of objects in JSON.
        seed: Of the hashes of that process.

    Raises:
        ConformanceError: It does not come to an end, or raises; the message has its last words.
    """
    with tempfile.TemporaryDirectory(prefix="partita-conformance-") as name:
        folder = Path(name)
        (folder / "settings").write_text(settings)
        _process(target, folder, "identity", {"PYTHONHASHSEED": seed})
        found: list[str] = json.loads((folder / "identities").read_text())
        return found


def _process(target: Target, folder: Path, what: str, variables: Mapping[str, str]) -> str:
    """Runs :func:`main` over a folder in a new process; returns what it printed."""
    (folder / "target").write_text(json.dumps([target.device, target.plugin]))
    command = [sys.executable, "-m", __name__, str(folder)]
    # What this process can import, and perhaps has found beside the environment's packages.
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    try:
        done = subprocess.run(
            command, env=found, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConformanceError(f"Another process does not get done with the {what}.") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ConformanceError(f"Another process cannot use the {what}: {said[0]}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """The other process: makes the model, runs it twice and writes results beside what it got.

    If it got settings, it writes identities.
    """
    (name,) = arguments
    folder = Path(name)
    device, plugin = json.loads((folder / "target").read_text())
    core = Target(device, plugin).open()
    settings = folder / "settings"
    if settings.exists():
        name, _, device_id = core.resolve_device(device).partition(".")
        own = core.device_api.registry.plugin(name)
        made = [
            own.properties_type(DEVICE_ID=device_id, **given)
            for given in json.loads(settings.read_text())
        ]
        (folder / "identities").write_text(json.dumps([own.identity(one) for one in made]))
        return 0
    with np.load(folder / "feeds.npz") as feeds:
        inputs = dict(feeds)
    blob, model = folder / "blob", folder / "model"
    if blob.exists():
        compiled = core.import_model(blob.read_bytes(), device)
    else:
        compiled = core.compile_model(core.read_model(model.read_bytes()), device)
    results = [compiled(inputs).to_tuple() for _ in range(2)][-1]
    np.savez(folder / "results.npz", *results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

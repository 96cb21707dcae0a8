"""Running a model, or an exported one, in a process that knows nothing else of it."""

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
        (folder / "target").write_text(json.dumps([target.device, target.plugin]))
        np.savez(folder / "feeds.npz", **feeds)
        command = [sys.executable, "-m", __name__, name]
        # What this process can import, and perhaps has found beside the environment's packages.
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                command, env=found, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ConformanceError(f"Another process does not get done with the {what}.") from error
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise ConformanceError(f"Another process cannot use the {what}: {said[0]}")
        with np.load(folder / "results.npz") as results:
            return Elsewhere([results[key] for key in results.files], done.stdout)


def main(arguments: Sequence[str]) -> int:
    """The other process: makes the model, runs it twice and writes results beside what it got."""
    (name,) = arguments
    folder = Path(name)
    device, plugin = json.loads((folder / "target").read_text())
    core = Target(device, plugin).open()
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

"""Running an exported model in a process that knows nothing else of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita_conformance.bench.bench import Target
from partita_conformance.judging.requirements import ConformanceError

_LIMIT_S = 100


def run_elsewhere(target: Target, blob: bytes, feeds: Mapping[str, Any]) -> list[Any]:
    """What a new process computes with a blob that it imports.

    Raises:
        ConformanceError: It does not come to an end, or raises; the message has its last words.
    """
    with tempfile.TemporaryDirectory(prefix="partita-conformance-") as name:
        folder = Path(name)
        (folder / "blob").write_bytes(blob)
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
            raise ConformanceError("Another process does not get done with the blob.") from error
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise ConformanceError(f"Another process cannot use the blob: {said[0]}")
        with np.load(folder / "results.npz") as results:
            return [results[key] for key in results.files]


def main(arguments: Sequence[str]) -> int:
    """The other process: imports, runs and writes the results beside what it was given."""
    (name,) = arguments
    folder = Path(name)
    device, plugin = json.loads((folder / "target").read_text())
    core = Target(device, plugin).open()
    with np.load(folder / "feeds.npz") as feeds:
        inputs = dict(feeds)
    compiled = core.import_model((folder / "blob").read_bytes(), device)
    results = compiled(inputs).to_tuple()
    np.savez(folder / "results.npz", *results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Installs third-party plugins into a fresh environment and runs the conformance kit on them.

Without arguments the template, ORT and OV are tested, which takes some minutes::

    python benchmarks/example_plugins.py
    python benchmarks/example_plugins.py --check 'request/*' --only template
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = {"ORT": "partita-onnxruntime", "OV": "partita-openvino"}


def run(*command, **options):
    """Runs a command; its failure ends the script."""
    return subprocess.run([str(part) for part in command], check=True, **options)


def main():
    """Prints a line per plugin: lines of code, checks by status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["template", *EXAMPLES], help="one of them")
    parser.add_argument("--check", action="append", default=[], help="as for partita conformance")
    args = parser.parse_args()
    patterns = [part for pattern in args.check for part in ("--check", pattern)]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(Path(scratch) / "venv", with_pip=True)
        bin_folder = Path(scratch) / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        run(bin_folder / "pip", "install", "-q", f"{ROOT}[conformance]")
        run(bin_folder / "partita", "new-plugin", "fresh", "--into", scratch)
        folders = {name: ROOT / "examples" / folder for name, folder in EXAMPLES.items()}
        folders["FRESH"] = Path(scratch) / "partita-fresh"
        for device, folder in folders.items():
            if args.only not in (None, device, "template" if device == "FRESH" else ""):
                continue
            run(bin_folder / "pip", "install", "-q", folder)
            options = ["--expectations", folder / "expectations.toml", *patterns]
            found = subprocess.run(
                [bin_folder / "partita", "conformance", "-d", device, "--json", *options],
                cwd=scratch,
                capture_output=True,
                text=True,
                check=False,
            )
            lines = sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))
            counts = json.loads(found.stdout).get("counts") if found.stdout else found.stderr
            verdict = "conforms" if not found.returncode and isinstance(counts, dict) else "FAILS"
            print(f"{device:6} {lines:4} lines  {verdict}")
            print(f"       {counts}")
            failed += found.returncode != 0 or not isinstance(counts, dict)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

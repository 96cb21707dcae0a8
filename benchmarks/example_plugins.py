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
BAD = ("failed", "crashed", "timeout", "xpassed")
EXAMPLES = {"ORT": "partita-onnxruntime", "OV": "partita-openvino"}


def run(*command, **options):
    """Runs a command; its failure ends the script."""
    return subprocess.run([str(part) for part in command], check=True, **options)


def main():
    """Prints a line per plugin: lines of code, checks by status, and each check that fails."""
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
            report = json.loads(found.stdout) if found.stdout else {}
            conforms = found.returncode == 0 and "counts" in report
            print(f"{device:6} {lines:4} lines  {'conforms' if conforms else 'FAILS'}")
            print(f"       {report.get('counts', found.stderr)} in {report.get('seconds')} s")
            for check in report.get("checks", []):
                if check["status"] in BAD:
                    detail = " ".join(check["detail"].split())[:300]
                    print(f"       {check['status']} {check['name']}: {detail}")
            sys.stdout.flush()
            failed += not conforms
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

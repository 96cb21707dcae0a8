"""How long ``import partita; partita.Core()`` takes beside other engines' ``import``.

    python benchmarks/import_time.py --turns 15

Each program runs in a process of its own, in turns, after one round that is not counted: it fills
the system's caches, and writes byte code to a folder for this run. A time is processor time of the
whole process, the system's included, less that of an interpreter that does nothing; `wall` is the
elapsed time likewise.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

NOTHING = "pass"
PROGRAMS = {
    "import partita; Core()": "import partita; partita.Core()",
    "import numpy, partita; Core()": "import numpy, partita; partita.Core()",
    "import partita": "import partita",
    "import onnxruntime": "import onnxruntime",
    "import openvino; Core()": "import openvino; openvino.Core()",
    "import numpy": "import numpy",
}
PEER = "import onnxruntime"


def measure(program: str, byte_code: str) -> tuple[float, float]:
    """Seconds of processor time and of elapsed time that a fresh interpreter takes."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL, env=environment
    )
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    with tempfile.TemporaryDirectory() as byte_code:
        report(parser.parse_args().turns, byte_code)


def report(turns: int, byte_code: str) -> None:
    """Measures in turns and prints medians."""
    programs = {"nothing": NOTHING}
    for name, program in PROGRAMS.items():
        try:
            measure(program, byte_code)
        except subprocess.CalledProcessError:
            print(f"{name}: does not run here, left out")
        else:
            programs[name] = program
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(turns):
        for name, program in programs.items():
            times[name].append(measure(program, byte_code))
    ground = {
        name: tuple(statistics.median(run[kind] for run in runs) for kind in (0, 1))
        for name, runs in times.items()
    }
    empty = ground.pop("nothing")
    print(
        f"\nPython {platform.python_version()}, {os.cpu_count()} processors "
        f"({platform.machine()}), load {os.getloadavg()[0]:.1f}; medians of {turns} turns, less "
        f"those of an empty interpreter ({empty[0] * 1e3:.0f} ms, {empty[1] * 1e3:.0f} ms)\n"
    )
    print(f"{'':32}{'processor ms':>14}{'wall ms':>10}{'over ' + PEER:>26}")
    peer = ground.get(PEER)
    for name, found in ground.items():
        cpu, wall = (1e3 * (a - b) for a, b in zip(found, empty, strict=True))
        ratio = ""
        if peer is not None:
            over = [(a - b) / (c - b) for a, b, c in zip(found, empty, peer, strict=True)]
            ratio = f"{over[0]:.2f} ({over[1]:.2f} wall)"
        print(f"{name:32}{cpu:14.0f}{wall:10.0f}{ratio:>26}")


if __name__ == "__main__":
    main()

"""How long a compile takes when nothing is kept on disk, and how long the next ones.

    python benchmarks/first_compile.py [--device CPU] [--precisions f32,f16] [--json] [--log]
        [model ...]

Models: those of `cpu_networks` and all names that `partita benchmark` takes (default: detector).
Three processes share a cache folder of their own: in the first nothing is kept (kernels are built,
drivers tried, tiles measured), the second finds what the first kept, and the third compiles twice
and times the second. Printed, in seconds of wall time: compile, first run, and both, without the
start of Python and the reading of the model; and processor time of the whole process and of those
that it started. Modules have their byte code, as pip leaves them. ``--log`` shows what device
OPENCL tells of its trials, and how long each took.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import ctypes
import importlib.util
import json
import logging
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROW = "{:14} {:5} {:22} {:>9} {:>9} {:>9} {:>9}"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
KEPT = ("PARTITA_CACHE_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH")
"""Variables that name folders of caches, of NVIDIA's driver, too."""


def timed(name: str, device: str, precision: str, compiles: int) -> dict[str, float]:
    """Compiles so often in this process, and runs what came last; seconds of the last time."""
    import onnx
    from cpu_peers import load

    import partita

    serialized, feeds = load(name)
    core = partita.Core()
    config = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    model = core.read_model(onnx.load_from_string(serialized))
    model.reshape({key: array.shape for key, array in feeds.items()})
    for _ in range(compiles):
        start = time.perf_counter()
        compiled = core.compile_model(model, device, config)
        done = time.perf_counter()
        compiled.create_infer_request().infer(feeds)
    end = time.perf_counter()
    return {"compile": done - start, "first run": end - done, "both": end - start}


def write_byte_code() -> None:
    """Has all of Partita's modules compiled by Python, as an installation does.

    To compile them takes half a second of a process, where they lie in a folder of sources and
    Python was told to write nothing.
    """
    for package in pkgutil.iter_modules():
        if package.ispkg and package.name.partition("_")[0] == "partita":
            spec = importlib.util.find_spec(package.name)
            for folder in (spec and spec.submodule_search_locations) or ():
                compileall.compile_dir(folder, quiet=1)


def of_children() -> float:
    """Seconds that ended children of this process have computed, and theirs."""
    times = os.times()
    return times.children_user + times.children_system


def adopt_orphans() -> None:
    """Makes processes whose parent has ended children of this one, whose time it is told of.

    Those that compile kernels are started so. Only Linux can do it; elsewhere their time is missed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def wait_for_orphans() -> None:
    """Returns when this process has no children any more."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def in_a_process(folder: str, *arguments: str) -> dict[str, float]:
    """What :func:`timed` measures in a new process that keeps things in the folder.

    Raises:
        subprocess.CalledProcessError: The process failed.
    """
    environment = {**os.environ, **{name: str(Path(folder) / name) for name in KEPT}}
    command = [sys.executable, __file__, "--in-this-process", *arguments]
    before = of_children()
    found = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    wait_for_orphans()
    times: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return {**times, "processor time": of_children() - before}


def measure(name: str, device: str, precision: str, *further: str) -> dict[str, Any]:
    """All three processes."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (name, "--device", device, "--precisions", precision, *further)
        return {
            "nothing kept": in_a_process(folder, *arguments),
            "kept on disk": in_a_process(folder, *arguments),
            "second in one process": in_a_process(folder, *arguments, "--compiles", "2"),
        }


def main() -> None:
    """Prints three lines for each model and precision."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["detector"])
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--precisions", default="", help="e.g. f32,f16 (default: the device's own)")
    parser.add_argument("--json", action="store_true", help="an object a line")
    parser.add_argument("--log", action="store_true", help="what trials take, on stderr")
    parser.add_argument("--compiles", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.log:
        logging.basicConfig(level=logging.INFO, format="%(relativeCreated)8.0f ms %(message)s")
    if options.in_this_process:
        (name,) = options.models
        print(json.dumps(timed(name, options.device, options.precisions, options.compiles)))
        return
    adopt_orphans()
    write_byte_code()
    if not options.json:
        print(ROW.format("seconds", "", "", "compile", "first run", "both", "processor"))
    for name in options.models:
        for precision in options.precisions.split(","):
            further = ["--log"] if options.log else []
            found = measure(name, options.device, precision, *further)
            if options.json:
                print(json.dumps({"model": name, "precision": precision, **found}), flush=True)
                continue
            for label, times in found.items():
                columns = [f"{seconds:.2f}" for seconds in times.values()]
                print(ROW.format(name, precision, label, *columns), flush=True)


if __name__ == "__main__":
    main()

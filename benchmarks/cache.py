"""What CACHE_DIR saves: a compile with an empty cache, one with a full one, and one without.

    python benchmarks/cache.py [--models light:resnet50 light:vgg19] [--devices CPU HETERO:GPU,CPU]

Each time is the median of three, from the model's path to the compiled model, in one process whose
kernels are loaded; "first" compiles and stores. The first inference afterwards is compared with
onnxruntime and counted too, as some devices do a part of their work there.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agreement import disagreement
from models import cases, session

import partita

MODELS = ["light:resnet50", "light:vgg19", "zoo:picodet-layout", "zoo:ppocr-det", "zoo:minilm-l3"]
DEVICES = ["CPU", "HETERO:CPU,REFERENCE", "HETERO:OPENCL,CPU"]


def main() -> None:
    """Prints a line per model and device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    options = parser.parse_args()
    print(f"{'model':<20} {'device':<22} without   first  cached  ratio  +infer  file MB  result")
    for case in cases(options.models):
        want = session(case.path).run(None, case.feeds)
        for device in options.devices:
            print(f"{case.name:<20} {device:<22} {_row(case, device, want)}", flush=True)


def _row(case: Any, device: str, want: Any) -> str:
    core = partita.Core()
    core.compile_model(case.path, device)(case.feeds)
    with tempfile.TemporaryDirectory() as folder:
        without, _ = _time(lambda: core.compile_model(case.path, device))
        cached = {"CACHE_DIR": folder}
        first, _ = _time(lambda: core.compile_model(case.path, device, cached), 1)
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        again, compiled = _time(lambda: core.compile_model(case.path, device, cached))
        if not compiled.get_property("LOADED_FROM_CACHE"):
            return "NOT LOADED FROM THE CACHE"
        start = time.perf_counter()
        wrong = disagreement(compiled(case.feeds).to_tuple(), want)
        infer = time.perf_counter() - start
    return (
        f"{without:7.3f} {first:7.3f} {again:7.3f} {without / again:5.1f}x {infer:7.3f} "
        f"{size:8.1f}  {wrong or 'agrees'}"
    )


def _time(call: Callable[[], Any], rounds: int = 3) -> tuple[float, Any]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


if __name__ == "__main__":
    main()

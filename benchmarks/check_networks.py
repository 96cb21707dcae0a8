"""Networks one by one on device CPU: right, fast, soon compiled, small in memory?

    python benchmarks/check_networks.py [--threads 1] [--rounds 1] FILE.onnx ...

Each file is measured in processes of its own, which may crash. Outputs of strict, default and
bf16 are compared with onnxruntime's without its optimizations: the largest difference as a part
of the output's largest value, and for outputs of whole numbers the share that differ. Times are
those of `cpu_peers.py` by processor time: the ratios to the faster peer, in bf16 to OpenVINO in
bf16. Seconds of a compile are the longest of the three settings, kernels on disk; memory is what
a process took at most for compiling and one call in strict, over what it held before, in MB and
over the file's size.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from cpu_peers import (
    OURS,
    PEERS,
    Results,
    load,
    onnxruntime_call,
    openvino_call,
    partita_call,
    take_turns,
)
from models import session

import partita

SECONDS = 900


def main() -> None:
    """Prints a row for each file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(PARTS[options.part](options.models[0], options.threads, options.rounds))
        return
    heads = [*PEERS, *OURS, "x f32", "x mixed", "x bf16"]
    errors = ["e f32", "e mixed", "e bf16", "wrong"]
    print(f"{'ms':34}", *(f"{h:>8}" for h in heads), *(f"{h:>8}" for h in errors),
          " compile   memory", flush=True)  # fmt: skip
    for name in options.models:
        said = [apart(name, part, options) for part in PARTS]
        print(f"{Path(name).stem:34}", *said, flush=True)


def apart(name: str, part: str, options: argparse.Namespace) -> str:
    """What a process of its own says of a model, or how it ended."""
    command = [sys.executable, __file__, name, "--part", part]
    command += ["--threads", str(options.threads), "--rounds", str(options.rounds)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{part}: over {SECONDS} s"
    if ended.returncode:
        return f"{part}: {''.join(ended.stderr.strip().splitlines()[-1:])[:300]}"
    return ended.stdout.splitlines()[-1]


def speed(name: str, threads: int, rounds: int) -> str:
    """Milliseconds of all engines, and ratios."""
    model, feeds = load(name)
    calls = {"ort": onnxruntime_call(model, feeds, threads)[0]}
    for label, precision in (("ov", "f32"), ("ov bf16", "bf16")):
        try:
            calls[label] = openvino_call(model, feeds, threads, precision)[0]
        except RuntimeError:  # an engine that cannot take the model has no column
            continue
    for label, config in OURS.items():
        calls[label] = partita_call(model, feeds, threads, config)[0]
    taken = take_turns(calls, rounds, time.process_time)
    best = min(taken["ort"], taken.get("ov", math.inf))
    ratios = [best / taken["f32"], best / taken["mixed"]]
    ratios.append(taken.get("ov bf16", math.nan) / taken["bf16"])
    columns = [f"{taken.get(label, math.nan):8.2f}" for label in (*PEERS, *OURS)]
    return " ".join(columns + [f"{ratio:8.2f}" for ratio in ratios])


def errors(name: str, threads: int, rounds: int) -> str:
    """Of each setting the largest error, and the largest share of whole numbers that differ."""
    model, feeds = load(name)
    references = session(Path(name)).run(None, feeds)
    found = [partita_call(model, feeds, threads, config)[1] for config in OURS.values()]
    columns = [f"{error(results, references):8.0e}" for results in found]
    wrong = max(differing(results, references) for results in found[:2])
    return " ".join([*columns, f"{wrong:8.0e}"])


def error(results: Results, references: Results) -> float:
    """Of outputs of floats, infinity where shapes or what is finite differ."""
    worst = 0.0
    for result, reference in zip(results, references, strict=True):
        if reference.dtype.kind != "f" or result.shape != reference.shape:
            worst = worst if result.shape == reference.shape else math.inf
            continue
        finite = np.isfinite(reference)
        if not np.array_equal(finite, np.isfinite(result)):
            return math.inf
        gap = np.abs(
            result.astype(np.float64) - reference, where=finite, out=np.zeros(finite.shape)
        )
        most = float(np.abs(reference, where=finite, out=np.zeros(finite.shape)).max(initial=0))
        worst = max(worst, float(gap.max(initial=0)) / max(most, 1e-30))
    return worst


def differing(results: Results, references: Results) -> float:
    """Of outputs of whole numbers."""
    shares = [
        float(np.mean(result != reference)) if result.shape == reference.shape else 1.0
        for result, reference in zip(results, references, strict=True)
        if reference.dtype.kind != "f" and reference.size
    ]
    return max(shares, default=0.0)


def compiling(name: str, threads: int, rounds: int) -> str:
    """Seconds of the longest compile, and memory."""
    model, feeds = load(name)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    partita_call(model, feeds, threads, OURS["f32"])
    most = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    seconds = []
    for config in OURS.values():
        core = partita.Core()
        read = core.read_model(model)
        start = time.process_time()
        core.compile_model(read, "CPU", {"INFERENCE_NUM_THREADS": threads, **config})
        seconds.append(time.process_time() - start)
    size = Path(name).stat().st_size / 2**20
    return f"{max(seconds):8.2f} {most:6.0f} ({most / size:.1f})"


PARTS: dict[str, Any] = {"speed": speed, "errors": errors, "compiling": compiling}


if __name__ == "__main__":
    main()

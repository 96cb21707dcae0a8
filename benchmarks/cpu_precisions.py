"""The precisions of device CPU side by side: time, and error against onnxruntime in float32.

    python benchmarks/cpu_precisions.py [--threads 2] [--rounds 12] [model ...]

Models are named as for `cpu_peers`. Prints the median of all calls in milliseconds, its ratio to
strict f32, and the largest error of the first output in parts of its largest value.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from cpu_peers import load, onnxruntime_call, partita_call, take_turns

PRECISIONS: dict[str, dict[str, Any]] = {
    "f32": {"EXECUTION_MODE_HINT": "ACCURACY"},
    "fast": {},
    "f16": {"INFERENCE_PRECISION_HINT": "f16"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
}


def measure(name: str, threads: int, rounds: int) -> None:
    """Prints the lines of a model."""
    model, feeds = load(name)
    reference = np.asarray(onnxruntime_call(model, feeds, threads)[1], np.float64)
    made = {label: partita_call(model, feeds, threads, c) for label, c in PRECISIONS.items()}
    taken = take_turns({label: call for label, (call, _) in made.items()}, rounds)
    largest = max(float(np.abs(reference).max(initial=0)), 1e-30)
    for label, (_, result) in made.items():
        error = float(np.abs(np.asarray(result, np.float64) - reference).max(initial=0)) / largest
        ratio = taken["f32"] / taken[label]
        print(f"{name:20} {label:6} {taken[label]:9.3f} ms {ratio:6.2f} {error:9.1e}", flush=True)


def main() -> None:
    """Measures the models named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["encoder", "resnet50", "mobilenetv2"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    for name in arguments.models:
        measure(name, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()

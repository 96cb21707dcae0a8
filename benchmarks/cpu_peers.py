"""Device CPU beside onnxruntime and OpenVINO, in one process, taking turns.

    python benchmarks/cpu_peers.py [--threads 2] [--rounds 12] [--busy] [--default] [--processor]
        [model ...]

Models: those of `cpu_networks` (random weights; `forest` is one of decision trees), and all names
that `partita benchmark` takes (zoo:magika, light:squeezenet), files with the sizes of the first
input where these are open (detector.onnx@1x3x640x640). Every contestant gets its best way in and
out: onnxruntime an io_binding, OpenVINO and Partita a request whose tensors are set once.
A turn is a few calls after a pause, so that threads that still spin do not disturb the next one.
Prints the median of all calls in milliseconds, and for Partita the ratio to the peer of its class:
f32 (strict: EXECUTION_MODE_HINT=ACCURACY) and mixed (PERFORMANCE, the default, which lets AMX
compute long sums as three bfloat16 products, and is f32 without AMX) against the faster of both
peers in f32, bf16 against OpenVINO in bf16. With --busy another process keeps one processor busy.
With --default only Partita's default (mixed) stands against the peers in f32, and the geometric
mean of the ratios is printed last. With --processor calls are timed by the processors' time of the
process, which on one thread can be compared where others compute too. `cpu_tables.py` compares
defaults with defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cpu_networks import BUILT, OTHERS, Feeds

import partita

Call = Callable[[], None]
Results = list[np.ndarray[Any, Any]]
Clock = Callable[[], float]

PAUSE = 0.02
CALLS_PER_TURN = 6


def load(name: str) -> tuple[bytes, Feeds]:
    """The model and an input."""
    if name in (built := BUILT | OTHERS):
        return built[name]()
    from models import cases

    case = next(iter(cases([name])))
    return case.path.read_bytes(), case.feeds


def onnxruntime_call(model: bytes, feeds: Feeds, threads: int) -> tuple[Call, Results]:
    """A call of onnxruntime, and its outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results = session.run(None, feeds)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding), results


def openvino_call(model: bytes, feeds: Feeds, threads: int, precision: str) -> tuple[Call, Results]:
    """A call of OpenVINO, and its outputs."""
    import openvino

    config = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array))
    request.infer()
    return request.infer, [np.array(tensor.data) for tensor in request.output_tensors]


def partita_call(
    model: bytes | Path, feeds: Feeds, threads: int, config: dict[str, Any]
) -> tuple[Call, Results]:
    """A call of Partita, and its outputs."""
    core = partita.Core()
    config = {"INFERENCE_NUM_THREADS": threads, **config}
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, partita.Tensor(array))
    request.infer()
    outputs = range(len(compiled.outputs))
    return request.infer, [np.array(request.get_output_tensor(i).data) for i in outputs]


def largest_error(results: Results, references: Results) -> float:
    """Of the outputs of floats, each in parts of its reference's largest value."""
    errors = [
        float(np.abs(result - reference.astype(np.float64)).max(initial=0))
        / max(float(np.abs(reference).max(initial=0)), 1e-30)
        for result, reference in zip(results, references, strict=True)
        if reference.dtype.kind == "f"
    ]
    return max(errors, default=0.0)


def take_turns(
    calls: dict[str, Call], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Median milliseconds of a call of each, by a clock in seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE)
            call()
            for _ in range(CALLS_PER_TURN):
                start = clock()
                call()
                times[name].append(clock() - start)
    return {name: statistics.median(taken) * 1e3 for name, taken in times.items()}


PEERS = ("ort", "ov", "ov bf16")
OURS: dict[str, dict[str, Any]] = {
    "f32": {"EXECUTION_MODE_HINT": "ACCURACY"},
    "mixed": {"EXECUTION_MODE_HINT": "PERFORMANCE"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
}


def peer_calls(
    model: bytes, feeds: Feeds, threads: int
) -> tuple[dict[str, tuple[Call, Results]], str]:
    """Calls of both peers in float32 with their outputs, and why OpenVINO has none."""
    made = {"ort": onnxruntime_call(model, feeds, threads)}
    try:
        made["ov"] = openvino_call(model, feeds, threads, "f32")
    except RuntimeError as error:
        return made, f"ov: {str(error).splitlines()[0][:60]}"
    return made, ""


def measure_default(name: str, threads: int, rounds: int, clock: Clock) -> float:
    """Prints the line of a model at Partita's default settings, and returns the ratio."""
    model, feeds = load(name)
    made, refused = peer_calls(model, feeds, threads)
    made["mixed"] = partita_call(model, feeds, threads, {})
    error = largest_error(made["mixed"][1], made["ort"][1])
    taken = take_turns({label: call for label, (call, _) in made.items()}, rounds, clock)
    ratio = min(taken["ort"], taken.get("ov", math.inf)) / taken["mixed"]
    columns = [f"{taken.get(label, math.nan):9.3f}" for label in ("ort", "ov", "mixed")]
    print(f"{name:28}", *columns, f"{ratio:8.2f}", f"{error:9.1e}", refused, flush=True)
    return ratio


def print_defaults(models: list[str], threads: int, rounds: int, clock: Clock) -> None:
    """Measures models at Partita's default settings and prints a line for each."""
    heads = ["ort", "ov", "mixed", "ratio", "error"]
    widths = [9, 9, 9, 8, 9]
    print(f"{'ms':28}", *(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)), flush=True)
    ratios = [measure_default(name, threads, rounds, clock) for name in models]
    print(f"geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.2f}", flush=True)


def measure(name: str, threads: int, rounds: int, clock: Clock) -> None:
    """Prints the line of a model."""
    model, feeds = load(name)
    made = {"ort": onnxruntime_call(model, feeds, threads)}
    failed = []
    for label, precision in (("ov", "f32"), ("ov bf16", "bf16")):
        try:
            made[label] = openvino_call(model, feeds, threads, precision)
        except RuntimeError as error:
            failed.append(f"{label}: {str(error).splitlines()[0][:60]}")
    for label, config in OURS.items():
        made[label] = partita_call(model, feeds, threads, config)
    errors = [largest_error(made[label][1], made["ort"][1]) for label in OURS]
    taken = take_turns({label: call for label, (call, _) in made.items()}, rounds, clock)
    best = min(taken["ort"], taken.get("ov", taken["ort"]))
    ratios = [best / taken["f32"], best / taken["mixed"], taken.get("ov bf16", best)]
    ratios[2] /= taken["bf16"]
    columns = [f"{taken.get(label, float('nan')):9.3f}" for label in (*PEERS, *OURS)]
    columns += [f"{ratio:8.2f}" for ratio in ratios] + [f"{error:9.1e}" for error in errors]
    print(f"{name:28}", *columns, *failed, flush=True)


def main() -> None:
    """Measures the models named on the command line, or those built here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(BUILT))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--busy", action="store_true", help="with a busy process beside it")
    parser.add_argument("--default", action="store_true", help="Partita's default alone")
    parser.add_argument("--processor", action="store_true", help="time of the processors")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if arguments.busy:
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        table = print_defaults if arguments.default else print_table
        clock = time.process_time if arguments.processor else time.perf_counter
        table(arguments.models, arguments.threads, arguments.rounds, clock)


def print_table(models: list[str], threads: int, rounds: int, clock: Clock) -> None:
    """Measures models and prints a line for each."""
    heads = [*PEERS, *OURS, "x f32", "x mixed", "x bf16", "e f32", "e mixed", "e bf16"]
    widths = [9] * 6 + [8] * 3 + [9] * 3
    print(f"{'ms':28}", *(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)), flush=True)
    for name in models:
        measure(name, threads, rounds, clock)


if __name__ == "__main__":
    main()

"""Many requests at a time on device CPU, beside OpenVINO and onnxruntime: requests a second.

    python benchmarks/throughput.py [--threads 2] [--requests N] [--rounds 5] [--json] [model ...]

Models: those of `cpu_peers`, and ``small`` (six layers of 128 on eight rows), where what is done
around the kernels counts most. Partita: `PERFORMANCE_HINT=THROUGHPUT` and an `AsyncInferQueue`.
OpenVINO: the same. onnxruntime: as many one-thread sessions in as many threads of Python. All
compute float32 (Partita with EXECUTION_MODE_HINT=ACCURACY) on the same inputs, handed over with
each request. In turns in one process; printed is the median of the rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cpu_networks import Builder, Feeds
from cpu_peers import PAUSE, load

import partita

THROUGHPUT = {"PERFORMANCE_HINT": "THROUGHPUT"}
Batch = Callable[[int], None]
"""Computes so many requests."""


def small() -> tuple[bytes, Feeds]:
    """Six dense layers with Relu."""
    b, x = Builder(), "x"
    for _ in range(6):
        x = b.add("Relu", b.add("MatMul", x, b.normal(128, 128, fan=64)))
    return b.model((8, 128), x)


def partita_batch(model: bytes, feeds: Feeds, threads: int) -> Batch:
    """Partita's queue."""
    core = partita.Core()
    config = {**THROUGHPUT, "INFERENCE_NUM_THREADS": threads, "EXECUTION_MODE_HINT": "ACCURACY"}
    queue = partita.AsyncInferQueue(core.compile_model(core.read_model(model), "CPU", config))
    return _through(queue, feeds)


def openvino_batch(model: bytes, feeds: Feeds, threads: int) -> Batch:
    """OpenVINO's queue."""
    import openvino

    core = openvino.Core()
    config = {
        **THROUGHPUT,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return _through(
        openvino.AsyncInferQueue(core.compile_model(core.read_model(model), "CPU", config)), feeds
    )


def _through(queue: Any, feeds: Feeds) -> Batch:
    def run(count: int) -> None:
        for _ in range(count):
            queue.start_async(feeds)
        queue.wait_all()

    return run


def onnxruntime_batch(model: bytes, feeds: Feeds, threads: int) -> Batch:
    """Sessions of one thread each, in as many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    cpu = ["CPUExecutionProvider"]
    sessions = [onnxruntime.InferenceSession(model, options, providers=cpu) for _ in range(threads)]

    def run(count: int) -> None:
        def work(session: Any) -> None:
            for _ in range(count // threads):
                session.run(None, feeds)

        workers = [threading.Thread(target=work, args=(session,)) for session in sessions]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return run


ENGINES = {
    "partita": partita_batch,
    "onnxruntime": onnxruntime_batch,
    "openvino": openvino_batch,
}


def measure(name: str, threads: int, requests: int, rounds: int) -> dict[str, Any]:
    """Requests a second of each engine that is installed."""
    model, feeds = small() if name == "small" else load(name)
    feeds = {key: np.ascontiguousarray(array) for key, array in feeds.items()}
    batches = {
        engine: make(model, feeds, threads)
        for engine, make in ENGINES.items()
        if importlib.util.find_spec(engine)
    }
    rates: dict[str, list[float]] = {engine: [] for engine in batches}
    for run in batches.values():
        run(threads * 4)
    for _ in range(rounds):
        for engine, run in batches.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            run(requests)
            rates[engine].append(requests / (time.perf_counter() - start))
    found = {engine: statistics.median(each) for engine, each in rates.items()}
    best = max((rate for engine, rate in found.items() if engine != "partita"), default=np.nan)
    return {
        "model": name,
        "threads": threads,
        "requests a second": found,
        "over the better peer": found["partita"] / best,
    }


def main() -> None:
    """Prints a line for every model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["small", "pp_lcnet", "mobilenetv2"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=200, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="an object a line")
    arguments = parser.parse_args()
    for name in arguments.models:
        found = measure(name, arguments.threads, arguments.requests, arguments.rounds)
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        rates = "  ".join(f"{k} {rate:.1f}/s" for k, rate in found["requests a second"].items())
        print(
            f"{name:16} {rates}  over the better: {found['over the better peer']:.2f}", flush=True
        )


if __name__ == "__main__":
    main()

"""Many requests at a time on device CPU, beside OpenVINO and onnxruntime: requests a second.

    python benchmarks/throughput.py [--threads 2] [--seconds 0.1] [--rounds 9] [--default] [--json]
        [model ...]

Models: those of `cpu_peers`, and ``small`` (six layers of 128 on eight rows), where what is done
around the kernels counts most. Partita: `PERFORMANCE_HINT=THROUGHPUT` and an `AsyncInferQueue`.
OpenVINO: the same; it refuses some models, and is left out of their lines. onnxruntime: as many
one-thread sessions in as many threads of Python. All compute float32 (Partita with
EXECUTION_MODE_HINT=ACCURACY, or with --default as it does by default) on the same inputs, handed
over with each request. In turns in one process; a turn has as many requests as take the given time.
Printed are medians of the rounds: requests a second, on how many processors, and in brackets the
processor time of a request in microseconds and how often its threads gave up their processor for
it. Where another process has one of two processors, each engine answers half as many requests, on
one: rates are comparable where they were made on as many, processor times always.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import resource
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cpu_networks import Builder, Feeds
from cpu_peers import PAUSE, load

import partita

THROUGHPUT = {"PERFORMANCE_HINT": "THROUGHPUT"}
VOICE = ("zoo:silero-vad", "zoo:silero-vad-ifless")
MODELS = ("small", *VOICE, "zoo:minilm-l3", "pp_lcnet", "mobilenetv2")
Batch = Callable[[int], None]
"""Computes so many requests."""


def small() -> tuple[bytes, Feeds]:
    """Six dense layers with Relu."""
    b, x = Builder(), "x"
    for _ in range(6):
        x = b.add("Relu", b.add("MatMul", x, b.normal(128, 128, fan=64)))
    return b.model((8, 128), x)


def partita_batch(model: bytes, feeds: Feeds, threads: int, mode: str = "ACCURACY") -> Batch:
    """Partita's queue."""
    core = partita.Core()
    config = {**THROUGHPUT, "INFERENCE_NUM_THREADS": threads, "EXECUTION_MODE_HINT": mode}
    queue = partita.AsyncInferQueue(core.compile_model(core.read_model(model), "CPU", config))
    return through(queue, feeds)


def openvino_batch(model: bytes, feeds: Feeds, threads: int) -> Batch:
    """OpenVINO's queue."""
    import openvino

    core = openvino.Core()
    config = {
        **THROUGHPUT,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return through(
        openvino.AsyncInferQueue(core.compile_model(core.read_model(model), "CPU", config)), feeds
    )


def through(queue: Any, feeds: Feeds) -> Batch:
    """Requests in flight, as many as the queue has."""

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


class Turn(NamedTuple):
    """What a turn came to, per request."""

    rate: float
    """Requests a second."""
    processors: float
    """On how many its threads were at a time."""
    processor_us: float
    """Time of all threads."""
    switches: float
    """How often a thread of the process waited for something."""

    @classmethod
    def of(cls, run: Batch, requests: int) -> Turn:
        """Takes a turn."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        processor, start = time.process_time(), time.perf_counter()
        run(requests)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
        rate = requests / seconds
        return cls(rate, processor / seconds, processor / requests * 1e6, switches / requests)


def requests_for(run: Batch, threads: int, seconds: float) -> int:
    """How many requests take a time, by a turn of at least half of it: the first ones take long."""
    count = threads * 8
    run(count)
    while (rate := Turn.of(run, count).rate) * seconds > 2 * count:
        count *= 4
    return max(threads * 8, int(seconds * rate) // threads * threads)


def batches_of(model: bytes, feeds: Feeds, threads: int, default: bool) -> dict[str, Batch]:
    """A batch of each engine that is installed and takes the model."""
    made = {}
    engines = ENGINES
    if default:
        ours = functools.partial(partita_batch, mode="PERFORMANCE")
        engines = {**ENGINES, "partita": ours}
    for engine, make in engines.items():
        if importlib.util.find_spec(engine):
            try:
                made[engine] = make(model, feeds, threads)
            except RuntimeError:
                if engine == "partita":
                    raise
    return made


def measure(name: str, threads: int, seconds: float, rounds: int, default: bool) -> dict[str, Any]:
    """The medians of each engine."""
    model, feeds = small() if name == "small" else load(name)
    feeds = {key: np.require(array, requirements="C") for key, array in feeds.items()}
    batches = batches_of(model, feeds, threads, default)
    turns: dict[str, list[Turn]] = {engine: [] for engine in batches}
    requests = {engine: requests_for(run, threads, seconds) for engine, run in batches.items()}
    for _ in range(rounds):
        for engine, run in batches.items():
            time.sleep(PAUSE)
            turns[engine].append(Turn.of(run, requests[engine]))
    found = {
        engine: Turn(*map(statistics.median, zip(*taken, strict=True)))._asdict()
        for engine, taken in turns.items()
    }
    best = max((turn["rate"] for engine, turn in found.items() if engine != "partita"), default=0)
    return {
        "model": name,
        "threads": threads,
        "medians": found,
        "over the better peer": found["partita"]["rate"] / best if best else np.nan,
    }


def main() -> None:
    """Prints a line for every model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--default", action="store_true", help="Partita's default, not strict")
    parser.add_argument("--json", action="store_true", help="an object a line")
    arguments = parser.parse_args()
    for name in arguments.models:
        numbers = arguments.threads, arguments.seconds, arguments.rounds
        found = measure(name, *numbers, arguments.default)
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        rates = "  ".join(
            f"{engine} {turn['rate']:.1f}/s on {turn['processors']:.2f} "
            f"({turn['processor_us']:.1f} us, {turn['switches']:.2f})"
            for engine, turn in found["medians"].items()
        )
        print(
            f"{name:22} {rates}  over the better: {found['over the better peer']:.2f}", flush=True
        )


if __name__ == "__main__":
    main()

"""Many requests at a time on two devices that share a network, beside each of them alone.

    python benchmarks/gpu_pipeline.py [--devices OPENCL.0,OPENCL.1] [--requests 600] [--jobs 12]
        [--rounds 5] [--context 1024] [--no-halves] [--json] [model ...]

Models: those of `cpu_networks` (default resnet50 and inception_v3), in float32; or ``1B-f16``, a
decoder of `random_decoders` with weights so stored, computed in float16. Inputs and outputs are on
the host. Contestants, in turns in one process, requests a second: each device alone with the same
number of requests in flight, HETERO with the first half of the operations pinned to one and the
second half to the other, the whole network on each (by device MULTI; not of decoders), and HETERO
where it chooses, all with PERFORMANCE_HINT=THROUGHPUT: by measured costs (HETERO_SCHEDULE=COST),
for decoders by layers (HETERO_CONTEXT). A request of a decoder is one token of a sequence with a
cache of its own, which is half full; the first device alone stands for both, so that weights are
made fewer times. Printed: medians of the rounds, over the faster device alone, what HETERO chose of
what, and how long it all took to compile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cpu_networks import BUILT
from cpu_peers import PAUSE
from neighbours import pin_alternately
from random_decoders import decoder
from throughput import THROUGHPUT, Batch, through

import partita
from partita.contract.explanation import Decision

HALVES = 2


class Work(NamedTuple):
    """A model and what its requests are given.

    Attributes:
        model: Makes it.
        feeds: By input an array.
        precision: What each device computes in.
        placing: How HETERO is asked to choose.
        is_large: Whether its weights take minutes to make.
    """

    model: Callable[[], partita.Model]
    feeds: dict[str, np.ndarray[Any, Any]]
    precision: dict[str, str]
    placing: dict[str, Any]
    is_large: bool = False


def work(name: str, context: int) -> Work:
    """A network of `cpu_networks`, or a token of a decoder."""
    if name in BUILT:
        proto, feeds = BUILT[name]()
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        return Work(
            lambda: partita.Core().read_model(proto), feeds, exact, {"HETERO_SCHEDULE": "COST"}
        )
    size, weights = name.split("-")
    feeds = {
        "input_ids": np.zeros((1, 1), np.int64),
        "seqlens_k": np.full(1, context // 2, np.int32),
        "total_sequence_length": np.array(context // 2 + 1, np.int32),
    }

    def model() -> partita.Model:
        made = decoder(size, weights, context)  # type: ignore[arg-type]  # checked there
        made.reshape(
            {p.name: [1 if d == "batch" else d for d in p.shape or ()] for p in made.inputs}
        )
        return made

    halves = {"INFERENCE_PRECISION_HINT": "f16"}
    return Work(model, feeds, halves, {"HETERO_CONTEXT": context}, is_large=True)


def contestants(
    task: Work, devices: tuple[str, str], jobs: int, *, halves: bool
) -> tuple[dict[str, Batch], Decision | None]:
    """All that take turns, by name, and how HETERO chose."""
    core, found, decision = partita.Core(), {}, None
    for device in devices[:1] if task.is_large else devices:
        compiled = core.compile_model(task.model(), device, task.precision)
        found[device] = through(partita.AsyncInferQueue(compiled, jobs), task.feeds)
    names = ",".join(devices)
    if not task.is_large:
        spread = {"DEVICE_PROPERTIES": dict.fromkeys(devices, task.precision), **THROUGHPUT}
        compiled = core.compile_model(task.model(), f"MULTI:{names}", spread)
        found["whole on each"] = through(partita.AsyncInferQueue(compiled, jobs), task.feeds)
    properties = {"DEVICE_PROPERTIES": dict.fromkeys(devices, task.precision), **THROUGHPUT}
    placings = {"chosen": task.placing}
    if halves:
        placings = {"two halves": {"STRICT": True}, **placings}
    for label, config in placings.items():
        model = task.model()
        if label != "chosen":
            pin_alternately(model, HALVES, devices)
        compiled = core.compile_model(model, f"HETERO:{names}", {**properties, **config})
        found[label] = through(partita.AsyncInferQueue(compiled, jobs), task.feeds)
        decision = compiled.explain().decision
    return found, decision


def measure(name: str, devices: tuple[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Requests a second of each contestant."""
    start = time.perf_counter()
    task = work(name, options.context)
    batches, decision = contestants(task, devices, options.jobs, halves=options.halves)
    seconds = time.perf_counter() - start
    rates: dict[str, list[float]] = {label: [] for label in batches}
    for run in batches.values():
        run(options.jobs * 4)
    for _ in range(options.rounds):
        for label, run in batches.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            run(options.requests)
            rates[label].append(options.requests / (time.perf_counter() - start))
    found = {label: statistics.median(each) for label, each in rates.items()}
    alone = max(found[device] for device in devices if device in found)
    over = {label: rate / alone for label, rate in found.items() if label not in devices}
    return {
        "model": name,
        "requests a second": found,
        "over the faster alone": over,
        "chosen": [] if decision is None else decision.lines(),
        "seconds to compile": seconds,
    }


def main() -> None:
    """Prints a line for every model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "models",
        nargs="*",
        default=["resnet50", "inception_v3"],
        help=f"{', '.join(BUILT)}; 1B-f16, 8B-q4",
    )
    parser.add_argument("--devices", default="OPENCL.0,OPENCL.1", help="two, separated by a comma")
    parser.add_argument("--requests", type=int, default=600, help="in a round")
    parser.add_argument("--jobs", type=int, default=12, help="requests in flight")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=1024, help="tokens of a decoder's cache")
    parser.add_argument(
        "--no-halves", dest="halves", action="store_false", help="not cut in two, for large models"
    )
    parser.add_argument("--json", action="store_true", help="an object a line")
    options = parser.parse_args()
    first, second = options.devices.split(",")
    for name in options.models:
        found = measure(name, (first, second), options)
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        rates = "  ".join(f"{k} {rate:.0f}/s" for k, rate in found["requests a second"].items())
        over = "  ".join(f"{k} {ratio:.2f}" for k, ratio in found["over the faster alone"].items())
        print(f"{name:14} {rates}   over the faster alone: {over}")
        print("\n".join(found["chosen"]))
        print(f"compiled in {found['seconds to compile']:.0f} s", flush=True)


if __name__ == "__main__":
    main()

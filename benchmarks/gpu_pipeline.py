"""Many requests at a time on two devices that share a network, beside each of them alone.

    python benchmarks/gpu_pipeline.py [--devices OPENCL.0,OPENCL.1] [--requests 600] [--jobs 6]
        [--rounds 5] [--json] [model ...]

Models: those of `cpu_networks` (default resnet50). All compute float32; inputs and outputs are on
the host. Contestants, in turns in one process, requests a second: each device alone with the same
number of requests in flight, HETERO with the first half of the operations pinned to one and the
second half to the other, and HETERO where it chooses by measured costs (HETERO_SCHEDULE=COST), both
with PERFORMANCE_HINT=THROUGHPUT. Printed: medians of the rounds, and over the faster device alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from cpu_networks import BUILT
from cpu_peers import PAUSE
from neighbours import pin_alternately
from throughput import THROUGHPUT, Batch, through

import partita

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
HALVES = 2


def contestants(name: str, devices: tuple[str, str], jobs: int) -> dict[str, Batch]:
    """All that take turns, by name."""
    proto, feeds = BUILT[name]()
    core = partita.Core()
    found = {}
    for device in devices:
        compiled = core.compile_model(core.read_model(proto), device, EXACT)
        found[device] = through(partita.AsyncInferQueue(compiled, jobs), feeds)
    both = f"HETERO:{','.join(devices)}"
    properties = {"DEVICE_PROPERTIES": dict.fromkeys(devices, EXACT), **THROUGHPUT}
    halves = core.read_model(proto)
    pin_alternately(halves, HALVES, devices)
    for label, model, config in (
        ("two halves", halves, {"STRICT": True}),
        ("COST", core.read_model(proto), {"HETERO_SCHEDULE": "COST"}),
    ):
        compiled = core.compile_model(model, both, {**properties, **config})
        found[label] = through(partita.AsyncInferQueue(compiled, jobs), feeds)
    return found


def measure(name: str, devices: tuple[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Requests a second of each contestant."""
    batches = contestants(name, devices, options.jobs)
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
    alone = max(found[device] for device in devices)
    over = {label: rate / alone for label, rate in found.items() if label not in devices}
    return {"model": name, "requests a second": found, "over the faster alone": over}


def main() -> None:
    """Prints a line for every model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["resnet50"], help=", ".join(BUILT))
    parser.add_argument("--devices", default="OPENCL.0,OPENCL.1", help="two, separated by a comma")
    parser.add_argument("--requests", type=int, default=600, help="in a round")
    parser.add_argument("--jobs", type=int, default=6, help="requests in flight")
    parser.add_argument("--rounds", type=int, default=5)
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
        print(f"{name:14} {rates}   over the faster alone: {over}", flush=True)


if __name__ == "__main__":
    main()

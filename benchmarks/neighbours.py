"""A model cut between device CPU and another engine on the same processors, over both alone.

    python benchmarks/neighbours.py [--engine ORT] [--threads 2] [--rounds 12]
        [--processor] [--json] [model ...]

Models: those of `cpu_networks` (random weights; default resnet50). Engines: ORT, onnxruntime by the
example plugin; ORT-SPINS, the same with threads that keep looking for work, as is its default; OV,
OpenVINO by the example plugin. All compute float32 (Partita with EXECUTION_MODE_HINT=ACCURACY).
Operations in their order are cut into 2 and 8 equal runs that alternate between the two, with
either of them first; calls take turns in one process. Printed are medians in milliseconds, and each
cut's over the mean of both alone, with device CPU first, the other first, and their mean: that is
1.0 if cutting costs nothing, as each operation runs once on each. (One way round alone also tells
which engine is better at which half.) With --processor they
are times of the processors, which on a busy machine are comparable where wall time is not; they
tell what is computed and laid out, and not how long threads sleep for one another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpu_networks import BUILT
from cpu_peers import take_turns

import partita

EXAMPLES = Path(__file__).parents[1] / "examples"
PLUGINS = {"ORT": "onnxruntime", "ORT-SPINS": "onnxruntime", "OV": "openvino"}
PARTS = (2, 8)
UNPINNED = {"Constant", "ConstantOfShape", "Unsqueeze"}


def core_with(engine: str) -> tuple[partita.Core, str]:
    """A core that knows the example plugin, and the name of its device."""
    folder = EXAMPLES / f"partita-{PLUGINS[engine]}"
    sys.path.insert(0, str(folder))
    core = partita.Core()
    name = engine.partition("-")[0]
    if name not in core.available_devices:
        core.register_plugin(f"partita_{PLUGINS[engine]}", name)
    return core, name


def pin_alternately(model: partita.Model, parts: int, devices: tuple[str, str]) -> None:
    """Cuts the operations in their order into equal runs, for one device and the other in turn."""
    order = [op for op in model.ops if op.op_type not in UNPINNED]
    for index, op in enumerate(order):
        op.affinity = devices[index * parts // len(order) % 2]


def request_of(
    core: partita.Core, model: partita.Model, device: str, config: dict[str, Any], feeds: Any
) -> tuple[Callable[[], object], int]:
    """A call, and of how many submodels it is."""
    compiled = core.compile_model(model, device, config)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, partita.Tensor(array))
    request.infer()
    return request.infer, len(compiled.explain().subgraph_devices)


def measure(name: str, engine: str, threads: int, rounds: int, processor: bool) -> dict[str, Any]:
    """Milliseconds of both alone and of the cuts either way, of wall time or of the processors."""
    proto, feeds = BUILT[name]()
    core, other = core_with(engine)
    own = {"INFERENCE_NUM_THREADS": threads, "EXECUTION_MODE_HINT": "ACCURACY"}
    configs: dict[str, dict[str, Any]] = {"CPU": own, other: {}}
    if engine.startswith("ORT"):
        configs[other] = {"INFERENCE_NUM_THREADS": threads, "ALLOW_SPINNING": "SPINS" in engine}
    calls: dict[str, Callable[[], object]] = {}
    submodels = {}
    for device, config in configs.items():
        calls[device], submodels[device] = request_of(
            core, core.read_model(proto), device, config, feeds
        )
    config = {"DEVICE_PROPERTIES": configs, "STRICT": True}
    for parts, order in itertools.product(PARTS, (("CPU", other), (other, "CPU"))):
        model = core.read_model(proto)
        pin_alternately(model, parts, order)
        label = f"{parts} parts, {order[0]} first"
        calls[label], submodels[label] = request_of(
            core, model, f"HETERO:CPU,{other}", config, feeds
        )
    taken = take_turns(calls, rounds, time.process_time if processor else time.perf_counter)
    mean = (taken["CPU"] + taken[other]) / 2
    ratios = {
        f"{parts} parts": [taken[f"{parts} parts, {first} first"] / mean for first in configs]
        for parts in PARTS
    }
    return {
        "model": name,
        "engine": engine,
        "threads": threads,
        "clock": "processor" if processor else "wall",
        "ms": taken,
        "submodels": submodels,
        "over the mean of both alone": ratios,
        "mean of both ways": {label: statistics.fmean(both) for label, both in ratios.items()},
    }


def main() -> None:
    """Prints a line for every model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["resnet50"], help=", ".join(BUILT))
    parser.add_argument("--engine", choices=list(PLUGINS), default="ORT")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--processor", action="store_true", help="time of the processors")
    parser.add_argument("--json", action="store_true", help="an object a line")
    arguments = parser.parse_args()
    for name in arguments.models:
        given = arguments.engine, arguments.threads, arguments.rounds, arguments.processor
        found = measure(name, *given)
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        times = "  ".join(f"{label} {ms:.2f} ms" for label, ms in found["ms"].items())
        made = "  ".join(f"{label} {count}" for label, count in found["submodels"].items())
        print(f"{name} {arguments.engine}  {times}\n  submodels: {made}")
        for label, ratios in found["over the mean of both alone"].items():
            ways = " and ".join(f"{ratio:.3f}" for ratio in ratios)
            ratio = found["mean of both ways"][label]
            print(f"  {label} over the mean of both alone: {ways}, mean {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()

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
which engine is better at which half.) Beside these stand the same parts all on one engine, as calls
in a row: what they take beyond the engine alone it pays for being cut, by images that are laid out
anew and operations that are no longer computed together. The rest is what the change between two
costs: threads that wake, caches that hold the other's weights. With --processor times are of the
processors, which on a busy machine are comparable where wall time is not; they tell what is
computed and laid out, and not how long threads sleep for one another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cpu_networks import BUILT
from cpu_peers import take_turns

import partita
from partita.contract.device_model import DeviceModel
from partita.contract.runner import run_into
from partita.tensors.allocation import host_zeros

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
) -> tuple[Callable[[], object], partita.CompiledModel]:
    """A call, and the compiled model."""
    compiled = core.compile_model(model, device, config)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, partita.Tensor(array))
    request.infer()
    return request.infer, compiled


def chain_of(parts: Sequence[DeviceModel], feeds: Any) -> Callable[[], object]:
    """A call of submodels in their order, on tensors that stay the same."""
    tensors: dict[str, partita.HostTensor] = {
        name: partita.HostTensor(array) for name, array in feeds.items()
    }
    calls: list[Callable[[], object]] = []
    for part in parts:
        for port in part.outputs:
            if port.shape is None or port.dtype is None or not port.is_static:
                raise ValueError(f"The shape of '{port.name}' is not known before a run.")
            shape = tuple(size for size in port.shape if isinstance(size, int))
            tensors[port.name] = host_zeros(shape, port.dtype)
        inputs = [tensors[port.name] for port in part.inputs]
        outputs = [tensors[port.name] for port in part.outputs]
        runner = part.create_runner()
        run_into(runner, inputs, outputs)
        calls.append(runner.bind(inputs, outputs) or partial(run_into, runner, inputs, outputs))

    def run() -> None:
        for call in calls:
            call()

    return run


def on_one_engine(both: Sequence[partita.CompiledModel], device: str) -> list[DeviceModel]:
    """All parts on one device: every other one of either way round."""
    assemblies = [one.device_model.assembly for one in both]  # type: ignore[attr-defined]  # HETERO's
    return [
        next(
            made
            for assembly in assemblies
            for piece, made in zip(assembly.submodels, assembly.compiled, strict=True)
            if (piece.number, piece.device) == (number, device)
        )
        for number in range(1, 1 + len(assemblies[0].submodels))
    ]


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
        calls[device], _ = request_of(core, core.read_model(proto), device, config, feeds)
    config = {"DEVICE_PROPERTIES": configs, "STRICT": True}
    for parts in PARTS:
        both = []
        for order in (("CPU", other), (other, "CPU")):
            model = core.read_model(proto)
            pin_alternately(model, parts, order)
            label = f"{parts} parts, {order[0]} first"
            calls[label], compiled = request_of(core, model, f"HETERO:CPU,{other}", config, feeds)
            submodels[label] = len(compiled.explain().subgraph_devices)
            both.append(compiled)
        for device in configs:
            calls[f"{parts} parts on {device}"] = chain_of(on_one_engine(both, device), feeds)
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
        "all parts on one engine": {
            f"{parts} parts": [taken[f"{parts} parts on {device}"] / mean for device in configs]
            for parts in PARTS
        },
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
            cut = statistics.fmean(found["all parts on one engine"][label])
            print(f"  {label} over the mean of both alone: {ways}, mean {ratio:.3f}", end="")
            print(f"; each engine by itself cut so {cut:.3f}", flush=True)


if __name__ == "__main__":
    main()

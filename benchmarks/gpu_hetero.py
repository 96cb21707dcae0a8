"""HETERO over a GPU and CPU beside CPU alone, on models that a GPU cannot or should not take whole.

    python benchmarks/gpu_hetero.py [--device OPENCL] [--precision f16] [model ...]

Models: a detector with NonMaxSuppression, one with If and LSTM, a text detector and a recogniser.
Columns, in milliseconds a call, inputs and outputs on the host, calls taking turns: onnxruntime on
all cores; CPU alone; HETERO:GPU,CPU with every operation pinned to CPU; the same with what the GPU
takes on the GPU (PRIORITY); the same where measurements put each operation (COST). Then how many
operations the last two give to the GPU, how many times faster than CPU alone they are, and the
largest relative error of an output beside CPU's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from gpu_peers import Call, Feeds, host_call, take_turns
from models import cases

import partita

MODELS = ("zoo:picodet-layout", "zoo:silero-vad", "zoo:ppocr-det", "zoo:ppocr-rec")
PINNED = {"HETERO_PINS": ["re:.*=CPU"]}
COST = {"HETERO_SCHEDULE": "COST"}


def compiled_call(
    core: partita.Core, path: Any, feeds: Feeds, device: str, config: dict[str, Any]
) -> tuple[Call, list[np.ndarray[Any, Any]], partita.CompiledModel]:
    """A call on host tensors, its outputs, and the compiled model."""
    model = core.read_model(path)
    model.reshape({name: array.shape for name, array in feeds.items()})
    compiled = core.compile_model(model, device, config)
    request = compiled.create_infer_request()
    outputs = [np.array(x) for x in request.infer(feeds).to_tuple()]
    return lambda: request.infer(feeds), outputs, compiled


def measure(name: str, device: str, precision: str, rounds: int) -> None:
    """Prints the line of a model."""
    case = next(iter(cases([name])))
    core = partita.Core()
    calls: dict[str, Call] = {}
    model = onnx.load(str(case.path))
    calls["host"], _ = host_call(model, case.feeds)
    calls["CPU"], wanted, _ = compiled_call(core, case.path, case.feeds, "CPU", {})
    both = f"HETERO:{device},CPU"
    of_gpu = {"DEVICE_PROPERTIES": {device: {"INFERENCE_PRECISION_HINT": precision}}}
    taken, error = [], 0.0
    for label, config in (("pinned", PINNED), ("PRIORITY", {}), ("COST", COST)):
        calls[label], found, compiled = compiled_call(
            core, case.path, case.feeds, both, {**of_gpu, **config}
        )
        taken.append(_share(compiled, device))
        error = max([error, *(_error(a, b) for a, b in zip(found, wanted, strict=True))])
    times = take_turns(calls, rounds)
    columns = [f"{times[label]:9.3f}" for label in _COLUMNS]
    ratios = [times["CPU"] / times[label] for label in ("PRIORITY", "COST")]
    shares = [f"{share:>9}" for share in taken[1:]]
    print(f"{name:20}", *columns, *shares, *(f"{r:8.2f}" for r in ratios), f"{error:9.1e}")


def _share(compiled: partita.CompiledModel, device: str) -> str:
    """How many of its operations the device computes."""
    placed = [op.device for op in compiled.explain().ops if op.device != "-"]
    return f"{sum(name.startswith(device) for name in placed)}/{len(placed)}"


def _error(found: Any, wanted: Any) -> float:
    if found.shape != wanted.shape:
        return float("nan")
    norm = float(np.linalg.norm(wanted.astype(np.float64)))
    return float(np.linalg.norm(found.astype(np.float64) - wanted)) / max(norm, 1e-30)


_COLUMNS = ("host", "CPU", "pinned", "PRIORITY", "COST")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the models named on the command line, or the four."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--device", default="OPENCL")
    parser.add_argument("--precision", default="f32", help="of the GPU: f32 or f16")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args(arguments)
    heads = (*_COLUMNS, "PRIORITY", "COST")
    print(f"{'ms':20}", *(f"{head:>9}" for head in heads), "PRIORITY     COST   error")
    for name in options.models:
        measure(name, options.device, options.precision, options.rounds)


if __name__ == "__main__":
    main()

"""Device OPENCL beside PyTorch on the same card, on networks that no kernel was fitted to.

    python benchmarks/more_networks.py FOLDER
    python benchmarks/torch_architectures.py --export FOLDER torchvision timm full_size
    python benchmarks/gpu_networks.py FOLDER [PATTERN ...] [--precision f16] [--minutes 9]

FOLDER holds the ONNX files of both; PyTorch runs the module that a file was written from, with the
same weights, channels last: eagerly, and replayed as a CUDA graph where it can be captured.
Inputs and outputs stay on the card, and a call is timed from the first enqueue to the end on the
host, as in `gpu_peers.py`. Prints milliseconds, the ratio of the faster of PyTorch's to Partita's,
seconds of compiling, and the Frobenius norm of the error of the first output relative to that of
what onnxruntime computes in float32: of Partita's and of PyTorch's.
Modules that do not run as halves run under autocast, and say so.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import more_networks
import numpy as np
import onnx
import torch
import torch_architectures
from gpu_peers import Array, cuda_calls, host_call, partita_call, take_turns
from torch.utils._pytree import tree_leaves

Made = tuple[Any, dict[str, torch.Tensor]]


def main() -> None:
    """Prints a row for each file, and the geometric mean of the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*", help="only names that hold one of these")
    parser.add_argument("--precision", choices=("f32", "f16"), default="f16")
    parser.add_argument("--device", default="OPENCL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60, help="begin no network after these")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    print(f"{torch.cuda.get_device_name()}, {options.precision}, PyTorch {torch.__version__}")
    print(f"{'ms':42} {'eager':>9} {'graph':>9} {'partita':>9} ratio compile  errors")
    ratios = []
    for name, keywords, make in modules():
        path = options.folder / f"{name}.onnx"
        if not path.exists() or not more_networks.chosen(name, options.patterns):
            continue
        if time.monotonic() > end:
            break
        try:
            ratios.append(row(path, keywords, make, options))
        except Exception as error:  # noqa: BLE001  (whatever it is, the others are measured)
            print(f"{name:42} {type(error).__name__}: {error}".replace("\n", " ")[:300], flush=True)
    print(f"geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.2f}")


def modules() -> Iterator[tuple[str, bool, Callable[[], Made]]]:
    """The networks of both scripts: a file's name, whether inputs go by keywords, and a maker."""
    for name, network in more_networks.networks():
        yield name, network.by_keywords, partial(more_networks.prepared, network)
    for name in torch_architectures.names():
        yield name.replace("/", "_"), False, partial(torch_architectures.prepared, name)


def row(path: Path, keywords: bool, make: Callable[[], Made], options: argparse.Namespace) -> float:
    """Prints the row of a network; its ratio."""
    module, inputs = make()
    model = onnx.load(path)
    ports = [port.name for port in model.graph.input]
    given = [inputs[n] for n in ports] if keywords else inputs.values()
    feeds = {n: tensor.numpy() for n, tensor in zip(ports, given, strict=True)}
    reference = host_call(model, feeds)[1]
    start = time.perf_counter()
    call, result = partita_call(model, feeds, options.device, options.precision)
    seconds = time.perf_counter() - start
    function, placed, note = on_card(module, keywords, inputs, options.precision)
    with torch.inference_mode():
        expected = function(*placed)[0].float().cpu().numpy()
    calls = cuda_calls(function, placed)
    taken = take_turns({**calls, "partita": call}, options.rounds)
    ratio = min(taken[label] for label in calls) / taken["partita"]
    columns = [f"{taken.get(label, float('nan')):9.3f}" for label in ("eager", "graph", "partita")]
    errors = f"{relative(result, reference):.0e} {relative(expected, reference):.0e}"
    print(f"{path.stem:42}", *columns, f"{ratio:5.2f} {seconds:7.1f}  {errors} {note}", flush=True)
    return ratio


def on_card(
    module: Any, keywords: bool, inputs: dict[str, torch.Tensor], precision: str
) -> tuple[Callable[..., list[torch.Tensor]], list[torch.Tensor], str]:
    """A function of placed inputs, these inputs, and a note where halves run under autocast."""
    module = module.cuda()
    if all(weight.ndim in (0, 1, 2, 4) for weight in module.parameters()):
        module = module.to(memory_format=torch.channels_last)
    names, placed = list(inputs), [tensor.cuda() for tensor in inputs.values()]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        named = dict(zip(names, tensors, strict=True)) if keywords else {}
        result = module(**named) if keywords else module(*tensors)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    if precision != "f16":
        return function, placed, ""
    module, floats = module.half(), placed
    placed = [tensor.half() if tensor.is_floating_point() else tensor for tensor in floats]
    try:
        with torch.inference_mode():
            function(*placed)
    except RuntimeError:
        module = module.float()
        return torch.autocast("cuda", torch.float16)(function), floats, "autocast"
    return function, placed, ""


def relative(found: Array, reference: Array) -> float:
    """The norm of the error over that of the reference."""
    exact = reference.astype(np.float64)
    found = np.asarray(found, np.float64).reshape(exact.shape)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


if __name__ == "__main__":
    main()

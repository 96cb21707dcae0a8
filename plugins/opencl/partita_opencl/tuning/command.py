"""``partita tune``: measures which tiles are the fastest for a model's products, and keeps that."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from partita import Core
from partita.cli import workload
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_model,
    add_shapes,
    positive_int,
    properties_of,
)
from partita.cli.output import Output
from partita.errors import PropertyError

_RUNS = 7
GAIN = 0.97
"""A choice is noted if it takes at most this part of the time of the cost model's choice."""


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "tune",
        run,
        "measures the fastest tiles for a model's products on an OPENCL device, and keeps them",
        [
            "partita tune model.onnx -d OPENCL",
            "partita tune light:resnet50 -d GPU.1 --property INFERENCE_PRECISION_HINT=f16",
        ],
    )
    add_model(parser)
    add_device(parser)
    add_shapes(parser)
    workload.add_inputs(parser)
    parser.add_argument(
        "--candidates",
        type=positive_int,
        default=8,
        metavar="N",
        help="how many of the cost model's best to try for each product (default: 8)",
    )
    parser.set_defaults(device="OPENCL")


def run(args: argparse.Namespace, out: Output) -> int:
    """Measures, keeps and prints."""
    from partita_opencl.device.device import find_device
    from partita_opencl.tuning.database import keep

    core = Core()
    kind, _, number = core.resolve_device(args.device).partition(".")
    if kind != "OPENCL":
        raise PropertyError(
            f"'partita tune' measures devices of OPENCL, and '{args.device}' is {kind}. Name an "
            "OPENCL device, e.g. -d OPENCL.0."
        )
    work = workload.load(args, core, out)
    properties = {**properties_of(args), "PERF_COUNT": True}
    times = _measure(core, work, args.device, properties, args.candidates, out)
    better, before, after = winning_choices(times)
    path = keep(find_device(number).identity, better)
    result = {
        "device": args.device,
        "products": len(times),
        "improved": len(better),
        "before_us": round(before, 1),
        "after_us": round(after, 1),
        "file": None if path is None else str(path),
        "choices": better,
    }
    if args.json:
        out.json(result)
        return 0
    out.facts(
        {
            **{key: result[key] for key in ("device", "products", "improved")},
            "time of all products": f"{after:.0f} us, was {before:.0f} us",
            "kept in": "nothing: the cache is turned off" if path is None else str(path),
        }
    )
    return 0


Times = Mapping[str, Mapping[str, float]]
"""Key of a product to choice to its shortest time in microseconds; the first is the model's."""


def _measure(
    core: Core,
    work: workload.Workload,
    device: str,
    properties: Mapping[str, Any],
    candidates: int,
    out: Output,
) -> Times:
    """Compiles and runs the model once for every rank of choices.

    Args:
        core: Compiles it.
        work: The model and its inputs.
        device: An OPENCL device.
        properties: What to compile with.
        candidates: How many of the choices of each product are tried, the best by estimate first.
        out: Shows how far it is.
    """
    from partita_opencl.tuning.database import trying

    times: dict[str, dict[str, float]] = {}
    with out.progress("trying tiles", candidates) as advance:
        for rank in range(candidates):
            with trying(rank) as trial:
                request = core.compile_model(work.model, device, properties).create_infer_request()
                spent: dict[str, float] = {}
                for _ in range(_RUNS):
                    request.infer(dict(work.feeds))
                    for info in request.get_profiling_info():
                        known = spent.get(info.node_name, float("inf"))
                        spent[info.node_name] = min(known, info.real_time_us or known)
            for operation, (key, choice) in trial.taken.items():
                if operation in spent:
                    of_key = times.setdefault(key, {})
                    of_key[choice] = min(of_key.get(choice, float("inf")), spent[operation])
            advance(rank + 1)
    return times


def winning_choices(times: Times) -> tuple[dict[str, str], float, float]:
    """Choices that beat the first ones, and the sums of times with those and with the winners."""
    better: dict[str, str] = {}
    before = after = 0.0
    for key, of_key in times.items():
        first, best = next(iter(of_key.values())), min(of_key, key=of_key.__getitem__)
        before += first
        if of_key[best] <= GAIN * first:
            better[key] = best
            after += of_key[best]
        else:
            after += first
    return better, before, after

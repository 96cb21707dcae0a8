"""``partita bisect``: the first operation that is out of tolerance, as a model of its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from partita import Core
from partita.bisection import Bisection, bisect
from partita.cli import workload
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    add_model,
    add_shapes,
    device_of,
    output_file,
    properties_of,
    property_options,
)
from partita.cli.output import Output, plain


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "bisect",
        run,
        "finds the first operation, or the fewest together, that are out of tolerance",
        [
            "partita bisect model.onnx -d HETERO:GPU,CPU",
            "partita bisect model.onnx -d GPU --property INFERENCE_PRECISION_HINT=f16 --rtol 1e-2",
            "partita bisect model.onnx -d CPU --against OPENCL -i x=x.npy --output repro.onnx",
            "partita run repro.onnx -i repro/test_data_set_0 -d CPU --compare OPENCL",
        ],
    )
    add_model(parser)
    add_device(parser)
    add_device_options(parser)
    add_shapes(parser)
    workload.add_inputs(parser)
    parser.add_argument(
        "--against",
        metavar="DEVICE",
        help="the device that is taken to be right (default: the installed reference device)",
    )
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative tolerance (1e-3)")
    parser.add_argument(
        "--atol",
        type=float,
        default=1e-4,
        help="absolute tolerance (1e-4); integers may be so far apart, so by default are equal",
    )
    parser.add_argument(
        "--output",
        type=output_file(".onnx"),
        metavar="FILE.onnx",
        help="write the fault as a model; its inputs and expected outputs go next to it, into "
        "FILE/test_data_set_0",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Searches and prints; returns 1 if something is out of tolerance."""
    core = Core()
    device = device_of(args, core)
    against = args.against or core.reference_device
    core.resolve_device(against)
    work = workload.load(args, core, out)
    with out.progress(f"bisecting {device}", 1.0) as advance:
        result = bisect(
            work.model,
            device,
            work.feeds,
            against=against,
            rtol=args.rtol,
            atol=args.atol,
            config=properties_of(args),
            output=args.output,
            core=core,
            progress=lambda what, share: advance(share),
        )
    if args.json:
        out.json({**plain(result), "ok": result.ok})
    else:
        _print(result, args.properties, out)
    return 0 if result.ok else 1


def _print(result: Bisection, properties: Sequence[tuple[str, Any]], out: Output) -> None:
    out.text(str(result))
    finding = result.finding
    if finding is not None and finding.model is not None:
        verdict = "shows" if finding.verified else "does NOT show"
        out.text(
            "",
            f"written to {finding.model}, with data in {finding.data}; "
            f"read again, it {verdict} the fault:",
            f"  partita run {finding.model} -i {finding.data} -d {result.device}"
            f"{property_options(properties)} "
            f"--compare {result.against} --rtol {result.rtol:g} --atol {result.atol:g}",
        )

"""``partita benchmark``: latency and throughput, and the performance counters."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partita import (
    AsyncInferQueue,
    CompiledModel,
    Core,
    InferRequest,
    ProfilingInfo,
    format_counters,
)
from partita.cli import workload
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    add_model,
    add_shapes,
    device_of,
    positive_float,
    positive_int,
    properties_of,
)
from partita.cli.output import Output
from partita.progress import Advance

_DEFAULT_SECONDS = 5.0


class RunLength(NamedTuple):
    """How long is measured.

    Attributes:
        inferences: After so many it ends; ``None`` if it ends after a time.
        seconds: After so many it ends otherwise.
    """

    inferences: int | None = None
    seconds: float = 0.0

    @property
    def total(self) -> float:
        """The inferences or seconds at which it ends."""
        return self.seconds if self.inferences is None else self.inferences

    def done(self, inferences: int, seconds: float) -> float:
        """How much of the total is done after so many inferences, which took so many seconds."""
        return seconds if self.inferences is None else inferences


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured.

    Attributes:
        latencies_ms: One per inference.
        wall_s: From the first start to the last end.
        requests: How many ran at the same time.
        counters: Of the last inference, if they were asked for.
    """

    latencies_ms: list[float]
    wall_s: float
    requests: int
    counters: list[ProfilingInfo]

    def summary(self) -> dict[str, float]:
        """Latencies in milliseconds, and inferences per second."""
        latencies = np.array(self.latencies_ms)
        return {
            "median_ms": float(np.median(latencies)),
            "min_ms": float(latencies.min()),
            "mean_ms": float(latencies.mean()),
            "p90_ms": float(np.percentile(latencies, 90)),
            "p99_ms": float(np.percentile(latencies, 99)),
            "throughput": len(latencies) / self.wall_s,
        }


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "benchmark",
        run,
        "measures how fast a model runs on a device",
        [
            "partita benchmark model.onnx -d HETERO:GPU,CPU",
            "partita benchmark zoo:ppocr-rec -d CPU -niter 100 -pc",
            "partita benchmark light:resnet50 -d CPU -t 10 -api async -nireq 4",
        ],
    )
    add_model(parser)
    add_device(parser)
    add_device_options(parser)
    add_shapes(parser)
    workload.add_inputs(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "-niter", "--niter", type=positive_int, metavar="N", help="number of inferences"
    )
    length.add_argument(
        "-t",
        "--time",
        type=positive_float,
        metavar="SECONDS",
        help=f"how long to measure (default: {_DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "-api",
        "--api",
        choices=("sync", "async"),
        help="one inference after the other, or several requests at the same time "
        "(default: async if -nireq is given)",
    )
    parser.add_argument(
        "-nireq",
        "--nireq",
        type=positive_int,
        metavar="N",
        help="requests at the same time (default for async: what the device recommends)",
    )
    parser.add_argument(
        "-pc",
        "--perf-counts",
        dest="counters",
        action="store_true",
        help="print the time of every operation, where models are split per subgraph",
    )
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace, out: Output) -> int:
    """Measures and prints."""
    api = args.api or ("async" if args.nireq else "sync")
    if api == "sync" and args.nireq not in (None, 1):
        args.parser.error("-nireq needs -api async: one inference after the other is one request")
    core = Core()
    device = device_of(args, core)
    work = workload.load(args, core, out)
    properties = {"PERF_COUNT": args.counters} if args.counters else {}
    compiled, compile_ms = workload.compile_for(
        core, work.model, device, {**properties, **properties_of(args)}, out
    )
    start = time.perf_counter()
    request = compiled.create_infer_request()
    request.infer(dict(work.feeds))
    first_ms = workload.milliseconds(start)
    request.infer(dict(work.feeds))  # what is made lazily in the second run is no steady state
    length = RunLength(args.niter, args.time or _DEFAULT_SECONDS)
    with out.progress("measuring", length.total) as advance:
        if api == "sync":
            timing = measure_sync(request, work.feeds, length, advance)
        else:
            timing = measure_async(compiled, work.feeds, length, args.nireq or 0, advance)
    report = {
        "model": args.model,
        "device": device,
        "execution_devices": compiled.execution_devices,
        "placement": compiled.explain().summary(),
        "api": api,
        "requests": timing.requests,
        "inferences": len(timing.latencies_ms),
        "wall_s": timing.wall_s,
        "read_ms": work.read_ms,
        "compile_ms": compile_ms,
        "first_ms": first_ms,
        **timing.summary(),
        "counters": timing.counters,
    }
    if args.json:
        out.json(report)
        return 0
    if args.counters:
        out.text(format_counters(timing.counters), "")
    out.facts(_facts(report))
    return 0


def _facts(report: Mapping[str, Any]) -> dict[str, str]:
    """For people, what JSON tells programs."""
    plural = "" if report["requests"] == 1 else "s"
    return {
        "device": f"{report['device']} ({', '.join(report['execution_devices'])})",
        "placement": report["placement"],
        "read": f"{report['read_ms']:.0f} ms",
        "compile": f"{report['compile_ms']:.0f} ms",
        "first": f"{report['first_ms']:.2f} ms",
        "runs": f"{report['inferences']} in {report['wall_s']:.2f} s, {report['api']}, "
        f"{report['requests']} request{plural}",
        "latency": "median {median_ms:.3f}, min {min_ms:.3f}, mean {mean_ms:.3f}, "
        "p90 {p90_ms:.3f}, p99 {p99_ms:.3f} ms".format(**report),
        "throughput": f"{report['throughput']:.2f} inferences/s",
    }


def measure_sync(
    request: InferRequest, feeds: Mapping[str, Any], length: RunLength, advance: Advance
) -> Timing:
    """One inference after the other.

    Args:
        request: What is measured; the first run of a new one makes its buffers.
        feeds: By input name, the arrays of each inference.
        length: When it ends.
        advance: Is called some times a second with what is done of the length's total.
    """
    inputs = dict(feeds)
    latencies: list[float] = []
    start = now = shown = time.perf_counter()
    while length.done(len(latencies), now - start) < length.total:
        request.infer(inputs, share_outputs=True)
        end = time.perf_counter()
        latencies.append((end - now) * 1e3)
        if end - shown > 0.25:
            shown = end
            advance(length.done(len(latencies), end - start))
        now = time.perf_counter()
    return Timing(latencies, now - start, 1, list(request.get_profiling_info()))


def measure_async(
    compiled: CompiledModel,
    feeds: Mapping[str, Any],
    length: RunLength,
    jobs: int,
    advance: Advance,
) -> Timing:
    """Several requests kept busy.

    Args:
        compiled: What is measured.
        feeds: By input name, the arrays of each inference.
        length: When no further inference is started.
        jobs: How many requests there are; 0 for as many as the device recommends.
        advance: Is called some times a second with what is done of the length's total.
    """
    inputs = dict(feeds)
    latencies: list[float] = []
    queue = AsyncInferQueue(compiled, jobs)
    for _ in range(len(queue)):  # each request's first run makes its buffers
        queue.start_async(inputs, share_inputs=True)
    queue.wait_all()
    queue.set_callback(lambda request, _: latencies.append(request.latency))
    started = 0
    start = now = shown = time.perf_counter()
    while length.done(started, now - start) < length.total:
        queue.start_async(inputs, share_inputs=True)
        started += 1
        now = time.perf_counter()
        if now - shown > 0.25:
            shown = now
            advance(length.done(started, now - start))
    queue.wait_all()
    wall = time.perf_counter() - start
    return Timing(latencies, wall, len(queue), list(queue[0].get_profiling_info()))

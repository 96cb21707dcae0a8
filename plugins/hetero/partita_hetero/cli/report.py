"""``partita report``: where everything runs and why, what it took, and when, on one page."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita import Core, Explanation, ProfilingInfo, format_counters
from partita.cli import workload
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    add_model,
    add_shapes,
    device_of,
    positive_int,
    properties_of,
)
from partita.cli.output import Output
from partita.contract.execution import Execution
from partita.printable import html_text
from partita.runtime.input_conversion import to_tensor

if TYPE_CHECKING:
    from partita_hetero.device_model import HeteroModel
    from partita_hetero.planner.simulation.timeline import Timeline


@dataclass(frozen=True)
class Report:
    """What a report tells.

    Attributes:
        model: As named on the command line.
        device: The device string.
        properties: What the model was compiled with.
        compile_ms: Time of compiling.
        median_ms: Median of the inferences.
        explanation: Where every operation runs and why.
        counters: Of the last inference.
        execution: By what its steps were executed.
        timelines: The last inference, and what the cost model foresaw of it; none for devices that
            are not made of others.
    """

    model: str
    device: str
    properties: dict[str, Any]
    compile_ms: float
    median_ms: float
    explanation: Explanation
    counters: Sequence[ProfilingInfo]
    execution: Execution
    timelines: Sequence[Timeline]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "model": self.model,
            "device": self.device,
            "properties": self.properties,
            "compile_ms": self.compile_ms,
            "median_ms": self.median_ms,
            "explanation": self.explanation.to_dict(),
            "counters": self.counters,
            "execution": self.execution,
            "timelines": [timeline.to_json() for timeline in self.timelines],
        }

    def to_html(self) -> str:
        """As a page that needs nothing from elsewhere."""
        from partita_hetero.reports.gantt import to_svg

        title = f"{self.model} on {self.device}"
        why = self.explanation
        decision = [] if why.decision is None else why.decision.lines()
        shapes = [f"planned for inputs near {why.planned_for}"] if why.planned_for else []
        shapes += [f"near {where}: {one.summary()}" for where, one in why.near.items()]
        crossing = [
            [b.value, _part(b.source), _part(b.target), b.how, "" if b.nbytes is None else b.nbytes]
            for b in why.boundaries
        ]
        ops = [
            [op.name, op.op_type, op.device, _part(op.subgraph), op.why, op.elsewhere, op.change]
            for op in why.ops
        ]
        chart = [to_svg(self.timelines)] if self.timelines else []
        return "\n".join(
            [
                f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{html_text(title)}'
                "</title>",
                "<style>body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}"
                "td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd}"
                "pre{background:#f4f4f4;padding:1em;overflow:auto}</style>",
                f"<h1>{html_text(title)}</h1>",
                f"<p>{html_text(why.summary())}</p>",
                f"<p>median {self.median_ms:.3f} ms, compiled in {self.compile_ms:.0f} ms</p>",
                *(f"<p>{html_text(line)}</p>" for line in [*why.notes, *shapes, *decision]),
                *chart,
                "<h2>Operations</h2>",
                *_table(
                    ["op", "type", "device", "part", "why", "elsewhere", "what would change it"],
                    ops,
                ),
                "<h2>Tensors that cross</h2>",
                *_table(["value", "from part", "to part", "how", "bytes"], crossing),
                "<h2>Steps of the last inference</h2>",
                *_table(
                    ["part", "step", "executed by"],
                    [[_part(part), *rest] for part, *rest in self.execution.rows()],
                ),
                "<h2>Counters</h2>",
                f"<pre>{html_text(format_counters(self.counters))}</pre></html>",
                "",
            ]
        )


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "report",
        run,
        "runs a model and tells where everything ran, why, how long it took, and when",
        [
            "partita report model.onnx -d HETERO:GPU,CPU --output report.html",
            "partita report zoo:ppocr-rec -d HETERO:OPENCL,CPU --property HETERO_SCHEDULE=COST",
            "partita report model.onnx -d HETERO:GPU,CPU --lock plan.toml --json",
        ],
    )
    add_model(parser)
    add_device(parser)
    add_device_options(parser)
    add_shapes(parser)
    workload.add_inputs(parser)
    parser.add_argument(
        *("-niter", "--niter"),
        type=positive_int,
        default=10,
        metavar="N",
        help="number of inferences (10)",
    )
    parser.add_argument("--output", type=Path, metavar="REPORT.html", help="write it as a page")


def run(args: argparse.Namespace, out: Output) -> int:
    """Compiles, infers, prints or writes."""
    report = _make(args, out)
    if args.output:
        args.output.write_text(report.to_html(), encoding="utf-8")
        out.note(f"wrote {args.output}")
    if args.json:
        out.json(report.to_dict())
        return 0
    out.text(str(report.explanation), "", format_counters(report.counters), "")
    out.table(
        ["part", "step", "executed by"],
        [[_part(part), *rest] for part, *rest in report.execution.rows()],
    )
    out.text("")
    for timeline in report.timelines:
        loads = ", ".join(f"{name} {us:.0f} us" for name, us in timeline.load_us().items())
        out.text(f"{timeline.name}: {timeline.latency_us:.0f} us; in use: {loads}")
    out.text(f"median {report.median_ms:.3f} ms of {args.niter} inferences")
    return 0


def _make(args: argparse.Namespace, out: Output) -> Report:
    from partita_hetero.device_model import HeteroModel

    core = Core()
    device = device_of(args, core)
    work = workload.load(args, core, out)
    properties = properties_of(args)
    compiled, compile_ms = workload.compile_for(
        core, work.model, device, {**properties, "PERF_COUNT": True}, out
    )
    request = compiled.create_infer_request()
    request.infer(dict(work.feeds))  # the first one makes buffers
    times = []
    for _ in range(args.niter):
        start = time.perf_counter()
        request.infer(dict(work.feeds), share_outputs=True)
        times.append(workload.milliseconds(start))
    timelines: list[Timeline] = []
    placed, why = compiled.device_model, compiled.explain()
    if isinstance(placed, HeteroModel):
        timelines = [t for t in (placed.predicted, placed.measured) if t is not None]
        if why.decision is None:  # measurements have looked at this already
            why = replace(why, notes=[*why.notes, *_neighbours(placed, work.feeds)])
    return Report(
        args.model,
        device,
        properties,
        compile_ms,
        statistics.median(times),
        why,
        list(request.get_profiling_info()),
        request.explain_execution(),
        timelines,
    )


def _neighbours(placed: HeteroModel, feeds: Mapping[str, Any]) -> list[str]:
    """What is to be told of devices that slow each other down."""
    from partita_hetero.runtime.part_failure import PartFailedError
    from partita_hetero.tuning.neighbours import slowdowns

    compilation = placed.compilation
    inputs = [to_tensor(port, feeds[port.name], False) for port in placed.inputs]
    try:
        found = slowdowns(compilation, placed.assembly, inputs)
    except PartFailedError as failure:
        return [f"How devices run beside each other is not known: {failure.error}"]
    return [one.told(compilation.devices.core) for one in found]


def _part(number: int | None) -> str:
    return "" if number is None else str(number)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html_text(str(c))}</{tag}>" for c in cells) + "</tr>"

    return ["<table>", line(columns, "th"), *(line(row, "td") for row in rows), "</table>"]

"""``partita report``: where everything runs and why, what it took, and when, on one page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita import CompiledModel, Core, Explanation, format_counters
from partita.cli import workload
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    add_model,
    add_shapes,
    output_file,
    positive_int,
    properties_of,
)
from partita.cli.output import Output, plain
from partita.contract.profiling import DeviceSpan
from partita.errors import ReportError
from partita.runtime.binding.input_conversion import to_tensor
from partita.system.written_file import writing
from partita.trace import chrome_trace

if TYPE_CHECKING:
    from partita_hetero.device_model import HeteroModel
    from partita_hetero.reports.record import DeviceCost, PlacementRecord
    from partita_hetero.reports.run_record import Run
    from partita_hetero.tuning.sized_model import SizedModel


@dataclass(frozen=True)
class Report:
    """What a report tells.

    Attributes:
        properties: What the model was compiled with.
        compile_ms: Time of compiling.
        explanation: Where every operation runs and why.
        run: The run in the middle by its time, of which the record tells.
        trace: All runs, as a file of traces holds them.
        record: What the page shows.
    """

    properties: dict[str, Any]
    compile_ms: float
    explanation: Explanation
    run: Run
    trace: dict[str, Any]
    record: PlacementRecord

    def to_dict(self) -> dict[str, Any]:
        """As plain data, of which the record is read back."""
        return {
            **plain(self.record),
            "properties": self.properties,
            "compile_ms": self.compile_ms,
            "median_ms": self.run.us / 1e3,
            "explanation": self.explanation.to_dict(),
            "counters": self.run.counters,
            "execution": self.run.execution,
            "timelines": [timeline.to_json() for timeline in self.record.timelines],
        }


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "report",
        run,
        "runs a model and tells where everything ran, why, how long it took, and when",
        [
            "partita report model.onnx -d HETERO:GPU,CPU --output report.html",
            "partita report model.onnx -d HETERO:GPU,CPU --elsewhere --output report.html",
            "partita report model.onnx -d HETERO:GPU,CPU --compare CPU --output both.html",
            "partita report zoo:ppocr-rec -d HETERO:OPENCL,CPU --property HETERO_SCHEDULE=COST",
            "partita report model.onnx -d HETERO:GPU,CPU --lock plan.toml --output before.json",
            "partita report model.onnx -d HETERO:GPU,CPU --trace run.json",
            "partita report before.json --compare after.json --output both.html",
        ],
    )
    add_model(parser)
    add_device(parser)
    add_device_options(parser)
    add_shapes(parser)
    workload.add_inputs(parser)
    parser.add_argument(
        "-niter",
        "--niter",
        type=positive_int,
        default=10,
        metavar="N",
        help="number of inferences (10), of which the one with the median time is shown",
    )
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="also measure what each operation takes on the other devices of HETERO",
    )
    parser.add_argument(
        "--compare",
        metavar="DEVICE|REPORT.json",
        help="a second placement on the same page: of the model on another device, without the "
        "properties given, or a report that --json has written; MODEL may be such a file too",
    )
    parser.add_argument(
        "--output",
        type=output_file("", ".html", ".htm", ".json"),
        metavar="REPORT.html",
        help="write it as a page, or as .json to compare another one with it later",
    )
    parser.add_argument(
        "--trace",
        type=output_file(),
        metavar="TRACE.json",
        help="write when everything ran, on all devices and nodes, for Perfetto",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Compiles and infers, or reads what was saved; prints or writes."""
    from partita_hetero.reports.placement_page import placement_page

    as_page = args.output is not None and not _is_saved(args.output)
    if args.compare and not as_page:
        raise ReportError("--compare is for a page: name its file with --output REPORT.html.")
    if args.trace and _is_saved(args.model):
        raise ReportError("--trace is of runs, and a saved report has none: name a model.")
    second = _second(args, out)  # what is wrong with it is told before anything is measured
    report: Report | None = None
    if _is_saved(args.model):
        record = _saved(args)
    else:
        report = _measure(args, args.device, properties_of(args), args.elsewhere, out)
        record = report.record
    records = [record, *([] if second is None else [second()])]
    if args.output:
        saved = "" if report is None else json.dumps(plain(report.to_dict()), allow_nan=False)
        text = placement_page(records) if as_page else saved
        with writing(args.output):
            args.output.write_text(text, encoding="utf-8")
        out.note(f"wrote {args.output}")
    if report is None:
        return 0
    if args.trace:
        with writing(args.trace):
            args.trace.write_text(json.dumps(report.trace), encoding="utf-8")
        out.note(f"wrote {args.trace}")
    if args.json:
        out.json(report.to_dict())
    else:
        _print(report, out)
    return 0


def _is_saved(name: str | Path) -> bool:
    return Path(name).suffix.lower() == ".json"


def _saved(args: argparse.Namespace) -> PlacementRecord:
    """The report that is named in place of a model.

    Raises:
        ReportError: It cannot be read, or nothing is to be made of it.
    """
    from partita_hetero.reports.record import load

    if not args.output or _is_saved(args.output) or args.json or args.elsewhere:
        raise ReportError(
            f"'{args.model}' is a saved report, of which only a page can be made: write --output "
            "REPORT.html, and neither --json nor --elsewhere."
        )
    return load(Path(args.model))


def _second(args: argparse.Namespace, out: Output) -> Callable[[], PlacementRecord] | None:
    """What gives the second placement, if there is one.

    Raises:
        DeviceError: There is no such device.
        ReportError: It cannot be read, or it is a device and the first one is a saved report.
    """
    from partita_hetero.reports.record import load

    if not args.compare:
        return None
    if _is_saved(args.compare):
        saved = load(Path(args.compare))
        return lambda: saved
    if _is_saved(args.model):
        raise ReportError(
            f"'{args.compare}' is not a saved report: a saved one, as '{args.model}' is, can be "
            "compared with another .json file."
        )
    Core().resolve_device(args.compare)
    return lambda: _measure(args, args.compare, {}, False, out).record


def _print(report: Report, out: Output) -> None:
    record = report.record
    out.explanation(report.explanation)
    out.text("", format_counters(report.run.counters), "")
    out.table(
        ["submodel", "step", "executed by"],
        [["" if number is None else number, *rest] for number, *rest in record.steps],
    )
    out.text("")
    costs = [(op.name, op.elsewhere) for op in record.operations if op.elsewhere]
    if costs:
        devices = list(dict.fromkeys(device for _, there in costs for device in there))
        rows = [
            [name, *(f"{there[device].us:.1f}" if device in there else "" for device in devices)]
            for name, there in costs
        ]
        out.table(["operation", *(f"us on {device}" for device in devices)], rows)
        out.text("")
    for timeline in record.timelines:
        loads = ", ".join(f"{name} {us:.0f} us" for name, us in timeline.load_us().items())
        out.text(f"{timeline.name}: {timeline.latency_us:.0f} us; in use: {loads}")
    out.text(f"{record.run_us / 1e3:.3f} ms, {record.run}")


def _measure(
    args: argparse.Namespace,
    device: str | None,
    properties: dict[str, Any],
    elsewhere: bool,
    out: Output,
) -> Report:
    """Compiles, infers, and tells of the run in the middle."""
    from partita_hetero.device_model import HeteroModel
    from partita_hetero.reports.run_record import median_run, op_bytes, run_record

    core = Core()
    device = device or core.default_device
    core.resolve_device(device)  # wrong ones are told of before anything is downloaded
    if elsewhere and not core.accepts_property(device, "HETERO_SCHEDULE"):
        raise ReportError(f"'{device}' is one device; --elsewhere is for 'HETERO:{device},...'.")
    work = workload.load(args, core, out)
    compiled, compile_ms = workload.compile_for(
        core, work.model, device, {**properties, "PERF_COUNT": True}, out
    )
    placed = compiled.device_model
    hetero = placed if isinstance(placed, HeteroModel) else None
    runs = _runs(compiled, hetero, work.feeds, args.niter)
    why = compiled.explain()
    if hetero is not None and why.decision is None:  # measurements have looked at this already
        why = replace(why, notes=[*why.notes, *_neighbours(hetero, work.feeds)])
    sized = _sized(work if hetero is None else replace(work, model=hetero.compilation.model))
    times = sorted(one.us / 1e3 for one in runs)
    facts = {
        "times": f"{times[0]:.3f} to {times[-1]:.3f} ms",
        "compiled in": f"{compile_ms:.0f} ms",
        **{name: _written(value) for name, value in properties.items()},
    }
    record = run_record(
        args.model,
        device,
        runs,
        why,
        op_bytes(sized.op_graph, sized.value_bytes),
        _elsewhere(hetero, sized) if elsewhere and hetero is not None else {},
        None if hetero is None else hetero.predicted,
        facts,
    )
    spans = [span for one in runs for span in one.spans]
    trace = chrome_trace({f"{args.model} on {device}": spans})
    return Report(properties, compile_ms, why, median_run(runs), trace, record)


def _written(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _runs(
    compiled: CompiledModel, placed: HeteroModel | None, feeds: Mapping[str, Any], count: int
) -> list[Run]:
    """Runs as often as asked; what each of them took, and what was counted in it."""
    from partita_hetero.cost import clock
    from partita_hetero.reports.run_record import Run

    request = compiled.create_infer_request()
    request.infer(dict(feeds))  # the first one makes buffers
    runs = []
    for _ in range(count):
        start = clock.seconds()
        request.infer(dict(feeds), share_outputs=True)
        took = (clock.seconds() - start) * 1e6
        timeline = None if placed is None else placed.measured
        counters, execution = request.get_profiling_info(), request.explain_execution()
        device, name = compiled.device_model.device, compiled.device_model.model.name
        whole = DeviceSpan(device, name, start, start + took * 1e-6)
        spans = [whole, *request.device_spans()]
        runs.append(Run(took, counters, timeline, execution, spans))
    return runs


def _sized(work: workload.Workload) -> SizedModel:
    """The model at the shapes of its inputs."""
    from partita_hetero.tuning.sized_model import sized_at

    model = work.model
    if all(port.is_static for port in model.inputs):
        return sized_at(model, {})
    tensors = (port for port in model.inputs if port.shape is not None)
    return sized_at(model, {port.name: work.feeds[port.name].shape for port in tensors})


def _elsewhere(placed: HeteroModel, sized: SizedModel) -> Mapping[str, Mapping[str, DeviceCost]]:
    """What operations take on every device that takes them, as it is measured now or was before."""
    from partita_hetero.reports.run_record import costs_elsewhere
    from partita_hetero.tuning.scheduler import Scheduler

    compilation = placed.compilation
    lost = dict(compilation.inexact or {})
    return costs_elsewhere(Scheduler(compilation, sized, lost, []).problem())


def _neighbours(placed: HeteroModel, feeds: Mapping[str, Any]) -> list[str]:
    """The report on devices that slow each other down."""
    from partita_hetero.runtime.submodel_failure import SubmodelFailedError
    from partita_hetero.tuning.interference import slowdowns

    compilation = placed.compilation
    inputs = [to_tensor(port, feeds[port.name], False) for port in placed.inputs]
    try:
        found = slowdowns(compilation, placed.assembly, inputs)
    except SubmodelFailedError as failure:
        return [f"How devices run beside each other is not known: {failure.error}"]
    return [one.describe(compilation.devices.core) for one in found]

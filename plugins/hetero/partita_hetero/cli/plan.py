"""``partita plan``: the best placement by measured costs, or by a cost table without any device.

Of a decoder (a language model) nothing is run: layers are placed by memory and by the time of a
request, which their bytes and the speeds of the devices tell.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita import Core, DecoderOptions
from partita.cli.arguments import (
    MODEL_HELP,
    Commands,
    add_command,
    add_device,
    add_device_options,
    add_shapes,
    device_of,
    positive_float,
    positive_int,
    properties_of,
)
from partita.cli.feeds import reshape
from partita.cli.output import Output
from partita.devices import device_string
from partita.errors import PlanError
from partita.generate.caches.cache_types import CACHE_TYPES
from partita.generate.decoder import prepare
from partita.properties.schema import validate
from partita.system.written_file import writing
from partita.zoo.naming import resolve
from partita.zoo.store import Store
from partita_hetero.executors import executor_for
from partita_hetero.options.byte_sizes import format_bytes
from partita_hetero.options.command_options import MEMORY, PIN
from partita_hetero.options.pins import PinRule, read_rules
from partita_hetero.partition.decoder_layers import cache_inputs, model_context
from partita_hetero.planner.simulation.plan import OBJECTIVES, Objective

DEFAULT_CONTEXT = 4096
"""Tokens, where neither the user nor the model says how many."""

if TYPE_CHECKING:
    from partita.contract.explanation import Candidate
    from partita.model.model import Model
    from partita_hetero.placement.device_list import DeviceList
    from partita_hetero.planner.problem.problem import Problem
    from partita_hetero.planner.report.summary import PlanSummary
    from partita_hetero.tuning.plan_report import Planned
    from partita_hetero.tuning.scheduler import Scheduler


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "plan",
        run,
        "finds the best placement by measured costs, or by a table of costs without any device",
        [
            "partita plan model.onnx -d HETERO:GPU,CPU --lock plan.toml --gantt plan.html",
            "partita run model.onnx -d HETERO:GPU,CPU --lock plan.toml",
            "partita plan model.onnx -d HETERO:GPU,CPU --save-costs costs.json",
            "partita plan --costs costs.json --objective THROUGHPUT --memory GPU=2GiB",
            "partita plan --costs costs.json -d HETERO:NPU,CPU --pin 'type:Softmax=CPU?' --explain",
            "partita plan decoder.onnx -d HETERO:GPU,CPU --memory GPU=6GiB --context 8192",
        ],
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help=MODEL_HELP + "; may be left out with --costs"
    )
    add_device(parser)
    add_shapes(parser)
    add_device_options(parser, [PIN, MEMORY])
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="TABLE.json",
        help="what everything costs; its devices need not exist",
    )
    parser.add_argument(
        "--save-costs", type=Path, metavar="TABLE.json", help="write what everything costs"
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="one request step by step, with independent parts at the same time, or many requests "
        "at a time (default: as PERFORMANCE_HINT and HETERO_EXECUTOR say, otherwise LATENCY)",
    )
    _add_decoder_options(parser)
    parser.add_argument(
        "--time-limit",
        type=positive_float,
        default=10.0,
        metavar="SECONDS",
        help="how long to search (default: 10)",
    )
    parser.add_argument(
        "--lock",
        type=Path,
        dest="write_lock",
        metavar="PLAN.toml",
        help="write the placement as a lock file",
    )
    parser.add_argument(
        "--gantt",
        type=Path,
        metavar="PLAN.html",
        help="write a chart of the predicted run, as a page or as .svg",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="PLAN.json",
        help="write the predicted run for chrome://tracing and Perfetto",
    )
    parser.add_argument(
        "--explain", action="store_true", help="say for every task why it is where it is"
    )
    parser.set_defaults(parser=parser)


def _add_decoder_options(parser: argparse.ArgumentParser) -> None:
    """What a decoder is placed for."""
    parser.add_argument(
        "--context",
        type=positive_int,
        metavar="TOKENS",
        help="of a decoder: tokens that its cache must hold (default: as many as the model's "
        f"holds, or {DEFAULT_CONTEXT})",
    )
    parser.add_argument(
        "--cache-type",
        choices=CACHE_TYPES,
        help="of a decoder: type of its keys and values (default: the model's)",
    )
    parser.add_argument(
        "--prompt-tokens",
        type=positive_int,
        metavar="TOKENS",
        help="of a decoder: tokens of a prompt, in the request that it is placed for",
    )
    parser.add_argument(
        "--new-tokens",
        type=positive_int,
        metavar="TOKENS",
        help="of a decoder: tokens generated in that request",
    )
    parser.add_argument(
        "--chunk",
        type=positive_int,
        metavar="TOKENS",
        help="of a decoder: tokens of its prompt that one run reads at most (default: 512; for "
        "small models 256 or 128, as 'partita generate' reads them)",
    )


def _refuse_decoder_options(args: argparse.Namespace, model: Model) -> None:
    """Says that an option of decoders means nothing for a model without caches."""
    for option in ("context", "cache_type", "prompt_tokens", "new_tokens", "chunk"):
        if getattr(args, option):
            flag = option.replace("_", "-")
            raise PlanError(f"--{flag} is for decoders; '{model.name}' has no cache of tokens.")


def run(args: argparse.Namespace, out: Output) -> int:
    """Plans, prints and writes."""
    from partita_hetero.planner.problem import problem_file
    from partita_hetero.tuning.plan_report import Wishes, make_plan, race_plans

    if args.model is None and args.costs is None:
        args.parser.error("give a MODEL, or --costs")
    rules = read_rules(args.HETERO_PINS or ())
    objective = _objective_of(_config(args))
    if args.costs is not None:
        setting = _from_table(args, out)
        names = (device_string.parse(args.device).priorities or ()) if args.device else ()
        limits = dict(args.HETERO_MEMORY_LIMITS or ())
        wishes = Wishes(names, rules, limits, objective, args.time_limit)
        problem = problem_file.load(args.costs)
        if setting.model is not None:
            _check_table(problem, args.costs, setting.model, args.model)
        planned = make_plan(problem, wishes)
    else:
        core = Core()
        model = _read_model(args, core, out)
        if cache_inputs(model):
            return _plan_decoder(args, core, model, out)
        _refuse_decoder_options(args, model)
        setting, scheduler = _measured(args, core, model, out)
        rules = [setting.respelled(rule) for rule in rules]
        planned = race_plans(scheduler, Wishes((), rules, {}, objective, args.time_limit))
    _write(args, setting, planned, out)
    if args.json:
        out.json(planned.summary)
    else:
        _print(planned.summary, args.explain, out)
    return 0


@dataclass(frozen=True)
class _Setting:
    """What is planned for.

    Attributes:
        model: The model, if it is at hand.
        devices: The devices, if they are.
    """

    model: Model | None = None
    devices: DeviceList | None = None

    def drivers(self, problem: Problem) -> dict[str, str]:
        """Device to its driver, where known."""
        from partita_hetero.placement.constraints import driver_of

        if self.devices is None:
            return {}
        names = (device.name for device in problem.devices)
        return {name: driver_of(self.devices, name) for name in names}

    def respelled(self, rule: PinRule) -> PinRule:
        """A pin with its device named as in the device list."""
        from partita_hetero.placement.constraints import Spelling

        if self.devices is None:
            return rule
        name = Spelling(self.devices).of(rule.device, f"The pin '{rule}'")
        return rule.model_copy(update={"device": name})


def _from_table(args: argparse.Namespace, out: Output) -> _Setting:
    """What a cost table says; the model only adds the digest of its graph."""
    return _Setting(None if args.model is None else _read_model(args, Core(), out))


def _check_table(problem: Problem, table: Path, model: Model, source: str) -> None:
    """Refuses a cost table of another model.

    Raises:
        PlanError: The model lacks operations of the table.
    """
    there = {op.name for op in model.ops}
    named = [name for task in problem.tasks for name in task.ops or (task.name,)]
    lacking = [name for name in named if name not in there]
    if lacking:
        raise PlanError(
            f"The cost table '{table}' is of another model ('{problem.name}'): {len(lacking)} of "
            f"its {len(named)} operations are not in '{source}', '{lacking[0]}' first. Leave MODEL "
            f"out, or measure it: partita plan {source} --save-costs {table}."
        )


def _measured(
    args: argparse.Namespace, core: Core, model: Model, out: Output
) -> tuple[_Setting, Scheduler]:
    """The model and the devices of this machine, and what measures one on the others."""
    from partita_hetero.device_model import HeteroModel
    from partita_hetero.tuning.scheduler import Scheduler
    from partita_hetero.tuning.sized_model import sized_models

    device = _several(args, core)
    config: dict[str, Any] = {**_config(args), "HETERO_SCHEDULE": "PRIORITY"}
    placed = core.compile_model(model, device, config).device_model
    if not isinstance(placed, HeteroModel):
        raise TypeError(f"HETERO compiles to {type(placed).__name__}.")
    compilation = placed.compilation
    lost = dict(compilation.inexact or {})
    sized = sized_models(compilation)[0]
    if sized.is_guess:
        free = [port for port in model.inputs if not port.is_static and port.name in sized.shapes]
        for port in free:
            out.note(
                f"input '{port.name}' is {port.describe()}; it is measured as "
                f"{'x'.join(map(str, sized.shapes[port.name]))} (set its sizes with "
                f"--shape {port.name}=...)"
            )
    return _Setting(model, compilation.devices), Scheduler(compilation, sized, lost, [])


def _several(args: argparse.Namespace, core: Core) -> str:
    """The device string, which must be one of several devices."""
    device = device_of(args, core)
    if not core.accepts_property(device, "HETERO_SCHEDULE"):
        raise PlanError(f"'{device}' is one device; a plan is for 'HETERO:{device},...'.")
    return device


def _config(args: argparse.Namespace) -> dict[str, Any]:
    """Properties of HETERO, from options of all kinds; ``--objective`` outweighs others."""
    config: dict[str, Any] = dict(properties_of(args))
    if args.objective == "THROUGHPUT":
        config["PERFORMANCE_HINT"] = "THROUGHPUT"
    elif args.objective is not None and "PERFORMANCE_HINT" in config:
        config["PERFORMANCE_HINT"] = "LATENCY"
    if args.objective not in (None, _objective_of(config)):
        config["HETERO_EXECUTOR"] = executor_for(args.objective).name
    return config


def _objective_of(config: Mapping[str, Any]) -> Objective:
    """What a model is placed for that is compiled with these properties."""
    from partita_hetero.properties import HeteroProperties
    from partita_hetero.tuning.scheduler import objective_of

    deciding = {
        key: config[key] for key in ("PERFORMANCE_HINT", "HETERO_EXECUTOR") if key in config
    }
    return objective_of(validate(HeteroProperties, deciding, "Device 'HETERO'"))


def _plan_decoder(args: argparse.Namespace, core: Core, model: Model, out: Output) -> int:
    """Plans a decoder, prints and writes; compiles nothing of it."""
    from partita_hetero.cli.decoder_report import print_decoder_plan
    from partita_hetero.placement.constraints import driver_of
    from partita_hetero.placement.device_list import DeviceList
    from partita_hetero.properties import HeteroProperties
    from partita_hetero.tuning.decoders.decoder_plan import plan_model

    for option in ("gantt", "trace", "save_costs"):
        if getattr(args, option):
            flag = option.replace("_", "-")
            raise PlanError(f"--{flag} is for models that are run to be planned, not for decoders.")
    if args.objective == "PARALLEL":
        raise PlanError("Layers of a decoder wait for each other: plan LATENCY or THROUGHPUT.")
    config = _config(args)
    context = args.context or model_context(model) or DEFAULT_CONTEXT
    config["HETERO_CONTEXT"] = context
    if args.prompt_tokens:
        config["HETERO_PROMPT_TOKENS"] = args.prompt_tokens
    if args.new_tokens:
        config["HETERO_NEW_TOKENS"] = args.new_tokens
    if args.chunk:
        config["HETERO_CHUNK_TOKENS"] = args.chunk
    device = _several(args, core)
    if args.cache_type:  # caches that grow are given room for it, as they are where text is made
        model = prepare(model, 1, context, core, device, args.cache_type)
    _, properties = core.device_api.target(device, config)
    if not isinstance(properties, HeteroProperties):
        raise TypeError(f"'{device}' has {type(properties).__name__}.")
    name = device_string.parse(device).name
    devices = DeviceList(core.device_api, name, properties)
    planned = plan_model(model, devices)
    if args.write_lock:
        drivers = {one.device: driver_of(devices, one.device) for one in planned.plan.devices}
        planned.lock(model, drivers).save(args.write_lock)
        out.note(f"wrote {args.write_lock}")
    if args.json:
        out.json(planned.plan)
    else:
        print_decoder_plan(planned.plan, args.explain, out)
    return 0


def _read_model(args: argparse.Namespace, core: Core, out: Output) -> Model:
    named = resolve(args.model, Store(notify=out.note))
    source = named.source
    is_decoder = isinstance(source, Path) and source.suffix.lower() == ".gguf"
    options = DecoderOptions(context=args.context) if is_decoder and args.context else None
    model = core.read_model(source, decoder=options)
    if named.sample is not None and not args.shapes and not is_decoder:
        return model.reshape(named.sample().shapes)
    return reshape(model, args.shapes)


def _write(args: argparse.Namespace, setting: _Setting, planned: Planned, out: Output) -> None:
    from partita_hetero.planner.problem import problem_file

    if args.save_costs:
        problem_file.save(planned.problem.with_pins(()), args.save_costs)
        out.note(f"wrote {args.save_costs}")
    if args.write_lock:
        planned.lock(setting.model, setting.drivers(planned.problem)).save(args.write_lock)
        out.note(f"wrote {args.write_lock}")
    if args.gantt:
        from partita_hetero.reports.gantt import to_svg
        from partita_hetero.reports.placement_page import placement_page
        from partita_hetero.reports.plan_record import plan_record

        svg = args.gantt.suffix.lower() == ".svg"
        record = plan_record(planned.problem, planned.plan, planned.why, planned.summary)
        page = to_svg([planned.plan.timeline]) if svg else placement_page([record])
        with writing(args.gantt):
            args.gantt.write_text(page, encoding="utf-8")
        out.note(f"wrote {args.gantt}")
    if args.trace:
        trace = planned.plan.timeline.to_chrome_trace()
        with writing(args.trace):
            args.trace.write_text(json.dumps(trace), encoding="utf-8")
        out.note(f"wrote {args.trace}")


def _print(summary: PlanSummary, explain: bool, out: Output) -> None:
    if explain:
        out.table(
            ["task", "device", "us", "why", "what would change it"],
            [
                [one.task, one.device, _number(one.us), str(one.reason), one.change]
                for one in summary.tasks
            ],
        )
        out.text("")
    out.table(
        ["part", "device", "ops", "us", "from", "to"],
        [
            [part.number, part.device, part.ops, _number(part.us), part.first, part.last]
            for part in summary.parts
        ],
    )
    out.text("")
    out.table(
        ["device", "ops", "busy", "us", "weights", "peak memory", "limit"],
        [
            [
                use.device,
                use.ops,
                f"{use.share:.0%}",
                _number(use.load_us),
                format_bytes(use.weight_bytes),
                format_bytes(use.peak_bytes),
                "" if use.limit_bytes is None else format_bytes(use.limit_bytes),
            ]
            for use in summary.devices
        ],
    )
    out.text("")
    rows = [["this plan", _number(summary.value_us), ""]]
    rows += [
        [rival.name, "", rival.obstacle]
        if rival.value_us is None
        else [rival.name, _number(rival.value_us), _ratio(rival.value_us, summary.value_us)]
        for rival in summary.rivals
    ]
    out.table(["placement by the table of costs", "us", ""], rows)
    if summary.raced:
        out.text("")
        out.table(
            ["placement that was run", "subgraphs", "us", "+-", "foreseen", ""],
            [
                [
                    one.name,
                    one.submodels,
                    "" if one.measured_us is None else _number(one.measured_us),
                    "" if one.spread_us is None else _number(one.spread_us),
                    "" if one.foreseen_us is None else _number(one.foreseen_us),
                    one.failure or ("kept" if _is_kept(one, summary) else ""),
                ]
                for one in summary.raced
            ],
        )
    facts = {
        "model": summary.model,
        "objective": f"{summary.objective} {_number(summary.value_us)} us by the table of costs",
        "latency": f"{_number(summary.latency_us)} us by the table of costs",
        "bound": f"{_number(summary.bound_us)} us, of the table: this placement is at most "
        f"{summary.gap:.1%} above its optimum" + (f" ({summary.proof})" if summary.proof else ""),
        "found by": f"{summary.method} in {summary.seconds:.2f} s"
        + (", before the search was through" if summary.cut else ""),
        "moved": f"{format_bytes(summary.bytes_moved)} in {summary.transfers} transfers",
    }
    if summary.estimated:
        facts["estimated"] = f"{summary.estimated} of {len(summary.tasks)} tasks"
    if summary.measured_us is not None:
        noise = "" if summary.spread_us is None else f" +- {_number(summary.spread_us)}"
        facts["measured"] = f"{_number(summary.measured_us)} us{noise}: '{summary.kept}' is kept"
    out.text("")
    out.facts(facts)
    for note in summary.notes:
        out.text(note)


def _is_kept(one: Candidate, summary: PlanSummary) -> bool:
    return (one.name, one.measured_us) == (summary.kept, summary.measured_us)


def _ratio(rival: float, ours: float) -> str:
    return f"{rival / ours:.2f} times as long" if ours else ""


def _number(us: float) -> str:
    return f"{us:,.1f}"

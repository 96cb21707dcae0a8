"""``partita plan``: the best placement by measured costs, or by a cost table without any device.

Of a decoder (a language model) nothing is run: layers are placed by memory and by the time of a
request, which their bytes and the speeds of the devices tell.
"""

from __future__ import annotations

import argparse
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
    output_file,
    positive_float,
)
from partita.cli.feeds import guess_notes, reshape
from partita.cli.output import Output
from partita.devices import device_string
from partita.errors import PlanError
from partita.zoo.naming import resolve
from partita.zoo.store import Store
from partita_hetero.cli.decoder_command import (
    add_decoder_options,
    asked_context,
    plan_decoder,
    refuse_decoder_options,
    refuse_shapes,
)
from partita_hetero.cli.plan_options import deciding_objective, hetero_config, several_devices
from partita_hetero.cli.plan_output import Setting, print_plan, write_plan
from partita_hetero.options.command_options import MEMORY, PIN
from partita_hetero.options.pins import read_rules
from partita_hetero.partition.decoder_layers import cache_inputs
from partita_hetero.planner.simulation.plan import OBJECTIVES

if TYPE_CHECKING:
    from partita.model.model import Model
    from partita_hetero.planner.problem.problem import Problem
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
        "--save-costs",
        type=output_file(),
        metavar="TABLE.json",
        help="write what everything costs",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="one request step by step, with independent submodels at the same time, or many "
        "requests at a time (default: as PERFORMANCE_HINT and HETERO_EXECUTOR say, "
        "otherwise LATENCY)",
    )
    add_decoder_options(parser)
    parser.add_argument(
        "--time-limit",
        type=positive_float,
        default=10.0,
        metavar="SECONDS",
        help="how long to search (default: 10); to compile the planner's loops, once on each "
        "machine, takes seconds on top",
    )
    _add_files(parser)
    parser.add_argument(
        "--explain", action="store_true", help="say for every task why it is where it is"
    )
    parser.set_defaults(parser=parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name files to write a plan to."""
    parser.add_argument(
        "--lock",
        type=output_file(),
        dest="write_lock",
        metavar="PLAN.toml",
        help="write the placement as a lock file",
    )
    parser.add_argument(
        "--gantt",
        type=output_file("", ".html", ".htm", ".svg"),
        metavar="PLAN.html",
        help="write a chart of the predicted run, as a page or as .svg",
    )
    parser.add_argument(
        "--trace",
        type=output_file(),
        metavar="PLAN.json",
        help="write the predicted run for chrome://tracing and Perfetto",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Plans, prints and writes."""
    from partita_hetero.planner.problem import problem_file
    from partita_hetero.tuning.plan_report import PlanOptions, make_plan, race_plans

    if args.model is None and args.costs is None:
        args.parser.error("give a MODEL, or --costs")
    rules = read_rules(args.HETERO_PINS or ())
    objective = deciding_objective(hetero_config(args))
    if args.costs is not None:
        setting = _from_table(args, out)
        names = (device_string.parse(args.device).priorities or ()) if args.device else ()
        limits = dict(args.HETERO_MEMORY_LIMITS or ())
        options = PlanOptions(names, rules, limits, objective, args.time_limit)
        problem = problem_file.load(args.costs)
        if setting.model is not None:
            _check_table(problem, args.costs, setting.model, args.model)
        with out.progress(f"planning {problem.name}", None):  # compiles loops once a machine
            planned = make_plan(problem, options)
    else:
        core = Core()
        model = _read_model(args, core, out)
        if cache_inputs(model):
            return plan_decoder(args, core, model, out)
        refuse_decoder_options(args, model)
        setting, scheduler = _measured(args, core, model, out)
        rules = [setting.respelled(rule) for rule in rules]
        planned = race_plans(scheduler, PlanOptions((), rules, {}, objective, args.time_limit))
    write_plan(args, setting, planned, out)
    if args.json:
        out.json(planned.summary)
    else:
        print_plan(planned.summary, args.explain, out)
    return 0


def _from_table(args: argparse.Namespace, out: Output) -> Setting:
    """What a cost table says; the model only adds the digest of its graph."""
    return Setting(None if args.model is None else _read_model(args, Core(), out))


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
) -> tuple[Setting, Scheduler]:
    """The model and the devices of this machine, and what measures one on the others."""
    from partita_hetero.device_model import HeteroModel
    from partita_hetero.tuning.scheduler import Scheduler
    from partita_hetero.tuning.sized_model import sized_models

    device = several_devices(args, core)
    out.note(
        f"measuring '{model.name}' on {device}, with searches of {args.time_limit:g} s in all "
        "(--time-limit); what is measured is kept for the next time"
    )
    config: dict[str, Any] = {**hetero_config(args), "HETERO_SCHEDULE": "PRIORITY"}
    placed = core.compile_model(model, device, config).device_model
    if not isinstance(placed, HeteroModel):
        raise TypeError(f"HETERO compiles to {type(placed).__name__}.")
    compilation = placed.compilation
    lost = dict(compilation.inexact or {})
    sized = sized_models(compilation)[0]
    if sized.is_guess:
        free = [port.name for port in model.inputs if not port.is_static]
        for note in guess_notes(model, {n: sized.shapes[n] for n in free if n in sized.shapes}):
            out.note(note)
    return Setting(model, compilation.devices), Scheduler(compilation, sized, lost, [])


def _read_model(args: argparse.Namespace, core: Core, out: Output) -> Model:
    named = resolve(args.model, Store(notify=out.note))
    source = named.source
    is_decoder = isinstance(source, Path) and source.suffix.lower() == ".gguf"
    context = asked_context(args) if is_decoder else 0
    options = DecoderOptions(context=context) if context else None
    model = core.read_model(source, decoder=options)
    if cache_inputs(model):
        refuse_shapes(args)
    if named.sample is not None and not args.shapes and not is_decoder:
        return model.reshape(named.sample().shapes)
    return reshape(model, args.shapes)

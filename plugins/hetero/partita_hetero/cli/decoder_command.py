"""``partita plan`` of a decoder: nothing is run, layers are placed by memory and speeds."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partita import Core
from partita.cli.arguments import positive_int
from partita.cli.output import Output
from partita.devices import device_string
from partita.errors import PlanError
from partita.generate import model_source
from partita.generate.caches.cache_types import CACHE_TYPES
from partita.generate.context_room import DEFAULT_CONTEXT
from partita.generate.decoder import prepare
from partita.properties.schema import validate
from partita_hetero.cli.plan_options import hetero_config, several_devices
from partita_hetero.partition.decoder_layers import model_context

if TYPE_CHECKING:
    from partita.model.model import Model


def add_decoder_options(parser: argparse.ArgumentParser) -> None:
    """What a decoder is placed for."""
    parser.add_argument(
        "--context",
        type=positive_int,
        metavar="TOKENS",
        help="of a decoder: tokens that its cache must hold (default: HETERO_CONTEXT, or as many "
        f"as the model's holds, or {DEFAULT_CONTEXT})",
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


def refuse_decoder_options(args: argparse.Namespace, model: Model) -> None:
    """Says that an option of decoders means nothing for a model without caches."""
    for option in ("context", "cache_type", "prompt_tokens", "new_tokens", "chunk"):
        if getattr(args, option):
            flag = option.replace("_", "-")
            raise PlanError(f"--{flag} is for decoders; '{model.name}' has no cache of tokens.")


def refuse_shapes(args: argparse.Namespace) -> None:
    """Says what stands for shapes where a decoder is planned."""
    if args.shapes:
        raise PlanError(
            "--shape is for models that are run to be planned, not for decoders: say with "
            "--context how many tokens the cache holds, and with --prompt-tokens how many a "
            "prompt has."
        )


def asked_context(args: argparse.Namespace) -> int:
    """Tokens of context that ``--context`` asks for, or else HETERO_CONTEXT; 0 if neither does."""
    from partita_hetero.properties import HeteroProperties

    name = "HETERO_CONTEXT"
    own = {key: value for key, value in hetero_config(args).items() if key == name}
    return args.context or validate(HeteroProperties, own, "Device 'HETERO'").HETERO_CONTEXT


def plan_decoder(args: argparse.Namespace, core: Core, model: Model, out: Output) -> int:
    """Plans a decoder, prints and writes; compiles nothing of it.

    Args:
        args: The command's arguments.
        core: Names the devices, and answers which operations they take.
        model: The decoder.
        out: Where the plan is printed.

    Returns:
        The command's exit code.

    Raises:
        PlanError: An option is for models that are run, or there is no plan.
    """
    from partita_hetero.cli.decoder_report import print_decoder_plan
    from partita_hetero.placement.constraints import driver_of
    from partita_hetero.placement.device_list import DeviceList
    from partita_hetero.properties import HeteroProperties
    from partita_hetero.tuning.decoders.decoder_plan import plan_model, require_room

    for option in ("gantt", "trace", "save_costs"):
        if getattr(args, option):
            flag = option.replace("_", "-")
            raise PlanError(f"--{flag} is for models that are run to be planned, not for decoders.")
    if args.objective == "PARALLEL":
        raise PlanError("Layers of a decoder wait for each other: plan LATENCY or THROUGHPUT.")
    config = hetero_config(args)
    context = asked_context(args) or model_context(model) or DEFAULT_CONTEXT
    config["HETERO_CONTEXT"] = context
    if args.prompt_tokens:
        config["HETERO_PROMPT_TOKENS"] = args.prompt_tokens
    if args.new_tokens:
        config["HETERO_NEW_TOKENS"] = args.new_tokens
    if args.chunk:
        config["HETERO_CHUNK_TOKENS"] = args.chunk
    device = several_devices(args, core)
    _, properties = core.device_api.target(device, config)
    if not isinstance(properties, HeteroProperties):
        raise TypeError(f"'{device}' has {type(properties).__name__}.")
    require_room(properties, lambda: model_source.find(args.model).longest)
    if args.cache_type:  # caches that grow are given room for it, as they are where text is made
        model = prepare(model, 1, context, core, device, args.cache_type)
    name = device_string.parse(device).name
    devices = DeviceList(core.device_api, name, properties)
    with out.progress(f"measuring {', '.join(devices.names)} and planning {model.name}", None):
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

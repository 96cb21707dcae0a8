"""``partita devices``: the devices of this machine, and why others cannot be used."""

from __future__ import annotations

import argparse
import itertools

from partita import Core
from partita.cli.arguments import Commands, add_command
from partita.cli.output import Output, megabytes
from partita.errors import DeviceError


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "devices",
        run,
        "lists the devices of this machine, and why others cannot be used",
        ["partita devices", "partita devices --details", "partita devices --json"],
    )
    parser.add_argument("--details", action="store_true", help="print all details of each device")


def run(args: argparse.Namespace, out: Output) -> int:
    """Prints the devices."""
    core = Core()
    infos, unavailable = {}, {}
    for device in core.available_devices:
        try:
            infos[device] = core.device_info(device)
        except DeviceError as error:
            unavailable[device] = str(error)
    aliases, dangling = resolve_aliases(core)
    unavailable |= {**core.unavailable_devices, **dangling}
    if args.json:
        out.json({"devices": infos, "aliases": aliases, "unavailable": unavailable})
        return 0
    rows = [
        [device, info.full_name, info.kind, megabytes(info.memory_bytes), info.driver]
        for device, info in infos.items()
    ]
    rows += [[alias, f"= {device}", "", "", ""] for alias, device in aliases.items()]
    out.table(["device", "name", "kind", "memory", "driver"], rows)
    if args.details:
        for device, info in infos.items():
            if not info.details:
                continue
            out.text("", f"{device}:")
            out.facts({f"  {name}": value for name, value in info.details.items()})
    if unavailable:
        out.text("", "not available:")
        out.text(*(f"  {name}: {reason}" for name, reason in unavailable.items()))
    return 0


def resolve_aliases(core: Core) -> tuple[dict[str, str], dict[str, str]]:
    """What aliases such as ``GPU`` stand for.

    Returns:
        Alias to device (with ``GPU.1`` and so on, where there are several), and alias to the
        reason why it stands for none.
    """
    found: dict[str, str] = {}
    dangling: dict[str, str] = {}
    for alias in core.aliases:
        try:
            found[alias] = core.resolve_device(alias)
        except DeviceError as error:
            dangling[alias] = str(error)
            continue
        for index in itertools.count(1):
            try:
                found[f"{alias}.{index}"] = core.resolve_device(f"{alias}.{index}")
            except DeviceError:
                break
    return found, dangling

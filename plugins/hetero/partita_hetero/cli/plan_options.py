"""What the options of `partita plan` say: the device string, properties and the objective."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from partita import Core
from partita.cli.arguments import device_of, properties_of
from partita.errors import PlanError
from partita.properties.schema import validate
from partita_hetero.executors import executor_for
from partita_hetero.planner.simulation.plan import Objective


def several_devices(args: argparse.Namespace, core: Core) -> str:
    """The device string, which must be one of several devices.

    Args:
        args: The command's arguments.
        core: The Core that knows the devices.

    Raises:
        PlanError: It is one device.
    """
    device = device_of(args, core)
    if not core.accepts_property(device, "HETERO_SCHEDULE"):
        raise PlanError(f"'{device}' is one device; a plan is for 'HETERO:{device},...'.")
    return device


def hetero_config(args: argparse.Namespace) -> dict[str, Any]:
    """Properties of HETERO, from options of all kinds; ``--objective`` outweighs others."""
    config: dict[str, Any] = dict(properties_of(args))
    if args.objective == "THROUGHPUT":
        config["PERFORMANCE_HINT"] = "THROUGHPUT"
    elif args.objective is not None and "PERFORMANCE_HINT" in config:
        config["PERFORMANCE_HINT"] = "LATENCY"
    if args.objective not in (None, deciding_objective(config)):
        config["HETERO_EXECUTOR"] = executor_for(args.objective).name
    return config


def deciding_objective(config: Mapping[str, Any]) -> Objective:
    """What a model is placed for that is compiled with these properties."""
    from partita_hetero.properties import HeteroProperties
    from partita_hetero.tuning.scheduler import objective_of

    deciding = {
        key: config[key] for key in ("PERFORMANCE_HINT", "HETERO_EXECUTOR") if key in config
    }
    return objective_of(validate(HeteroProperties, deciding, "Device 'HETERO'"))

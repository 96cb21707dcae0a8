"""What HETERO adds to commands that compile a model."""

from __future__ import annotations

from partita.contract.command_option import CommandOption
from partita_hetero.options.byte_sizes import parse_limit

PIN = CommandOption(
    flag="--pin",
    device="HETERO",
    property="HETERO_PINS",
    metavar="WHAT=DEVICE",
    help="where operations shall run: NAME=GPU, re:EXPRESSION=GPU, type:Conv=GPU, "
    "path:MODULE=GPU or meta:KEY=VALUE=GPU; with '?' at the end only if possible",
    repeatable=True,
)

LOCK = CommandOption(
    flag="--lock",
    device="HETERO",
    property="HETERO_PLACEMENT_LOCK",
    metavar="PLAN.toml",
    help="place operations as a lock of 'partita plan' says",
)

MEMORY = CommandOption(
    flag="--memory",
    device="HETERO",
    property="HETERO_MEMORY_LIMITS",
    metavar="DEVICE=SIZE",
    help="a device's limit for weights and live values, e.g. GPU=2GiB",
    repeatable=True,
    parse=parse_limit,
)

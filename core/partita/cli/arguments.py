"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from partita.cli.completion import devices, models
from partita.contract.command_option import CommandOption
from partita.core import Core
from partita.devices.command_hooks import command_options
from partita.errors import DeviceStringError
from partita.properties import normalize
from partita.suggestions import nearest

_log = logging.getLogger(__name__)

Commands = Any
"""What ``ArgumentParser.add_subparsers`` returns (its type is private to argparse)."""

MODEL_HELP = (
    "an .onnx, .gguf, .tflite or .circle file, an OpenVINO IR (.xml), zoo:NAME (trained models, "
    "fetched when first used; see 'partita zoo list'), light:NAME (topologies inside the onnx "
    "package, e.g. light:resnet50), or builtin:NAME (builtin:digits, builtin:pitch)"
)

_SHAPE = re.compile(r"(?:(?P<name>.+)=)?\[?(?P<dims>\d+(?:[x,]\s*\d+)*)\]?")


_WRONG_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)")


class Parser(argparse.ArgumentParser):
    """A parser that knows what may have been meant by a word that is none of its choices."""

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2."""
        match = _WRONG_CHOICE.search(message)
        if match is not None:
            known = re.findall(r"[\w.-]+", match["known"])
            near = nearest(match["given"], known)
            message += f"; did you mean '{near}'?" if near else ""
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses; a command tells of what it does not know by its own usage, not the program's."""
        found, rest = super().parse_known_args(args, namespace)
        if rest and " " in self.prog:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def add_command(
    commands: Commands, name: str, run: Any, summary: str, examples: Sequence[str]
) -> argparse.ArgumentParser:
    """Adds a command with the options that all have.

    Args:
        commands: The parser's subparsers.
        name: The command.
        run: Called as ``run(args, out)``; returns the exit code.
        summary: What it does, in a sentence.
        examples: Command lines shown in its help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Suppressed defaults: a nested command must not undo what stood before its name.
    for option, text in (
        ("--json", "write the result as JSON"),
        ("--verbose", "say more on stderr"),
    ):
        parser.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)
    parser.set_defaults(run=run)
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """The positional argument MODEL."""
    action = parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    action.completer = models  # type: ignore[attr-defined]  # argcomplete looks there


def add_device(parser: argparse.ArgumentParser) -> None:
    """``-d`` and ``--property``."""
    device = parser.add_argument(
        "-d",
        "--device",
        type=_device,
        metavar="DEVICE",
        help="e.g. CPU, OPENCL.1, HETERO:GPU,CPU (default: all devices together, where an "
        "installed plugin splits models)",
    )
    device.completer = devices  # type: ignore[attr-defined]  # argcomplete looks there
    parser.add_argument(
        "--property",
        dest="properties",
        type=_property,
        action="append",
        default=[],
        metavar="[DEVICE:]NAME=VALUE",
        help="a property to compile with, e.g. INFERENCE_PRECISION_HINT=f16; for one device of "
        "several, e.g. CPU:INFERENCE_PRECISION_HINT=bf16 (repeatable)",
    )


def _device(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "an empty text names no device; name one ('partita devices' lists them), or leave the "
            "option out"
        )
    return text


def device_of(args: argparse.Namespace, core: Core) -> str:
    """The device that the arguments name, or the default one.

    Raises:
        DeviceError: There is no such device; raised before anything is downloaded.
    """
    device: str = args.device or core.default_device
    core.resolve_device(device)
    return device


def add_device_options(
    parser: argparse.ArgumentParser, options: Iterable[CommandOption] | None = None
) -> None:
    """Options for properties of single devices; by default all that plugins bring.

    One whose flag is taken is left out: its plugin must not break a command.
    """
    added = []
    for option in command_options() if options is None else options:
        try:
            parser.add_argument(
                option.flag,
                dest=option.property,
                action="append" if option.repeatable else "store",
                type=_with_message(option.parse),
                metavar=option.metavar,
                help=f"{option.help} ({option.device}{', repeatable' * option.repeatable})",
            )
        except argparse.ArgumentError as error:
            _log.warning("An option of device '%s' is ignored: %s", option.device, error)
        else:
            added.append(option)
    parser.set_defaults(device_options=added)


def _with_message(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """As an argument's type, of whose ``ValueError`` argparse would drop the message."""

    def converted(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return converted


def properties_of(args: argparse.Namespace) -> dict[str, Any]:
    """What ``--property`` and, in a command that adds them, the options of plugins set.

    Raises:
        DeviceStringError: An option is given that is another device's.
    """
    properties = normalize(args.properties)
    for option in getattr(args, "device_options", ()):
        value = getattr(args, option.property)
        if value is None:
            continue
        if args.device and args.device.partition(":")[0] != option.device:
            raise DeviceStringError(
                f"{option.flag} is an option of device '{option.device}', but '{args.device}' was "
                f"named; write -d {option.device}, or leave {option.flag} out."
            )
        properties[option.property] = value
    return properties


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """``--shape``."""
    parser.add_argument(
        "--shape",
        "-shape",
        dest="shapes",
        type=parse_shape,
        action="append",
        default=[],
        metavar="[NAME=]1x3x224x224",
        help="fixes the shape of an input; the name may be left out if there is one (repeatable)",
    )


def parse_shape(text: str) -> tuple[str | None, tuple[int, ...]]:
    """Input name (or ``None``) and dimensions.

    Example:
        >>> parse_shape("x=1x3x48x320")
        ('x', (1, 3, 48, 320))

    Raises:
        argparse.ArgumentTypeError: It has another form; argparse then exits with 2.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shape; write 1x3x224x224 or NAME=1x3x224x224"
        )
    return match["name"], tuple(int(dim) for dim in re.split(r"[x,]\s*", match["dims"]))


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """The type of an option that names a file to write, as argparse takes it.

    The folder is looked at before the command does its work, which may take minutes.

    Args:
        suffixes: Endings that the name may have, in lower case, ``""`` for none; by default any.
    """

    def parsed(text: str) -> Path:
        path = Path(text)
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(
                f"{text!r} cannot be written: there is no folder '{path.parent}'"
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{text!r} cannot be written: permission denied")
        if suffixes and path.suffix.lower() not in suffixes:
            known = " or ".join(f"'{suffix}'" for suffix in suffixes if suffix)
            raise argparse.ArgumentTypeError(f"{text!r} does not end with {known}")
        return path

    return parsed


def positive_int(text: str) -> int:
    """A whole number above 0."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def positive_float(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _property(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    device, colon, key = name.rpartition(":")
    if not equals or not key or bool(colon) != bool(device):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a property; write NAME=VALUE, or DEVICE:NAME=VALUE for one device of "
            "several"
        )
    return ("DEVICE_PROPERTIES", {device: {key: value}}) if device else (key, value)


def property_options(properties: Sequence[tuple[str, Any]]) -> str:
    """The options that give such properties, each with a space in front.

    Example:
        >>> property_options([("PERF_COUNT", "YES"), ("DEVICE_PROPERTIES", {"CPU": {"A": "1"}})])
        ' --property PERF_COUNT=YES --property CPU:A=1'
    """
    texts = []
    for name, value in properties:
        if isinstance(value, dict):
            texts += [f"{d}:{key}={v}" for d, own in value.items() for key, v in own.items()]
        else:
            texts.append(f"{name}={value}")
    return "".join(f" --property {shlex.quote(text)}" for text in texts)

"""The entry point: chooses the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence

import partita
from partita.cli import commands
from partita.cli.arguments import Parser
from partita.cli.completion import complete
from partita.cli.output import Output
from partita.devices.registry import command_modules
from partita.errors import PartitaError
from partita.system.modules import import_modules

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOBODY_READS = 1, 130, 141

_EPILOG = """\
examples:
  partita demo                                    a real model on all devices of this machine
  partita devices                                 what there is
  partita query model.onnx -d HETERO:GPU,CPU      what would run where, and why
  partita benchmark model.onnx -d HETERO:GPU,CPU -pc

exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage, 130 interrupted, 141 nobody
reads the output any more
'partita COMMAND --help' explains a command.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="partita",
        description="One model, many devices: runs ONNX models split over the devices there are.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"partita {partita.__version__}")
    parser.set_defaults(json=False, verbose=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (*import_modules(commands), *map(importlib.import_module, command_modules())):
        module.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        argv: The arguments; by default those of this process.

    Returns:
        The exit code. Wrong usage leaves through ``SystemExit(2)``, as argparse does.
    """
    _make_writable()
    out = Output()
    try:
        return _guarded(argv, out)
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not try to flush it again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NOBODY_READS
    except KeyboardInterrupt:
        if argv is None:  # a process of its own, which may end without a word from now on
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        out.error("interrupted")
        return EXIT_INTERRUPTED


def _guarded(argv: Sequence[str] | None, out: Output) -> int:
    """Runs a command; what it raises for a user is a line on stderr."""
    try:
        parser = build_parser()
        complete(parser)
        args = parser.parse_args(argv)
        out.as_json = args.json
        logging.basicConfig(
            level=logging.INFO if args.verbose else logging.WARNING,
            format="partita: %(levelname)s: %(message)s",
            stream=sys.stderr,
        )
        code: int = args.run(args, out)
    except BrokenPipeError:
        raise
    except PartitaError as error:
        out.error(f"error: {error}")
        return EXIT_ERROR
    except (OSError, MemoryError) as error:
        out.error(f"error: {error or type(error).__name__}")
        return EXIT_ERROR
    finally:
        out.flush()  # of --help too, which leaves by an exception
    return code


def _make_writable() -> None:
    """Lets results go to a closed stdout, and to one whose encoding lacks some letters."""
    if sys.stdout is None:
        sys.stdout = io.StringIO()  # nobody reads it
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())

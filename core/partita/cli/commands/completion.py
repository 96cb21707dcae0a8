"""``partita completion``: what a shell needs in order to complete command lines."""

from __future__ import annotations

import argparse

from partita.cli.arguments import Commands, add_command
from partita.cli.completion import SHELLS, script
from partita.cli.output import Output


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "completion",
        run,
        "prints a script that lets a shell complete commands, options, models and devices",
        [
            'partita completion bash    (eval "$(partita completion bash)" in ~/.bashrc)',
            'partita completion zsh     (eval "$(partita completion zsh)" in ~/.zshrc)',
            "partita completion fish    (partita completion fish | source, in config.fish)",
        ],
    )
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace, out: Output) -> int:
    """Prints the script."""
    text = script(args.shell)
    if args.json:
        out.json({"shell": args.shell, "script": text})
    else:
        out.text(text)
    return 0

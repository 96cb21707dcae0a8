"""Entry point of the server: brings the command ``partita serve``."""

from __future__ import annotations

from collections.abc import Iterable

import partita


@partita.hookimpl
def command_modules() -> Iterable[str]:
    """The command."""
    return ["partita_serve.command"]

"""What a shell may offer behind a half-written command line, by the package argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def complete(build_parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Answers the shell and ends the process, if it is a shell that asks."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(build_parser())


def script(shell: str) -> str:
    """What a shell has to read for that."""
    from argcomplete.shell_integration import shellcode

    return str(shellcode(["partita"], shell=shell))


def models(prefix: str, **_: Any) -> list[str]:
    """Names of models, and files."""
    from argcomplete.completers import FilesCompleter

    from partita.zoo.naming import all_names

    named = [name for name in all_names() if name.startswith(prefix)]
    return [*named, *FilesCompleter()(prefix)]


def devices(prefix: str, **_: Any) -> list[str]:
    """Names of devices, also behind those of a list; no driver is asked for them."""
    from partita.core import Core

    core = Core()
    names = [*core.device_api.registry.names, *core.aliases]
    head = prefix[: max(prefix.rfind(":"), prefix.rfind(",")) + 1]
    return [head + name for name in names if (head + name).startswith(prefix)]

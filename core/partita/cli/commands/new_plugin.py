"""``partita new-plugin``: writes a complete plugin distribution from the template."""

from __future__ import annotations

import argparse
import re
from importlib import resources
from pathlib import Path

from partita.cli.arguments import Commands, add_command
from partita.cli.output import Output
from partita.core import Core
from partita.errors import PluginError
from partita.system.written_file import writing

_FILES = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "README.md.in",
    "expectations.toml": "expectations.toml.in",
    ".gitignore": "gitignore.in",
    ".github/workflows/ci.yml": "ci.yml.in",
    "partita_@name@/__init__.py": "init.py.in",
    "partita_@name@/plugin.py": "plugin.py.in",
    "partita_@name@/kernels.py": "kernels.py.in",
    "partita_@name@/compiled.py": "compiled.py.in",
    "tests/test_device.py": "test_device.py.in",
}
"""Path in the new distribution to its template."""


RESERVED = frozenset(("ray", "serve", "conformance"))
"""Packages that are no devices, which Partita has or keeps for itself."""


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "new-plugin",
        run,
        "writes a plugin for a new device, which installs and passes the conformance kit at once",
        ["partita new-plugin mydev", "partita new-plugin mydev --into ~/src"],
    )
    parser.add_argument(
        "name", metavar="NAME", help="small letters, digits and '_'; the device is NAME in capitals"
    )
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="where to put partita-NAME"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Writes the files and says what to do next.

    Raises:
        PluginError: The name cannot be a device's, or the folder exists.
    """
    folder, files = write_plugin(args.name, args.into)
    if args.json:
        out.json({"folder": folder, "files": files, "device": args.name.upper()})
        return 0
    out.text(*(f"{folder / name}" for name in files))
    out.text(
        "",
        "next:",
        f"  pip install -e '{folder}[test]'",
        f"  partita conformance -d {args.name.upper()}",
    )
    return 0


def taken_names(core: Core) -> set[str]:
    """Names of the devices that are installed, their aliases, and what Partita keeps for itself."""
    return {*(name.lower() for name in (*core.device_api.registry.names, *core.aliases)), *RESERVED}


def write_plugin(name: str, into: Path) -> tuple[Path, list[str]]:
    """Writes the distribution ``partita-NAME``; returns its folder and the files in it.

    Raises:
        PluginError: The name cannot be a device's, is taken, or the folder exists.
    """
    if re.fullmatch(r"[a-z][a-z0-9_]*", name) is None:
        raise PluginError(
            f"'{name}' cannot name a plugin: use small letters, digits and '_', e.g. 'mydev'."
        )
    taken = taken_names(Core())
    if name in taken:
        raise PluginError(
            f"'{name}' is taken, as {', '.join(sorted(taken - {name}))} are; a plugin of that name "
            "could not be installed beside it. Choose another, e.g. 'mydev'."
        )
    folder = into / f"partita-{name}"
    if folder.exists():
        raise PluginError(f"'{folder}' exists already; remove it or choose another name.")
    words = {
        "@name@": name,
        "@DEVICE@": name.upper(),
        "@Class@": "".join(part.capitalize() for part in name.split("_")),
    }
    template = resources.files("partita").joinpath("template")
    written = []
    for target, source in _FILES.items():
        path = _filled(target, words)
        text = _filled(template.joinpath(source).read_text(encoding="utf-8"), words)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with writing(folder / path):
            (folder / path).write_text(text, encoding="utf-8")
        written.append(path)
    return folder, written


def _filled(text: str, words: dict[str, str]) -> str:
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text

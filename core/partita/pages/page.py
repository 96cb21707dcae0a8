"""Builds a page: ES modules, style sheets and data become one file under a strict policy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from partita.printable import html_text, printable_lines

_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.|partita)/([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=class |const |function )", re.MULTILINE)


def build_page(title: str, folder: Traversable, name: str, data: Mapping[str, Any]) -> str:
    """A whole page, as text. It lets nothing run, load or connect but what is in it.

    Args:
        title: Shown until the script sets another one, and where scripts are off.
        folder: Where the page's own ES modules and its style sheet lie.
        name: Of the module that draws the page into ``<main>``, and of the style sheet. Modules may
            import others of the folder (``./other.js``) and those that all pages share
            (``partita/table.js``). They become one scope: no two may declare the same name.
        data: What ``stored(key)`` of ``partita/element.js`` reads: anything that JSON can hold.
            What would act on a reader is spelled out in every text.

    Raises:
        ValueError: A number is not finite.
    """
    shared = resources.files("partita.pages") / "shared"
    code = "\n".join(_modules(folder, f"{name}.js", shared, set()))
    sheet = "\n".join(
        file.read_text(encoding="utf-8") for file in (shared / "page.css", folder / f"{name}.css")
    )
    policy = (
        f"default-src 'none'; script-src '{_digest(code)}'; style-src '{_digest(sheet)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    blocks = (
        f'<script type="application/json" id="{html_text(key)}">{_json(value)}</script>'
        for key, value in data.items()
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html_text(title)}</title>",
            f"<style>{sheet}</style></head><body>",
            f"<main><h1>{html_text(title)}</h1>",
            "<noscript>A script in this page draws it: allow scripts to see it.</noscript></main>",
            *blocks,
            f'<script type="module">{code}</script>',
            "</body></html>",
            "",
        ]
    )


def _modules(folder: Traversable, name: str, shared: Traversable, seen: set[str]) -> Iterator[str]:
    """The text of a module after those of all that it imports, each once."""
    seen.add(str(folder / name))
    text = (folder / name).read_text(encoding="utf-8")
    for place, other in _IMPORT.findall(text):
        source = folder if place == "." else shared
        if str(source / other) not in seen:
            yield from _modules(source, other, shared, seen)
    yield _EXPORT.sub("", _IMPORT.sub("", text))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(value: object) -> str:
    """JSON that stands in a script element: no tag or comment in it can begin."""
    return json.dumps(_spelled(value), allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _spelled(value: Any) -> Any:
    match value:
        case str():
            return printable_lines(value)
        case Mapping():
            return {printable_lines(str(key)): _spelled(one) for key, one in value.items()}
        case list() | tuple():
            return [_spelled(one) for one in value]
        case _:
            return value

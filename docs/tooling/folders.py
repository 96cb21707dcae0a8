"""The table of folders in architecture.md, made of the first sentence of each package's docstring.

    python docs/tooling/folders.py          # writes it into the page

A test compares the page with what this makes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- folders -->\n", "<!-- end of folders -->\n"
PACKAGES = (
    "core/partita",
    "core/partita_command",
    "plugins/cpu/partita_cpu",
    "plugins/opencl/partita_opencl",
    "plugins/hetero/partita_hetero",
    "plugins/reference/partita_reference",
    "serve/partita_serve",
    "plugins/virtual/partita_virtual",
    "plugins/ray/partita_ray",
    "conformance/partita_conformance",
)


def table() -> str:
    """One row per folder that holds modules: its path, and what is in it."""
    rows = ["| folder | what is in it |", "| --- | --- |"]
    for package in PACKAGES:
        for start in sorted((ROOT / package).rglob("__init__.py")):
            folder = start.parent
            rows.append(f"| `{folder.relative_to(ROOT).as_posix()}` | {_first_line(start)} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """The page with the table between its marks."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def _first_line(start: Path) -> str:
    doc = ast.get_docstring(ast.parse(start.read_text(encoding="utf-8"))) or ""
    first = re.sub(r":\w+:`", "`", doc.split("\n\n", 1)[0])
    return first.replace("\n", " ").replace("|", "\\|").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Where text goes: results to stdout as tables or JSON, everything else to stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from partita.errors import CompileError, InferError
from partita.printable import printable, printable_lines
from partita.progress import Advance, progress
from partita.shapes.sample_shapes import describe

if TYPE_CHECKING:
    from partita.contract.explanation import Explanation

_ACTING_IN_JSON = re.compile(
    "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""What JSON may hold as it is and terminals act on; other control characters it always escapes."""


class Output:
    """Writes results and messages.

    Args:
        as_json: Whether the command was asked for JSON.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._has_document = False
        self._made_up: Mapping[str, Sequence[int]] = {}

    def sizes_made_up(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Remembers, for errors, that the sizes of some inputs were not given.

        Args:
            shapes: Input name to the shape that it is given.
        """
        self._made_up = shapes

    def text(self, *lines: str) -> None:
        """Writes lines of the result."""
        for line in lines:
            sys.stdout.write(f"{printable_lines(line)}\n")

    def piece(self, text: str) -> None:
        """Writes a piece of a text that goes on, and shows it at once."""
        sys.stdout.write(printable_lines(text))
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Writes a table as aligned columns, numbers to the right.

        On a terminal it is as wide as that at most, with a heading that stands out; elsewhere a row
        is a line, whose last column may be long.
        """
        if sys.stdout.isatty():
            _print_table(columns, rows)
        else:
            self.text(*format_table(columns, rows))

    def explanation(self, explanation: Explanation) -> None:
        """Writes where operations run, and why."""
        self.table(*explanation.table())
        self.text("", *explanation.remarks())
        for other in explanation.near.values():
            self.text("")
            self.explanation(other)

    def facts(self, facts: Mapping[str, object]) -> None:
        """Writes names and values, one a line."""
        width = max((len(name) for name in facts), default=0)
        self.text(
            *(
                f"{printable(name):<{width}}  {printable_lines(str(value))}"
                for name, value in facts.items()
            )
        )

    def json(self, data: object) -> None:
        """Writes one JSON document: over several lines at a terminal, else as one line.

        A program that reads a line has the document, whether or not the command goes on.
        """
        indent = 2 if sys.stdout.isatty() else None
        text = json.dumps(plain(data), indent=indent, ensure_ascii=False, allow_nan=False)
        self._has_document = True
        self.text(_ACTING_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text))

    def note(self, message: str) -> None:
        """Tells a person something that is not part of the result."""
        sys.stderr.write(f"partita: note: {printable_lines(message)}\n")
        sys.stderr.flush()

    def failure(self, error: BaseException, message: str) -> None:
        """Says why the command ends; where JSON is asked for and none was written, there as well.

        Args:
            error: What ended it; its type is what a program tells errors apart by.
            message: It in words.
        """
        if self._made_up and isinstance(error, (CompileError, InferError)):
            name, *more = self._made_up
            first = describe({name: self._made_up[name]})
            rest = f" and {len(more)} more" if more else ""
            message += (
                f" Sizes of inputs were assumed ({first}{rest}), which the model may refuse: "
                f"give others with --shape {name}=..., or give data with "
                f"--input {name}=FILE."
            )
        if self.as_json and not self._has_document:
            with contextlib.suppress(BrokenPipeError):
                self.json({"error": {"type": type(error).__name__, "message": message}})
        self.error(f"error: {message}")

    def error(self, message: str) -> None:
        """Writes a line that says what is wrong."""
        with contextlib.suppress(BrokenPipeError):
            self.flush()
        head, colon, rest = printable_lines(message).partition(":")
        if colon and head == "error" and is_coloured(sys.stderr):
            head = f"\x1b[1;31m{head}\x1b[0m"
        sys.stderr.write(f"partita: {head}{colon}{rest}\n")

    def flush(self) -> None:
        """Hands all lines to whoever reads them."""
        sys.stdout.flush()

    def progress(
        self, description: str, total: float | None
    ) -> contextlib.AbstractContextManager[Advance]:
        """A progress bar on stderr while the block runs, if stderr is a terminal.

        Args:
            description: What is going on.
            total: When it is done; ``None`` if that is not known.
        """
        return progress(description, total)


class PrintableFormatter(logging.Formatter):
    """Log records as text that a terminal does not act on: they quote models and drivers."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        return printable_lines(super().format(record))


def is_coloured(stream: TextIO) -> bool:
    """Whether what is written there may be coloured: on a terminal, unless ``NO_COLOR`` is set."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and stream.isatty()


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Writes a table to a terminal; cells that are too long for it go on in the next line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    coloured = is_coloured(sys.stdout)
    table = Table(box=None, pad_edge=False, header_style="bold cyan" if coloured else "")
    for name, to_right in zip(columns, _to_the_right(columns, rows), strict=True):
        table.add_column(
            Text(printable(name)), justify="right" if to_right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    Console(color_system="standard" if coloured else None, highlight=False).print(table)


def _to_the_right(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """Which columns hold numbers alone."""
    return [
        bool(rows) and all(isinstance(row[i], (int, float)) for row in rows)
        for i in range(len(columns))
    ]


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table.

    Example:
        >>> format_table(["op", "n"], [["Conv", 12], ["Relu", 3]])
        ['op     n', 'Conv  12', 'Relu   3']
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(columns)]
    right = _to_the_right(columns, rows)

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return [line(columns), *(line(row) for row in cells)]


def plain(data: Any) -> Any:
    """Data as JSON knows it; numbers that are not finite become ``None``."""
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {f.name: plain(getattr(data, f.name)) for f in dataclasses.fields(data)}
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, enum.Enum):
        return data.value
    if isinstance(data, np.ndarray):
        return plain(data.tolist())
    if isinstance(data, np.generic):
        return plain(data.item())
    if isinstance(data, (list, tuple, set, frozenset)):
        return [plain(value) for value in data]
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, (Path, np.dtype)):
        return str(data)
    return data


def megabytes(count: int | None) -> str:
    """A size for people.

    Example:
        >>> megabytes(4745517), megabytes(150754820096), megabytes(None)
        ('4.7 MB', '150.8 GB', '')
    """
    if count is None:
        return ""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"

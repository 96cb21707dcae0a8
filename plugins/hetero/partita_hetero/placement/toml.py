"""Writes the part of TOML that lock files need: tables of texts and numbers, with remarks.

Of the packages that write TOML, tomli-w has no comments, and tomlkit takes a time that grows by the
square of a table's entries (minutes for 20,000 operations) and writes halves of surrogate pairs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

import numpy as np

Scalar = str | int | float | bool

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def key(text: str) -> str:
    """A key, quoted where TOML asks for it.

    Example:
        >>> key("GPU"), key("GPU.0")
        ('GPU', '"GPU.0"')
    """
    return text if _BARE.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.

    Raises:
        ValueError: It holds a half of a surrogate pair, which no TOML file can.
    """
    text.encode("utf-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def scalar(value: Scalar) -> str:
    """A value; one of numpy, or of a class of numbers, as the plain one that it is.

    Raises:
        TypeError: It is no single text, number or truth value.

    Example:
        >>> scalar(np.float64(2.5)), scalar(1.0), scalar(True), scalar("a b"), scalar(1e300)
        ('2.5', '1.0', 'true', '"a b"', '1e+300')
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, str):
        return quoted(plain)
    if isinstance(plain, int):
        return str(int(plain))
    if not isinstance(plain, float):
        raise TypeError(f"{value!r} is not a text, number or truth value.")
    if not math.isfinite(plain):
        return "nan" if math.isnan(plain) else ("inf" if plain > 0 else "-inf")
    return repr(float(plain))


def table(
    name: str, entries: Mapping[str, Scalar], remarks: Mapping[str, str] | None = None
) -> list[str]:
    """The lines of a table, in the order of the entries; remarks stand behind their entry."""
    lines = [f"[{name}]"]
    for label, value in entries.items():
        remark = (remarks or {}).get(label, "")
        line = f"{key(label)} = {scalar(value)}"
        lines.append(f"{line}  # {_one_line(remark)}" if remark else line)
    return lines


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)

"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str | int) -> int:
    """A number of bytes.

    Example:
        >>> parse_bytes("2GiB"), parse_bytes("1.5 kB"), parse_bytes(4096)
        (2147483648, 1500, 4096)

    Raises:
        ValueError: It is no size.
    """
    form = _FORM.fullmatch(str(text).strip())
    if form is None:
        raise ValueError(f"'{text}' is no size; write bytes, or e.g. 512MiB, 2GiB or 1.5GB")
    unit = (form[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    return int(float(form[1]) * base ** _POWERS[unit.rstrip("i")])


def format_bytes(count: int) -> str:
    """A number of bytes for people.

    Example:
        >>> format_bytes(2147483648), format_bytes(1500), format_bytes(12)
        ('2.0 GiB', '1.5 KiB', '12 B')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"

"""Sizes that stand for those of requests, where the input shapes of a model vary."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]

_ENTRY = re.compile(r"\s*(?P<name>[^=;]+?)\s*=\s*(?P<dims>\d+(?:x\d+)*)\s*")


def parse(text: str) -> list[dict[str, Shape]]:
    """Input shapes as text: inputs of one request behind commas, requests behind semicolons.

    Example:
        >>> parse("ids=1x16; ids=4x128,image=1x3x64x64")
        [{'ids': (1, 16)}, {'ids': (4, 128), 'image': (1, 3, 64, 64)}]

    Raises:
        ValueError: It has another form.
    """
    found = []
    for one in filter(str.strip, text.split(";")):
        entries = [_ENTRY.fullmatch(entry) for entry in one.split(",")]
        shapes = {
            entry["name"]: tuple(map(int, entry["dims"].split("x")))
            for entry in entries
            if entry is not None
        }
        if len(shapes) < len(entries):
            raise ValueError(
                f"'{one.strip()}' is not a list of shapes; write e.g. ids=1x128,image=1x3x64x64"
            )
        found.append(shapes)
    return found


def describe(shapes: Mapping[str, Sequence[int]]) -> str:
    """The same for people, and for :func:`parse`.

    Example:
        >>> describe({"ids": (4, 128), "image": (1, 3, 64, 64)})
        'ids=4x128,image=1x3x64x64'
    """
    return ",".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())


def normalized(value: Any) -> Any:
    """What the property may be given as, a sequence of mappings if it is nothing worse."""
    if isinstance(value, str):
        return parse(value)
    return [value] if isinstance(value, Mapping) else value

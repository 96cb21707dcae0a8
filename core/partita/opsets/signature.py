"""Signatures of the functions of operation sets, out of the table."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from partita.opsets.operation_table import ONE_INPUT, OPERATIONS, REDUCTIONS, TWO_INPUTS

NEWEST = 17
"""The newest operation set."""

REQUIRED = object()
"""The default of an argument that has none."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function.

    Attributes:
        name: What callers call it.
        attribute: What files call the attribute; empty if it is an input.
        default: Its text in files, ``None`` if it may be left out, or `REQUIRED`.
        several: Whether it is a list of inputs.
    """

    name: str
    attribute: str = ""
    default: object = REQUIRED
    several: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """One function.

    Attributes:
        name: What callers call it.
        since: The first operation set that has it so.
        layer: The type of layer that it makes.
        arguments: Its arguments in order, but for the last one, ``name``.
        outputs: How many outputs the layer has, or the argument that tells.
        broadcasts: Whether numbers take the element type of the other input.
    """

    name: str
    since: int
    layer: str
    arguments: tuple[Argument, ...]
    outputs: str = "1"
    broadcasts: bool = False

    def __str__(self) -> str:
        return f"{self.name}({', '.join(one.name for one in self.arguments)}, name)"


@functools.cache
def signatures(opset: int) -> dict[str, Signature]:
    """The functions of an operation set by name."""
    found: dict[str, Signature] = {}
    for signature in sorted(_all(), key=lambda one: one.since):
        if signature.since <= opset:
            found[signature.name] = signature
    return found


def _all() -> list[Signature]:
    lines = [line for line in OPERATIONS.strip().split("\n") if line]
    found = [_parsed(line) for line in lines]
    forms = ((ONE_INPUT, "node"), (REDUCTIONS, "node reduction_axes @keep_dims=false"))
    for table, arguments in (*forms, (TWO_INPUTS, "left_node right_node @auto_broadcast=numpy")):
        for since, entries in table.items():
            for entry in entries.split():
                name, _, layer = entry.partition(":")
                line = f"{since} {name} {layer} {arguments}"
                found.append(_parsed(line, broadcasts=table is TWO_INPUTS))
    return found


def _parsed(line: str, broadcasts: bool = False) -> Signature:
    since, name, layer, *words = line.split()
    outputs = "1"
    if words[-1].startswith("->"):
        outputs = words.pop()[2:]
    arguments = tuple(map(_argument, words))
    return Signature(name, int(since), layer, arguments, outputs, broadcasts)


def _argument(word: str) -> Argument:
    if not word.startswith("@"):
        default = None if word.endswith("?") else REQUIRED
        return Argument(word.strip("*?"), default=default, several=word.startswith("*"))
    names, equals, default = word[1:].partition("=")
    name, _, attribute = names.partition(":")
    return Argument(name, attribute or name, (default or None) if equals else REQUIRED)

"""Options that a plugin adds to commands that compile a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandOption:
    """An option that sets a property of one device; shorter to write than ``--property``.

    Attributes:
        flag: The option, e.g. ``"--pin"``.
        device: Name of the device that has the property.
        property: Name of the property.
        metavar: Placeholder for the value in the help.
        help: What the option does, in a sentence without a full stop.
        repeatable: Whether it may be given several times; the property then gets a list.
        parse: Converts the text to the property's value; its ``ValueError`` is shown to the user.
    """

    flag: str
    device: str
    property: str
    metavar: str
    help: str
    repeatable: bool = False
    parse: Callable[[str], Any] = str

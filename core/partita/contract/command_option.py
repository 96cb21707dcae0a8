"""What a plugin adds to commands that compile a model: options of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandOption:
    """An option that sets a property of one device, in a shorter way than ``--property`` does.

    Attributes:
        flag: As it is written, e.g. ``"--pin"``.
        device: The device that has the property, as the plugin names it.
        property: The property's name.
        metavar: What stands for the value in the help.
        help: What it does, in a sentence without a full stop.
        repeatable: Whether it may be given several times; the property then gets a list.
        parse: Makes the property's value of the text; a ``ValueError`` says what is wrong with it.
    """

    flag: str
    device: str
    property: str
    metavar: str
    help: str
    repeatable: bool = False
    parse: Callable[[str], Any] = str

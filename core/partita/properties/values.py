"""Settings as users give them: pairs and dicts, before any device has looked at them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from partita.errors import PropertyError
from partita.printable import shown

Config = Mapping[str, Any] | tuple[str, Any] | Iterable[tuple[str, Any]] | None
"""What is accepted as a set of properties: a dict, one pair, or pairs."""


def normalize(config: Config) -> dict[str, Any]:
    """Turns a dict, a pair, or pairs into a dict of plain keys and values.

    Raises:
        PropertyError: It is none of these, or a name is ``DEVICE:NAME``, as commands take it.
    """
    if config is None:
        return {}
    if isinstance(config, tuple) and len(config) == 2 and isinstance(config[0], str):
        config = [(config[0], config[1])]
    pairs = config.items() if isinstance(config, Mapping) else config
    result: dict[str, Any] = {}
    try:
        for key, value in pairs:
            check_name(key)
            _refuse_device_prefix(key, value)
            plain = value.value if isinstance(value, enum.Enum) else value
            result = merge(result, {str(key): plain})  # a key may come twice: one dict per device
    except (TypeError, ValueError) as error:
        if isinstance(error, PropertyError):
            raise
        raise PropertyError(
            f"Properties are a dict of name to value; found {type(config).__name__}."
        ) from error
    return result


def check_name(name: object) -> None:
    """Refuses what is no name of a property.

    Raises:
        PropertyError: It is no text.
    """
    if not isinstance(name, str):
        raise PropertyError(f"Property names are strings; found {shown(name)}.")


def _refuse_device_prefix(key: str, value: object) -> None:
    """Says how a property of one device is given where an option of commands is tried."""
    device, _, name = key.rpartition(":")
    if device and name:
        raise PropertyError(
            f"{shown(key)} is what commands take for property {shown(name)} of device "
            f"{shown(device)}; in Python it is written "
            f"{shown({'DEVICE_PROPERTIES': {device: {name: value}}})}."
        )


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lays settings over one another, later ones on top; values that are dicts merge key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            both = isinstance(below, Mapping) and isinstance(value, Mapping)
            result[key] = merge(below, value) if both else value  # type: ignore[arg-type]  # both
    return result

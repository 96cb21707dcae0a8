"""Device strings: ``NAME``, ``NAME.ID`` and ``NAME:DEVICE,DEVICE``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from partita.errors import DeviceStringError

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_ID = re.compile(r"[A-Za-z0-9_-]+")
_DEVICE = re.compile(rf"({_NAME.pattern})(?:\.({_ID.pattern}))?")
_ENTRY = re.compile(r"(-?)([^()-][^()]*)(?:\(([1-9][0-9]{0,5})\))?")


@dataclass(frozen=True, slots=True)
class DeviceString:
    """A parsed device string.

    Attributes:
        name: The plugin's device name, e.g. ``"HETERO"``.
        device_id: What stands behind the dot, or ``""``.
        priorities: The list behind the colon, or ``None`` if there is no colon.
    """

    name: str
    device_id: str = ""
    priorities: tuple[str, ...] | None = None

    @property
    def device(self) -> str:
        """Name and id, without the list."""
        return f"{self.name}.{self.device_id}" if self.device_id else self.name


@dataclass(frozen=True, slots=True)
class ListEntry:
    """An entry of a device list.

    Attributes:
        device: Name and id.
        count: The number in parentheses behind it (requests, or their batch), or ``None``.
        is_excluded: Whether a minus stands before it: all devices but this one are meant.
    """

    device: str
    count: int | None = None
    is_excluded: bool = False


def is_device_name(text: str) -> bool:
    """Whether a text can be a plugin's device name."""
    return _NAME.fullmatch(text) is not None


def is_device_id(text: str) -> bool:
    """Whether a text can be the id of a device; ``""`` is that of a plugin's only one."""
    return not text or _ID.fullmatch(text) is not None


def parse(text: str) -> DeviceString:
    """Parses a device string.

    Example:
        >>> parse("HETERO:GPU.1,CPU")
        DeviceString(name='HETERO', device_id='', priorities=('GPU.1', 'CPU'))

    Raises:
        DeviceStringError: It has another form; says what is wrong and what the form is.
    """
    if not isinstance(text, str):
        raise DeviceStringError(f"A device is named by a string; found {type(text).__name__}.")
    head, colon, tail = text.strip().partition(":")
    name, device_id = _split(head, text)
    return DeviceString(name, device_id, parse_list(tail, text) if colon else None)


def parse_list(text: str, whole: str | None = None) -> tuple[str, ...]:
    """Parses a comma-separated device list, e.g. ``"GPU.1,CPU"``; refuses doubles.

    Raises:
        DeviceStringError: An entry is empty, malformed or listed twice.
    """
    entries = tuple(entry.strip() for entry in text.split(","))
    for entry in entries:
        parse_entry(entry, whole or text)
    doubles = sorted({entry for entry in entries if entries.count(entry) > 1})
    if doubles:
        raise DeviceStringError(
            f"Device string '{whole or text}' lists {', '.join(map(repr, doubles))} twice; "
            "name each device once, the first being preferred."
        )
    return entries


def parse_entry(text: str, whole: str | None = None) -> ListEntry:
    """Parses an entry of a device list; which of its forms are meant, the list's device says.

    Example:
        >>> parse_entry("GPU.1(4)")
        ListEntry(device='GPU.1', count=4, is_excluded=False)

    Raises:
        DeviceStringError: It has another form than ``NAME``, ``NAME.ID``, either with a number in
            parentheses behind it or a minus before it.
    """
    match = _ENTRY.fullmatch(text)
    device = text if match is None or (match[1] and match[3]) else match[2]
    _split(device, whole or text)
    if match is None or device == text:
        return ListEntry(device)
    return ListEntry(device, int(match[3]) if match[3] else None, bool(match[1]))


def _split(text: str, whole: str) -> tuple[str, str]:
    match = _DEVICE.fullmatch(text)
    if match is None:
        found = f"'{text}'" if text else "an empty name"
        raise DeviceStringError(
            f"Device string '{whole}' holds {found}; the form is NAME, NAME.ID or "
            "NAME:DEVICE,DEVICE in capitals, e.g. 'CPU', 'OPENCL.1', 'HETERO:GPU,CPU'."
            f"{_guess(whole)}"
        )
    return match[1], match[2] or ""


def _guess(text: str) -> str:
    """What may have been meant by a device string that is none, or what to write for it."""
    plain = text.strip()
    capitals = plain.upper()
    head, colon, tail = capitals.partition(":")
    if "," in plain and not colon and all(map(_is_right, capitals.split(","))):
        return (
            " A list of devices stands behind the one that uses them and a colon: "
            f"'NAME:{capitals}'."
        )
    candidates = [capitals]
    if colon:
        candidates.append(f"{head}:{','.join(filter(None, re.split('[,; ]+', tail)))}")
    else:
        spaced = re.fullmatch(r"(\w+)\s*[( ]\s*([^()]+?)\s*\)?", capitals)
        candidates += [f"{spaced[1]}:{spaced[2]}"] if spaced else []
    for candidate in candidates:
        if candidate != plain and all(map(_is_right, re.split("[:,]", candidate))):
            return f" Did you mean '{candidate}'?"
    if "(" in tail or ")" in tail:
        device = tail.partition("(")[0].rpartition(",")[2].strip()
        return (
            " What stands in parentheses behind a device is a whole number from 1, of requests or "
            f"of a batch: '{head}:{device}(4)'."
        )
    return ""


def _is_right(name: str) -> bool:
    """Whether the name of a device has its form."""
    return _DEVICE.fullmatch(name.strip()) is not None


def join(name: str, device_id: str) -> str:
    """The device string of a name and an id."""
    return f"{name}.{device_id}" if device_id else name

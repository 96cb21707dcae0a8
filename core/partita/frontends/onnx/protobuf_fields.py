"""Protobuf as it stands in a file: fields, each a number, a kind and its content.

Walking along their lengths needs no parser, and tells why one refuses a file.
"""

from __future__ import annotations

from typing import Any

VARINT, _EIGHT, BYTES, _FOUR = 0, 1, 2, 5
"""Kinds of fields: a number, 8 bytes, a length and so many bytes, 4 bytes."""

Field = tuple[int, int, int, int, int]
"""Number, kind, start, start of the content, and end: a plain tuple, as files have thousands."""

MOST_NESTED = 100
"""Messages inside of each other that protobuf parses, the outermost counted."""


def is_nested_too_deep(data: memoryview, descriptor: Any) -> bool:
    """Whether messages lie in each other deeper than protobuf parses, as far as they can be read.

    Args:
        data: A message.
        descriptor: What kind it is of, a ``google.protobuf.descriptor.Descriptor``.
    """
    left = [(data, descriptor, 1)]
    while left:
        message, kind, depth = left.pop()
        if depth > MOST_NESTED:
            return True
        try:
            found = fields_of(message)
        except (IndexError, ValueError):
            continue
        for number, form, _, begin, end in found:
            field = kind.fields_by_number.get(number)
            if form == BYTES and field is not None and field.message_type is not None:
                left.append((message[begin:end], field.message_type, depth + 1))
    return False


def fields_of(data: memoryview) -> list[Field]:
    """The fields of a message, in order.

    Raises:
        IndexError: It ends in the middle of a field.
        ValueError: A kind that protobuf does not have any more.
    """
    fields: list[Field] = []
    at, end = 0, len(data)
    while at < end:
        start = at
        tag: int = data[at]
        at += 1
        if tag > 127:
            tag, at = number_at(data, start)
        kind, begin = tag & 7, at
        if kind == BYTES:
            size: int = data[at]
            at += 1
            if size > 127:
                size, at = number_at(data, begin)
            begin = at
            at += size
        elif kind == VARINT:
            _, at = number_at(data, at)
        elif kind == _EIGHT:
            at += 8
        elif kind == _FOUR:
            at += 4
        else:
            raise ValueError(f"kind {kind}")
        if at > end:
            raise IndexError
        fields.append((tag >> 3, kind, start, begin, at))
    return fields


def number_at(data: memoryview, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    byte: int = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of too many bytes")


def field_head(number: int, size: int) -> bytes:
    """What stands before the content of a field of so many bytes: its tag and its length.

    Example:
        >>> field_head(1, 300).hex()
        '0aac02'
    """
    return _varint(number << 3 | BYTES) + _varint(size)


def _varint(value: int) -> bytes:
    if value < 128:
        return _SMALL[value]
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


_SMALL = [bytes([value]) for value in range(128)]

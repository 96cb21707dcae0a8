"""Sizes in bytes as people write them."""

from __future__ import annotations

from pydantic import ByteSize, TypeAdapter, ValidationError

_SIZE = TypeAdapter(ByteSize)


def parse_bytes(text: str) -> int:
    """A number of bytes.

    Example:
        >>> parse_bytes("2GiB"), parse_bytes("1.5 kB"), parse_bytes("4096")
        (2147483648, 1500, 4096)

    Raises:
        ValueError: It is no size.
    """
    try:
        return int(_SIZE.validate_python(text))
    except ValidationError as error:
        raise ValueError(
            f"'{text}' is not a size; write bytes, or e.g. 512MiB, 2GiB or 1.5GB"
        ) from error


def parse_limit(text: str) -> tuple[str, int]:
    """A device and the bytes that it may hold.

    Example:
        >>> parse_limit("GPU.1=2GiB")
        ('GPU.1', 2147483648)

    Raises:
        ValueError: It has another form.
    """
    device, equals, size = text.rpartition("=")
    try:
        if not equals or not device:
            raise ValueError("no device is named")
        return device, parse_bytes(size)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; write DEVICE=SIZE") from error


def format_bytes(count: int) -> str:
    """A number of bytes for people.

    Example:
        >>> format_bytes(2147483648), format_bytes(1500), format_bytes(12)
        ('2.0 GiB', '1.5 KiB', '12 B')
    """
    return ByteSize(count).human_readable(separator=" ")

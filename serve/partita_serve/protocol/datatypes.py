"""The protocol's element types, and their byte layout."""

from __future__ import annotations

import math
import struct
from typing import Any

import ml_dtypes
import numpy as np

from partita_serve.protocol.errors import InvalidRequest, NotSupported
from partita_serve.protocol.records import Array

BYTES = "BYTES"
"""The type of texts and other strings of bytes."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    BYTES: np.dtype(object),
}

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_LENGTH = struct.Struct("<I")
"""What stands before each element of ``BYTES``."""


def datatype_of(dtype: np.dtype[Any] | None) -> str:
    """The protocol's name of an element type.

    Raises:
        NotSupported: The protocol has none for it.
    """
    name = None if dtype is None else _NAMES.get(dtype)
    if name is None:
        raise NotSupported(
            f"The protocol has no element type for {dtype}; it has {', '.join(_DTYPES)}."
        )
    return name


def dtype_of(datatype: str) -> np.dtype[Any]:
    """The numpy type of an element type; ``object`` for ``BYTES``.

    Raises:
        InvalidRequest: The protocol has no such type.
    """
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise InvalidRequest(
            f"There is no datatype {datatype!r}; the protocol has {', '.join(_DTYPES)}."
        )
    return dtype


def array_from_bytes(
    name: str, datatype: str, shape: tuple[int, ...], data: bytes | bytearray | memoryview
) -> Array:
    """An array over bytes in C order and little-endian; a copy is made for ``BYTES`` alone.

    Args:
        name: The tensor's name, for messages.
        datatype: The protocol's name of its type.
        shape: Its dimensions, none of them negative.
        data: The bytes.

    Raises:
        InvalidRequest: There are more or fewer bytes than the shape has.
    """
    dtype = dtype_of(datatype)
    count = math.prod(shape)
    if datatype == BYTES:
        return in_shape(name, _strings_from_bytes(name, count, data), shape)
    if len(data) != count * dtype.itemsize:
        raise InvalidRequest(
            f"Input '{name}' has {len(data)} bytes; {datatype}{list(shape)} takes "
            f"{count * dtype.itemsize}."
        )
    return in_shape(name, np.frombuffer(data, dtype), shape)


def in_shape(name: str, elements: Array, shape: tuple[int, ...]) -> Array:
    """Elements in a shape that a client sent.

    Args:
        name: The tensor's name, for messages.
        elements: The elements, in C order.
        shape: The dimensions, none of them negative.

    Raises:
        InvalidRequest: It has another number of elements, or is none.
    """
    try:
        return elements.reshape(shape)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"Input '{name}' has {elements.size} elements, which are none of shape {list(shape)}."
        ) from error


def array_to_bytes(data: Array) -> memoryview:
    """The bytes of an array in C order and little-endian, as a view where they lie so already."""
    if data.dtype.hasobject:
        return memoryview(b"".join(_LENGTH.pack(len(one)) + one for one in data.reshape(-1)))
    # bfloat16 has no buffer format, so that bytes are requested.
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _strings_from_bytes(name: str, count: int, data: bytes | bytearray | memoryview) -> Array:
    """Elements that have their lengths before them."""
    if count * _LENGTH.size > len(data):
        raise InvalidRequest(
            f"Input '{name}' has {len(data)} bytes; {count} elements of BYTES take at least "
            f"{count * _LENGTH.size}."
        )
    view, at = memoryview(data), 0
    strings = np.empty(count, object)
    for index in range(count):
        end = at + _LENGTH.size
        if end > len(view):
            raise InvalidRequest(f"Input '{name}' ends inside element {index} of {count}.")
        at, end = end, end + _LENGTH.unpack_from(view, at)[0]
        if end > len(view):
            raise InvalidRequest(f"Input '{name}' ends inside element {index} of {count}.")
        strings[index] = bytes(view[at:end])
        at = end
    if at != len(view):
        raise InvalidRequest(
            f"Input '{name}' has {len(view) - at} bytes behind its {count} elements."
        )
    return strings

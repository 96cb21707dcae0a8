"""Tensors as JSON holds them: lists of numbers, truth values or texts, nested or flat."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_serve.protocol.datatypes import BYTES, dtype_of, in_shape
from partita_serve.protocol.errors import InvalidRequest
from partita_serve.protocol.records import Array

_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf"}
"""By the kind of an element type, the kinds of what its JSON may hold; bfloat16 is a ``V``."""


def array_from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """An array of the ``data`` of an input, in row-major order.

    Args:
        name: Of the input, for errors.
        datatype: As the protocol calls it, such as ``"FP32"``.
        shape: Its sizes.
        data: What JSON has: a list, nested or flat.

    Raises:
        InvalidRequest: It is no list, ragged, of elements that the type does not have, or there
            are more or fewer of them than the shape has.
    """
    dtype = dtype_of(datatype)
    if not isinstance(data, list):
        raise InvalidRequest(f"Input '{name}' needs 'data', a list; found {_kind(data)}.")
    try:
        if datatype == BYTES:
            return in_shape(name, _texts(name, data), shape)
        kinds = _kinds(data)
        if str in kinds:  # numpy would give each element the room of the longest text
            raise InvalidRequest(f"Input '{name}' is {datatype}; its data holds texts.")
        if bool in kinds and dtype.kind != "b":  # numpy would make numbers of them beside numbers
            raise InvalidRequest(f"Input '{name}' is {datatype}; its data holds truth values.")
        found = np.asarray(data)
        if dtype.kind in "iu" and found.dtype.kind == "f":
            found = _exact(np.asarray(data, object), found)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"The data of input '{name}' is not a tensor: {error}.") from error
    if found.size and found.dtype.kind not in _KINDS[dtype.kind]:
        raise InvalidRequest(f"Input '{name}' is {datatype}; its data holds {_held(found)}.")
    if found.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if found.min() < limits.min or found.max() > limits.max:
            raise InvalidRequest(
                f"Input '{name}' is {datatype}, from {limits.min} to {limits.max}; its data goes "
                f"from {found.min()} to {found.max()}."
            )
    with np.errstate(over="ignore"):  # too large for the type is infinite, as JSON's 1e999
        return in_shape(name, found.astype(dtype).reshape(-1), shape)


def json_data(name: str, data: Array) -> Any:
    """An output's elements as JSON can hold them: a flat list, or an array that orjson writes.

    Raises:
        InvalidRequest: JSON has no form for some of them.
    """
    flat = data.reshape(-1)
    if flat.dtype.hasobject:
        try:
            return [one.decode() for one in flat]
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"Output '{name}' holds bytes that are not text; ask for binary data."
            ) from error
    if flat.dtype.kind in "fV":
        if flat.dtype.itemsize == 2:
            flat = flat.astype(np.float32)
        if not np.isfinite(flat).all():
            raise InvalidRequest(
                f"Output '{name}' holds infinite numbers or NaN, for which JSON has no form; ask "
                "for binary data."
            )
    return np.ascontiguousarray(flat)


def _exact(objects: Array, found: Array) -> Array:
    """Whole numbers as such where numpy made fractions of them: some are beyond int64."""
    whole = all(type(one) is int for one in objects.reshape(-1))
    return objects.astype(np.uint64) if whole else found


def _texts(name: str, data: list[Any]) -> Array:
    flat = np.array(data, object).reshape(-1)
    for index, one in enumerate(flat):
        if not isinstance(one, str):
            raise InvalidRequest(f"Input '{name}' is BYTES; its data holds {_kind(one)}.")
        flat[index] = one.encode()
    return flat


def _kinds(data: list[Any]) -> set[type]:
    """The types of the innermost elements, down to the first texts."""
    kinds = set(map(type, data))
    while list in kinds and str not in kinds:
        data = [one for part in data if type(part) is list for one in part]
        kinds = set(map(type, data))
    return kinds


def _held(found: Array) -> str:
    if found.dtype.kind == "O":
        return "something else than numbers"
    if found.dtype.kind == "f":  # also what JSON's reader makes of 20 digits
        return "numbers with a point or exponent, or of more than 64 bits"
    return "numbers"


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__

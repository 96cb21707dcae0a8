"""Arrays for new host tensors, made of what applications give: ports, packed bytes, texts."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.tensors.element_type import Type
from partita.tensors.host import HOST as HOST

PACKED_TYPES = (Type.u2, Type.i2, Type.u4, Type.i4, Type.f4e2m1)
"""Types of which applications pack several elements into a byte, and numpy stores one."""


def array_of_port(port: Any, array: Any) -> np.ndarray[Any, Any]:
    """Zeros with a port's type and shape, or a view of an array's bytes with these.

    Unknown sizes are 0, as in OpenVINO's tensors.
    """
    dtype = checked_dtype(port.get_element_type())
    dims = port.get_partial_shape()
    if dims.rank.is_dynamic:
        raise InputError(f"{port!r} has no known rank, so no tensor can be made of it alone.")
    sizes = tuple(dim.get_length() if dim.is_static else 0 for dim in dims)
    if array is None:
        return np.zeros(sizes, dtype)
    if not isinstance(array, np.ndarray):
        raise InputError(f"Tensor(port, array) takes an array; found {type(array).__name__}.")
    return array_seen_as(array, sizes, dtype)


def unpacked_array(
    array: np.ndarray[Any, Any], shape: tuple[int, ...], kind: Type
) -> np.ndarray[Any, Any]:
    """Unpacks elements of less than a byte; the first of a byte is in its lowest bits."""
    bits = kind.bitwidth
    in_byte = 8 // bits
    count = math.prod(shape)
    wanted = -(-count // in_byte)
    if array.dtype.itemsize != 1 or not array.flags.c_contiguous or wanted > array.nbytes:
        raise InputError(
            f"A tensor {kind.value}{list(shape)} needs {wanted} contiguous bytes; "
            f"found {array.dtype}{list(array.shape)}."
        )
    held = array.reshape(-1).view(np.uint8)[:wanted]
    shifts = np.arange(in_byte, dtype=np.uint8) * np.uint8(bits)
    codes = (held[:, None] >> shifts).reshape(-1)[:count] & np.uint8((1 << bits) - 1)
    if kind is Type.f4e2m1:
        return codes.view(kind.dtype).reshape(shape)
    if kind in (Type.i2, Type.i4):  # the highest bit is the sign
        lowest = 1 << (bits - 1)
        signed = (codes ^ np.uint8(lowest)).astype(np.int8) - np.int8(lowest)
        return signed.astype(kind.dtype).reshape(shape)
    return codes.astype(kind.dtype).reshape(shape)


def array_of_texts(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of texts as objects, as ONNX's runtimes have them."""
    for held in array.flat:
        if not isinstance(held, (str, bytes)):
            found = f"{type(held).__name__} among {array.dtype}{list(array.shape)}"
            raise InputError(
                f"A tensor holds numbers, truth values or texts; found {found}. Numbers need a "
                "type of their own: give array.astype('float32')."
            )
    texts = np.empty(array.shape, object)
    texts.reshape(-1)[:] = [decoded_text(text) for text in array.flat]
    return texts


def decoded_text(text: str | bytes) -> str:
    """A text of numpy's or UTF-8 as Python's."""
    if not isinstance(text, bytes):
        return str(text)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"A tensor's texts are in UTF-8; found {text[:40]!r}.") from error


def array_seen_as(
    array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """A view of an array's bytes with another shape and dtype."""
    wanted = math.prod(shape) * dtype.itemsize
    if array.dtype.hasobject or dtype.hasobject or not array.flags.c_contiguous:
        raise InputError("Only contiguous arrays can be viewed in another shape.")
    if wanted > array.nbytes:
        raise InputError(
            f"A tensor {dtype}{list(shape)} needs {wanted} bytes; the array has {array.nbytes}."
        )
    return array.reshape(-1).view(np.uint8)[:wanted].view(dtype).reshape(shape)


def checked_sizes(dims: Any) -> tuple[int, ...]:
    """Dimensions given by an application, as a tuple."""
    try:
        sizes = tuple(operator.index(dim) for dim in dims)
    except TypeError as error:
        raise InputError(f"A shape is a sequence of whole numbers; found {dims!r}.") from error
    if min(sizes, default=0) < 0:
        raise InputError(f"A shape has no negative dimensions; found {list(sizes)}.")
    return sizes


def checked_dtype(kind: Any) -> np.dtype[Any]:
    """The numpy dtype of an element type in any notation."""
    try:
        found: np.dtype[Any] = np.dtype(kind)
    except TypeError as error:
        raise InputError(f"{kind!r} is not an element type of a tensor.") from error
    return found

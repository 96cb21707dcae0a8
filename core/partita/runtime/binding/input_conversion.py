"""From what a caller hands in to what a runner takes: checked, contiguous host tensors."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Number
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.model.model import Port
from partita.tensors.element_type import Type, integral_limits
from partita.tensors.sequence_values import boxed
from partita.tensors.tensor import HOST, HostTensor, Tensor

Array = np.ndarray[Any, Any]

_TIMES = (np.datetime64, np.timedelta64)

Room = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Gives an array of a shape and type."""


def to_tensor(port: Port, data: Any, copy: bool, room: Room = np.empty) -> Tensor:
    """Makes an input tensor of anything that an application may hold.

    Args:
        port: The input that it is for.
        data: A ``Tensor``, an array, an object with ``__array__`` or ``__dlpack__``, a list or a
            number; for a sequence a list of arrays, which are copied. Arrays of another type are
            converted where only digits may be lost: never fractions to whole numbers, nor whole
            numbers to a type that does not hold them. Tensors are never converted.
        copy: Copy the elements of arrays in any case. Otherwise a contiguous, aligned array of the
            right type is wrapped as it is. Tensors are handed over, and copied only if their
            array is not contiguous or not aligned.
        room: Gives the array of a shape and type to which elements are copied in any case.

    Raises:
        InputError: Wrong dtype or shape; says what was found and what is expected.
    """
    if type(data) is not np.ndarray and isinstance(data, Tensor):
        check(port, data.dtype, data.shape)
        if data.memory == HOST and not is_plain(data.numpy()):
            return HostTensor(np.array(data.numpy(), order="C"))
        return data
    if port.dtype is None and _is_sequence(data):
        data = boxed([np.array(item, order="C") for item in data])
    array = data if type(data) is np.ndarray else _as_array(port, data)
    if array.dtype != port.dtype:
        array = _matching_dtype(port, array)
    check(port, array.dtype, array.shape)
    if copy:
        held = room(array.shape, array.dtype)
        held[...] = array
        array = held
    elif not is_plain(array):
        array = np.array(array, order="C")
    return HostTensor(array)


def wrapping_test(port: Port) -> Callable[[Array], bool]:
    """What tells that :func:`to_tensor` would wrap an array without converting or copying it.

    It takes half a microsecond, and is ``False`` of some that would be wrapped.
    """
    dtype, due = port.dtype, port.shape
    if due is None or port.bounds:
        return lambda array: False
    rank = len(due)
    fixed = [(axis, size) for axis, size in enumerate(due) if isinstance(size, int)]

    def is_wrapped(array: Array) -> bool:
        shape = array.shape
        if array.dtype is not dtype or len(shape) != rank:
            return False
        for axis, size in fixed:
            if shape[axis] != size:
                return False
        return array.flags.carray or is_plain(array)

    return is_wrapped


def _is_sequence(data: Any) -> bool:
    """Whether data are arrays in a list, or none: a sequence where no tensor is due."""
    return isinstance(data, (list, tuple)) and all(hasattr(item, "__array__") for item in data)


def zeros_for(port: Port) -> HostTensor:
    """A host tensor of zeros for a port of known rank and type; sizes not known are the least."""
    return HostTensor(np.zeros(port.partial_shape.get_min_shape(), port.dtype))


def is_plain(array: Array) -> bool:
    """Whether devices can read an array as it is: in C order, elements where processors want them.

    Arrays made of bytes at odd addresses (``np.frombuffer``, fields of records) are not aligned.
    """
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def check(port: Port, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Compares type and shape with what a port takes.

    Raises:
        InputError: They do not fit.
    """
    fits = port.dtype is None or dtype == port.dtype
    if not (fits and port.takes(shape)):
        dims = ", ".join(map(str, shape))
        kind = "Input" if port.is_input else "Output"
        message = f"{kind} '{port.name}' takes {port.describe()}; found {dtype}[{dims}]."
        if not fits:
            message += f" Convert it with .astype({str(port.dtype)!r})."
        raise InputError(message)


def _as_array(port: Port, data: Any) -> Array:
    try:
        if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
            raise ValueError("elements of it are masked, fill them with .filled(value)")
        if hasattr(data, "__array__"):
            return np.asarray(data)
        if hasattr(data, "__dlpack__"):
            return np.from_dlpack(data)
        array = np.asarray(data)
        if array.size and not _converts(array.dtype, port.dtype):
            raise TypeError(f"its elements are {array.dtype}")
        return np.asarray(data, dtype=port.dtype)  # lists and numbers have no type of their own
    except (TypeError, ValueError, OverflowError, RuntimeError, BufferError) as error:
        raise InputError(
            f"Input '{port.name}' takes {port.describe()}; {type(data).__name__} cannot be made "
            f"one: {error}"
        ) from error


def _converts(found: np.dtype[Any], wanted: np.dtype[Any] | None) -> bool:
    """Whether elements of a list may become a type: never text to numbers, nor 1.5 to 1."""
    if wanted is None or wanted == found:
        return True
    if wanted == np.dtype(object):
        return found.kind in "UT"
    if wanted.kind in "biu":
        return found.kind in "biu"
    return found.kind in ("biufc" if wanted.kind == "c" else "biuf")


def _holds_numbers(array: Array, wanted: np.dtype[Any]) -> bool:
    """Whether an array's elements are numbers or texts of some; numpy takes times and records, too.

    Complex ones are none where their imaginary parts would be dropped.
    """
    found = array.dtype
    if found.hasobject:
        return all(isinstance(element, (Number, np.generic, str)) for element in array.flat)
    if found.kind == "c":
        return wanted.kind == "c"
    return found.kind in "biuf" or not issubclass(found.type, (np.void, *_TIMES))


def _would_be_lost(array: Array, wanted: np.dtype[Any]) -> str:
    """What conversion of numbers to a type would lose beside digits; empty if nothing.

    Fractions are lost where the types say that there may be some, whichever elements an array has;
    whole numbers where one of them is out of range. Any of these is a truth value.

    Args:
        array: Numbers of any type, or objects.
        wanted: A type of numbers.
    """
    due = Type(wanted)
    if not due.integral or array.size == 0 or array.dtype.kind in "USTb":
        return ""
    if array.dtype.hasobject:
        whole = (Integral, np.integer, np.bool_, str)
        return "" if all(isinstance(element, whole) for element in array.flat) else "fractions"
    is_short = array.dtype.kind == "V"  # of ml_dtypes, of whose types numpy knows nothing
    if array.dtype.kind not in "iu" and not (is_short and Type(array.dtype).integral):
        return "fractions"
    if due is Type.boolean or (wanted.kind != "V" and np.can_cast(array.dtype, wanted)):
        return ""
    plain = array.astype(np.int8) if is_short else array
    least, most = int(plain.min()), int(plain.max())
    lowest, highest = integral_limits(due)
    if lowest <= least and most <= highest:
        return ""
    return f"numbers out of its range (found {least} to {most})"


def _matching_dtype(port: Port, array: Array) -> Array:
    """The elements in the port's type if nothing but digits is lost by that; texts stay texts."""
    if port.dtype is None:
        return array
    if port.dtype.hasobject:
        return array.astype(object) if array.dtype.kind in "UST" else array
    try:
        if not _holds_numbers(array, port.dtype):
            raise TypeError("they are not numbers, or none that this type holds a part of")
        lost = _would_be_lost(array, port.dtype)
        if not lost:
            return array.astype(port.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"Input '{port.name}' takes {port.describe()}; the elements of {array.dtype}"
            f"{list(array.shape)} cannot be converted: {error}"
        ) from error
    raise InputError(
        f"Input '{port.name}' takes {port.describe()}; found {array.dtype}{list(array.shape)}, "
        f"which would lose {lost}. If that is intended, convert it with "
        f".astype({str(port.dtype)!r})."
    )

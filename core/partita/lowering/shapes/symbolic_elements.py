"""Arithmetic on small arrays whose elements may be symbolic: sizes, and floats computed of them.

Detectors scale an image by a quotient of its sizes, and round what comes out to a size again. A
symbolic float is a :class:`Size` whose value is a number of numpy, of the type of its operator;
numpy rounds each result to that type, as kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering.program import Array, Operand, Packed
from partita.lowering.shapes.symbolic_size import evaluated, holds_sizes, present

_INT64 = np.dtype(np.int64)


def objects(x: Array) -> Array:
    """An array of objects, in which floats stay numbers of their type."""
    if x.dtype.kind != "f":
        return x.astype(object)
    found = np.empty(x.size, object)
    found[:] = list(x.reshape(-1))
    return found.reshape(x.shape)


def float_type(x: Array) -> np.dtype[Any] | None:
    """The type of an array's floats, symbolic or not; ``None`` of other elements."""
    if x.dtype != object:
        return x.dtype if x.dtype.kind == "f" else None
    for element in map(present, x.reshape(-1).tolist()):
        if isinstance(element, np.floating):
            return np.dtype(element.dtype)
    return None


def computed(fn: Callable[..., Any], *arrays: Array) -> Array:
    """What a function of numpy makes of the elements of arrays of one shape and type, or of one.

    Args:
        fn: A function of numbers and of arrays, known by itself: a ufunc of numpy.
        arrays: Its arguments; one of no dimensions goes with each element of the others.
    """
    if all(x.dtype != object for x in arrays):
        return np.asarray(_silent(fn, *arrays), arrays[0].dtype)
    spread = np.broadcast_arrays(*map(objects, arrays))
    columns = (x.reshape(-1).tolist() for x in spread)
    found = np.empty(spread[0].size, object)
    found[:] = [evaluated(_silent, fn, *elements) for elements in zip(*columns, strict=True)]
    return found.reshape(spread[0].shape)


def converted(x: Array, dtype: np.dtype[Any]) -> Array:
    """An array of numbers with each of them cast to a type of floats, or to int64."""
    if x.dtype != object:
        with np.errstate(all="ignore"):
            return x.astype(dtype)
    found = np.empty(x.size, object)
    found[:] = [evaluated(_cast, dtype, element) for element in x.reshape(-1).tolist()]
    return found.reshape(x.shape)


def _silent(fn: Callable[..., Any], *args: Any) -> Any:
    """What a function makes of numbers; of integers an ``int``, since that is what sizes are."""
    with np.errstate(all="ignore"):
        made = fn(*args)
    return int(made) if isinstance(made, np.integer) else made


def _cast(dtype: np.dtype[Any], number: Any) -> Any:
    with np.errstate(all="ignore"):
        made = np.asarray(number).astype(dtype)[()]
    return int(made) if dtype.kind == "i" else made


def is_symbolic(operand: Operand) -> bool:
    """Whether there are sizes, or what is computed of them, among the elements of a constant."""
    if isinstance(operand, Packed):
        return False
    const = operand.const
    return const is not None and const.dtype == object and holds_sizes(const)


def is_table_of_sizes(operand: Operand) -> bool:
    """Whether it is a symbolic constant whose elements are integers, each of which is known."""
    const = operand.const if is_symbolic(operand) else None
    return const is not None and operand.dtype == _INT64 and const.ndim == operand.ndim

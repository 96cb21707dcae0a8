"""Application arrays in every form of memory, checked byte by byte for changes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

import partita
from partita.tensors.sequence_values import unboxed
from partita_conformance.inputs.models import Array

_EDGE, _MARK = 96, 0x5A
CONTIGUOUS = frozenset(
    (
        "new",
        "at an offset",
        "read-only",
        "frozen",
        "in a file",
        "where they lay",
        "results",
        "one for all",
        "in one block",
    )
)
"""Manners in which runners without a request may be given arrays."""
_MOST_IN_LISTS = 600


class Subclass(np.ndarray[Any, Any]):
    """An application's own class of arrays."""


class ArrayLike:
    """What has an array and is none."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The array."""
        return self._array if dtype is None else self._array.astype(dtype)


class Lent:
    """An input as an application holds it.

    Args:
        array: Its elements.
        manner: A level of dimension ``inputs``; where it cannot be, the array is plain.
        rng: Draws offsets.

    Attributes:
        given: What to hand in.
        array: The elements, as an array where they lie.
        blocks: The memory that holds them, and what lies beside.
        owner: Who may write there in his next run, if anybody.
    """

    owner: object = None

    def __init__(self, array: Array, manner: str, rng: random.Random) -> None:
        self.blocks: list[Array] = []
        self._items: list[Array] | None = None
        self._fixed = False
        self.array = self._copy_laid_out(array, manner, rng)
        self.given: Any = self.array
        small = array.size <= _MOST_IN_LISTS and not array.dtype.hasobject
        match manner:
            case "of a subclass":
                self.given = self.array.view(Subclass)
            case "lists" if small and array.size and array.dtype.kind in "fiub":
                self.given = self.array.tolist()
            case "tensors":
                self.given = partita.HostTensor(self.array)
            case "of another type" if array.dtype in (np.float32, np.int32, np.float16):
                self.given = self.array.astype("f8" if array.dtype.kind == "f" else "i8")
            case "big-endian" if array.dtype.kind in "fiu" and array.dtype.itemsize > 1:
                self.given = self.array.astype(array.dtype.newbyteorder(">"))
            case "array-likes" if not array.dtype.hasobject:
                self.given = ArrayLike(self.array)
        self.hold()

    @classmethod
    def over(cls, array: Array, fixed: bool = True, owner: object = None) -> Lent:
        """An array that is there already, handed in as it is.

        Args:
            array: The array.
            fixed: Whether it is never to hold anything else.
            owner: Who may write to it in his next run, if anybody.
        """
        lent = cls.__new__(cls)
        lent.blocks, lent._items, lent._fixed = [], None, fixed
        lent.array, lent.given, lent.owner = array, array, owner
        lent.hold()
        return lent

    def _copy_laid_out(self, array: Array, manner: str, rng: random.Random) -> Array:
        """A copy that lies as the manner says."""
        if array.dtype.hasobject:
            value = unboxed(array)
            if value is not array:
                self._items = value if isinstance(value, list) else [value]
            return array.copy()
        match manner:
            case "frozen":
                return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
            case "in a file" if array.size:
                with tempfile.TemporaryFile() as file:
                    file.write(array.tobytes())
                    file.flush()
                    return np.memmap(file, array.dtype, "r", shape=array.shape).view(np.ndarray)
            case "unaligned" if array.dtype.itemsize > 1:
                return self._carved(array, 1, 1, "C")
            case "at an offset":
                return self._carved(array, array.itemsize * rng.choice((1, 3, 5, 11)), 1, "C")
            case "strided":
                return self._carved(array, 0, 2, "C")
            case "in Fortran order":
                return self._carved(array, 0, 1, "F")
            case "reversed" if array.ndim:
                back = tuple(slice(None, None, -1) for _ in array.shape)
                return self._carved(np.array(array[back], order="C"), 0, 1, "C")[back]
        made = self._carved(array, 0, 1, "C")
        made.flags.writeable = manner != "read-only"
        return made

    def _carved(self, array: Array, offset: int, step: int, order: Any) -> Array:
        """A copy in the middle of a block of bytes, so many behind a multiple of 64."""
        block = np.full(array.nbytes * step + 2 * _EDGE + 64, _MARK, np.uint8)
        start = -block.ctypes.data % 64 + _EDGE - _EDGE % 64 + offset
        strides = np.empty(array.shape, array.dtype, order).strides
        taken = tuple(step * stride for stride in strides)
        made = np.ndarray(array.shape, array.dtype, block.data, start, taken)
        made[...] = array
        self.blocks.append(block)
        return made

    @property
    def size(self) -> int:
        """Bytes that are looked at."""
        return sum(block.nbytes for block in self.blocks) + self.array.nbytes

    def change(self, fresh: Array, one: bool, rng: random.Random) -> bool:
        """Writes other elements where the array lies, or one; whether it can be written to."""
        if self.given is not self.array or not self.array.flags.writeable:
            return False
        if self._items is not None or self._fixed:
            return False
        if one and self.array.size:
            place = np.unravel_index(rng.randrange(self.array.size), self.array.shape)
            self.array[place] = fresh[place]
        else:
            self.array[...] = fresh
        self.hold()
        return True

    def hold(self) -> None:
        """What it holds now is what it is to hold."""
        self._held, self._form = self._contents(), self._seen()

    def fault(self) -> str | None:
        """What somebody has changed."""
        if self._seen() != self._form:
            return f"is of another form: {self._seen()}, not {self._form}"
        if self._contents() != self._held:
            return "or what lies beside it was written to"
        return None

    def _seen(self) -> Any:
        one = self.array
        return one.shape, one.strides, one.dtype, one.flags.writeable, one.ctypes.data

    def _contents(self) -> Any:
        if self._items is not None:
            return [item if item is None else item.tobytes() for item in self._items]
        if self.array.dtype.hasobject:
            return self.array.tolist()
        return [block.tobytes() for block in self.blocks] or self.array.tobytes()


def in_one_block(arrays: Sequence[Array]) -> list[Lent]:
    """Arrays that lie one directly behind the other, as fields of a record of the application."""
    found: list[Lent] = []
    block = np.full(sum(array.nbytes + 64 for array in arrays) + 64, _MARK, np.uint8)
    place = -block.ctypes.data % 64
    for array in arrays:
        if array.dtype.hasobject:
            found.append(Lent(array, "new", random.Random(0)))  # noqa: S311
            continue
        place += -(block.ctypes.data + place) % array.itemsize
        made: Array = np.ndarray(array.shape, array.dtype, block.data, place)
        made[...] = array
        place += array.nbytes
        found.append(Lent.over(made, fixed=False))
    return found


def target(due: Array, offset: int) -> Array:
    """Where an output of a form may go: it holds something, and bytes beside it do as well."""
    if due.dtype.hasobject:
        return np.full(due.shape, "held before", object)
    block = np.full(due.nbytes + 2 * _EDGE + 64, 0x01, np.uint8)
    start = -block.ctypes.data % 64 + _EDGE - _EDGE % 64 + offset * due.itemsize
    made: Array = np.ndarray(due.shape, due.dtype, block.data, start)
    if due.dtype.kind == "f":
        made[...] = np.nan  # which nothing multiplied or added takes away
    return made


def edges_hold(array: Array) -> bool:
    """Whether nobody has written beside such an array."""
    base: Any = array.base
    if array.dtype.hasobject or base is None:
        return True
    block = np.frombuffer(base, np.uint8)
    start = array.ctypes.data - block.ctypes.data
    beside = block[:start], block[start + array.nbytes :]
    return all(bool((part == 0x01).all()) for part in beside)

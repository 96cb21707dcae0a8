"""A GGUF file: its metadata and where its tensors lie, read from memory that is not trusted.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import copy
import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.gguf.block_formats import BLOCK_FORMATS, BlockFormat, type_name

MAGIC = b"GGUF"
"""The first bytes of every such file."""

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_LARGEST_ALIGNMENT = 1 << 20
_MOST_DIMENSIONS = 4
_LONGEST_NAME = 1 << 16
_DEEPEST_ARRAY = 4
"""Arrays in arrays that are followed; files in the wild have none."""

_MOST_ENTRIES = 1 << 16
"""Entries of the metadata of a file; these and what follows cost Python objects."""

_MOST_TENSORS = 1 << 17
"""Tensors of a file; mixtures with a tensor for each expert have some thousands."""

_MOST_NESTED = 1 << 16
"""Arrays that arrays of a file may hold."""

_MOST_TEXTS = 1 << 21
"""Texts in arrays of a file; vocabularies of 262,144 tokens come with half a million merges."""

_STRING, _ARRAY = 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Types of metadata that are numbers."""

_LENGTH = struct.Struct("<Q")

Value = Any
"""A number, a bool, a text, an array of numbers, a :class:`TextArray`, or a list of arrays."""


class TextArray(Sequence[str]):
    """Texts of the metadata, decoded when they are asked for.

    Args:
        data: The file.
        starts: Where each text starts in it.
        ends: Where each text ends in it.
    """

    def __init__(self, data: memoryview, starts: Sequence[int], ends: Sequence[int]) -> None:
        self._data, self._starts, self._ends = data, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _text(self.raw(index))

    def raw(self, index: int) -> bytes:
        """The bytes of a text: those of vocabularies need not be UTF-8."""
        return bytes(self._data[self._starts[index] : self._ends[index]])


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        name: E.g. ``"blk.0.attn_q.weight"``.
        shape: Sizes, the slowest first (the file lists them the other way round).
        format: How its elements are stored.
        data: Its bytes, a view of the file.
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    data: memoryview

    def blocks(self) -> np.ndarray[Any, Any]:
        """The blocks as records, as many in a row as it has; a view of the file."""
        rows = (*self.shape[:-1], self.shape[-1] // self.format.elements)
        return np.frombuffer(self.data, self.format.record).reshape(rows)

    def part(self, index: int) -> GgufTensor:
        """One of the tensors that the first dimension counts, e.g. an expert's; a view as well."""
        size = len(self.data) // self.shape[0]
        data = self.data[index * size : (index + 1) * size]
        return GgufTensor(f"{self.name}.{index}", self.shape[1:], self.format, data)

    def rows(self, first: int, count: int, name: str) -> GgufTensor:
        """So many of what the first dimension counts, under a name; a view as well."""
        size = len(self.data) // self.shape[0]
        data = self.data[first * size : (first + count) * size]
        return GgufTensor(name, (count, *self.shape[1:]), self.format, data)


class GgufFile:
    """What a GGUF file holds; nothing is copied but texts and numbers of the metadata.

    Args:
        data: The bytes, which have to stay as they are.
        origin: What messages call the file.

    Attributes:
        metadata: Key to value, e.g. ``"general.architecture"`` to ``"llama"``.
        tensors: Name to tensor.
        origin: What messages call the file.

    Raises:
        ModelFormatError: It is no GGUF file, is cut short or damaged, or holds types of tensors
            that are not read.
    """

    def __init__(self, data: memoryview, origin: str) -> None:
        self.origin = origin
        reader = _Reader(data, origin)
        count = reader.header()
        self.metadata: Mapping[str, Value] = reader.metadata()
        self.tensors: Mapping[str, GgufTensor] = reader.tensors(count, _alignment(self))

    def with_tensors(self, tensors: Mapping[str, GgufTensor]) -> GgufFile:
        """A file with the same metadata and other tensors."""
        file = copy.copy(self)
        file.tensors = tensors
        return file


def _alignment(file: GgufFile) -> int:
    found = file.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    power = isinstance(found, int) and 0 < found <= _LARGEST_ALIGNMENT and not found & (found - 1)
    if isinstance(found, bool) or not power:
        raise ModelFormatError(
            f"{file.origin} has general.alignment {found!r}; powers of two up to "
            f"{_LARGEST_ALIGNMENT} are allowed."
        )
    return int(found)


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """What the file's table says about a tensor; its bytes count from the start of the data."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    offset: int
    nbytes: int


class _Reader:
    """Reads a file from front to back; every size is held against what is left of the file."""

    def __init__(self, data: memoryview, origin: str) -> None:
        self._data = data
        self._origin = origin
        self._at = 0
        self._pairs = 0
        self._nested = 0
        self._texts_told = 0

    def error(self, fault: str) -> ModelFormatError:
        """The refusal of the file."""
        return ModelFormatError(
            f"{self._origin} is not a GGUF file that can be read: {fault} (at byte {self._at} of "
            f"{len(self._data)}); download it again."
        )

    def header(self) -> int:
        """Reads magic, version and counts; returns the number of tensors."""
        if bytes(self._take(4, "the file's first word")) != MAGIC:
            raise self.error(f"it does not start with {MAGIC!r}")
        version = int(self._number(4, "the version"))
        if version not in _VERSIONS:
            if version & 0xFFFF == 0:
                raise self.error("it is written for big-endian machines, which is not read")
            raise self.error(f"it is of version {version}; versions 2 and 3 are read")
        tensors = self._count("tensors", 8 + 4 + 8 + 4 + 8, _MOST_TENSORS)
        self._pairs = self._count("metadata entries", 8 + 4 + 1, _MOST_ENTRIES)
        return tensors

    def metadata(self) -> dict[str, Value]:
        """The metadata, by key."""
        found: dict[str, Value] = {}
        for _ in range(self._pairs):
            key = self._name("a key of the metadata")
            if key in found:
                raise self.error(f"its metadata names '{key}' twice")
            found[key] = self._value(int(self._number(4, f"the type of '{key}'")), key)
        return found

    def tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        """The tensors, by name."""
        entries = [self._entry(alignment) for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        end, last = 0, ""
        for entry in sorted(entries, key=lambda entry: entry.offset):
            if entry.name in found:
                raise self.error(f"it has two tensors '{entry.name}'")
            if entry.offset < end:
                raise self.error(f"tensors '{last}' and '{entry.name}' overlap")
            end, last = entry.offset + entry.nbytes, entry.name
            if start + end > len(self._data):
                raise self.error(
                    f"tensor '{entry.name}' ends at byte {start + end}: the file is cut short"
                )
            data = self._data[start + entry.offset : start + end]
            found[entry.name] = GgufTensor(entry.name, entry.shape, entry.format, data)
        return found

    def _entry(self, alignment: int) -> _TensorEntry:
        name = self._name("the name of a tensor")
        rank = int(self._number(4, f"the rank of tensor '{name}'"))
        if not 1 <= rank <= _MOST_DIMENSIONS:
            raise self.error(f"tensor '{name}' has {rank} dimensions; 1 to {_MOST_DIMENSIONS} are")
        sizes = [int(self._number(10, f"a dimension of tensor '{name}'")) for _ in range(rank)]
        number = int(self._number(4, f"the type of tensor '{name}'"))
        offset = int(self._number(10, f"the offset of tensor '{name}'"))
        form = BLOCK_FORMATS.get(number)
        if form is None:
            known = ", ".join(one.name for one in BLOCK_FORMATS.values())
            raise ModelFormatError(
                f"{self._origin}: tensor '{name}' is of type {type_name(number)}, which is not "
                f"read; these are: {known}."
            )
        elements = math.prod(sizes)
        if not elements or elements > len(self._data) * form.elements:
            raise self.error(f"tensor '{name}' has the shape {sizes[::-1]}")
        if sizes[0] % form.elements:
            raise self.error(
                f"tensor '{name}' has rows of {sizes[0]} elements, no multiple of the "
                f"{form.elements} of {form.name}"
            )
        if offset % alignment or offset > len(self._data):
            raise self.error(f"tensor '{name}' lies at offset {offset}, alignment {alignment}")
        nbytes = elements // form.elements * form.record.itemsize
        return _TensorEntry(name, tuple(sizes[::-1]), form, offset, nbytes)

    def _value(self, kind: int, key: str, depth: int = 0) -> Value:
        if kind == _STRING:
            return _text(bytes(self._take(self._length(key), f"the text of '{key}'")))
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind == 7:
            return self._number(0, f"'{key}'") != 0
        return self._number(kind, f"'{key}'")

    def _array(self, key: str, depth: int) -> Value:
        if depth >= _DEEPEST_ARRAY:
            raise self.error(f"arrays in '{key}' lie deeper than {_DEEPEST_ARRAY}")
        kind = int(self._number(4, f"the type of elements of '{key}'"))
        if kind == _STRING:
            return self._texts(key)
        if kind == _ARRAY:
            count = self._count(f"arrays in '{key}'", 4 + 8, _MOST_NESTED - self._nested)
            self._nested += count
            return [self._array(key, depth + 1) for _ in range(count)]
        dtype = self._dtype(kind, f"'{key}'")
        count = self._count(f"elements of '{key}'", dtype.itemsize)
        raw = self._take(count * dtype.itemsize, f"the elements of '{key}'")
        if dtype == np.dtype("?"):
            return np.frombuffer(raw, np.uint8) != 0
        return np.frombuffer(raw, dtype)

    def _texts(self, key: str) -> TextArray:
        count = self._count(f"texts of '{key}'", 8, _MOST_TEXTS - self._texts_told)
        self._texts_told += count
        data, size, at = self._data, len(self._data), self._at
        starts, ends = array("q", (0,)) * count, array("q", (0,)) * count
        for index in range(count):  # a vocabulary: this is the long loop of reading
            if at + 8 > size:
                break
            (length,) = _LENGTH.unpack_from(data, at)
            starts[index] = at + 8
            at += 8 + length
            if at > size:
                break
            ends[index] = at
        if at > size or (count and ends[-1] != at):
            raise self.error(f"the texts of '{key}' end beyond the file")
        self._at = at
        return TextArray(data, starts, ends)

    def _dtype(self, kind: int, what: str) -> np.dtype[Any]:
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            raise self.error(f"{what} is of type {kind}, which GGUF does not have")
        return dtype

    def _number(self, kind: int, what: str) -> int | float:
        dtype = self._dtype(kind, what)
        found: int | float = np.frombuffer(self._take(dtype.itemsize, what), dtype)[0].item()
        return found

    def _count(self, what: str, smallest: int, most: int | None = None) -> int:
        """A number of things, each of which takes at least ``smallest`` bytes."""
        count = int(self._number(10, f"the number of {what}"))
        if count > (len(self._data) - self._at) // smallest:
            raise self.error(f"it claims {count} {what}, more than the file has room for")
        if most is not None and count > most:
            raise self.error(f"it claims {count} {what}, and no more than {most} are read")
        return count

    def _length(self, what: str) -> int:
        return int(self._number(10, f"the length of {what}"))

    def _name(self, what: str) -> str:
        length = self._length(what)
        if length > _LONGEST_NAME:
            raise self.error(f"{what} has {length} bytes; {_LONGEST_NAME} are allowed")
        raw = bytes(self._take(length, what))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is no UTF-8: {raw[:40]!r}") from None

    def _take(self, nbytes: int, what: str) -> memoryview:
        if nbytes > len(self._data) - self._at:
            raise self.error(f"{what} ({nbytes} bytes) goes beyond its end")
        start = self._at
        self._at += nbytes
        return self._data[start : self._at]


def _text(raw: bytes) -> str:
    """The text; bytes that are no UTF-8 become the sign for that."""
    return raw.decode(errors="replace")

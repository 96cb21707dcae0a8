"""Machine code that is loaded without a compiler: object files cut down to what is called.

LLVM writes object files of the ELF format, in which every address that code uses is a word to be
filled in. An image is what can be reached from the functions that are wanted, laid out as it will
lie in memory, and the places of these words. numba's object files also hold what Python calls them
by; it hangs on numba's own library, and is not reached.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partita.lowering import Array

PAGE = mmap.PAGESIZE

_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8  # types of sections
_IN_MEMORY, _WRITABLE, _CODE = 2, 1, 4  # flags of sections
_UNDEFINED, _COMMON = 0, 0xFFF2  # sections of symbols
_ADDRESS = 1  # the one type of relocation: a whole word
_NEVER_CALLED = frozenset({"NRT_MemInfo_call_dtor"})
"""What compiled kernels name and do not call: arrays of a caller belong to nobody there."""


class ImageError(Exception):
    """An object file that cannot become an image."""


@dataclass(frozen=True)
class Image:
    """What is in memory when it is loaded, but for addresses.

    Attributes:
        content: The bytes, those that are only read or executed first.
        fixed: How many of them that are; a whole number of pages.
        functions: Name to place of the wanted functions.
        inner: Rows of (place of a word, place that it is the address of).
        outer: Name outside of it to the places of words that hold its address.
    """

    content: bytes
    fixed: int
    functions: dict[str, int]
    inner: Array
    outer: dict[str, list[int]]

    def pack(self) -> bytes:
        """The image as bytes."""
        head = {"fixed": self.fixed, "functions": self.functions, "outer": self.outer}
        text = json.dumps(head | {"inner": len(self.inner)}).encode()
        inner = self.inner.astype("<i8").tobytes()
        return struct.pack("<Q", len(text)) + text + inner + self.content

    @classmethod
    def unpack(cls, data: bytes) -> Image:
        """The image that :meth:`pack` wrote."""
        (size,) = struct.unpack_from("<Q", data)
        head = json.loads(data[8 : 8 + size])
        count = head["inner"]
        inner = np.frombuffer(data, "<i8", 2 * count, 8 + size).reshape(count, 2)
        content = data[8 + size + 16 * count :]
        return cls(content, head["fixed"], head["functions"], inner, head["outer"])


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    about: int
    align: int
    entry: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


def image_of(elf: bytes, wanted: Sequence[str]) -> Image:
    """What the wanted functions of an object file need.

    Raises:
        ImageError: It is not what LLVM writes for a process like this one, or it needs something
            that no library of the process has.
    """
    return _Reader(elf).image(wanted)


class _Reader:
    """An object file that is being cut down; a part is a function, or a section of data."""

    def __init__(self, elf: bytes) -> None:
        self._elf = elf
        (start,) = struct.unpack_from("<Q", elf, 0x28)
        (count,) = struct.unpack_from("<H", elf, 0x3C)
        self._sections = [
            _Section(*struct.unpack_from("<IIQQQQIIQQ", elf, start + 64 * n)) for n in range(count)
        ]
        self._symbols = self._read_symbols()
        self._starts: dict[int, list[tuple[int, int]]] = {}
        for symbol in self._symbols:
            if self._is_code(symbol.section) and symbol.size:
                span = (symbol.value, symbol.value + symbol.size)
                self._starts.setdefault(symbol.section, []).append(span)
        self._words = self._read_words()

    def image(self, wanted: Sequence[str]) -> Image:
        named = {symbol.name: symbol for symbol in self._symbols if symbol.section != _UNDEFINED}
        if missing := [name for name in wanted if name not in named]:
            raise ImageError(f"there is no {missing[0]}")
        reached = self._reach(
            [self._part(named[name].section, named[name].value) for name in wanted]
        )
        places, content, fixed = self._lay_out({section for section, _ in reached})
        inner: list[tuple[int, int]] = []
        outer: dict[str, list[int]] = {}
        for part in reached:
            for offset, symbol, addend in self._words.get(part, ()):
                place = places[part[0]] + offset
                if symbol.section == _UNDEFINED:
                    if addend or not _comes_later(symbol.name):
                        raise ImageError(f"there is no {symbol.name} outside")
                    outer.setdefault(symbol.name, []).append(place)
                else:
                    inner.append((place, places[symbol.section] + symbol.value + addend))
        functions = {n: places[named[n].section] + named[n].value for n in wanted}
        pairs = np.array(sorted(inner), np.int64).reshape(len(inner), 2)
        return Image(content, fixed, functions, pairs, outer)

    def _text(self, start: int) -> str:
        return self._elf[start : self._elf.index(b"\0", start)].decode()

    def _is_code(self, section: int) -> bool:
        return section < len(self._sections) and bool(self._sections[section].flags & _CODE)

    def _read_symbols(self) -> list[_Symbol]:
        found = []
        for section in self._sections:
            if section.kind != _SYMBOLS:
                continue
            names = self._sections[section.link].offset
            for start in range(section.offset, section.offset + section.size, 24):
                name, _, _, place, value, size = struct.unpack_from("<IBBHQQ", self._elf, start)
                found.append(_Symbol(self._text(names + name), place, value, size))
        return found

    def _read_words(self) -> dict[tuple[int, int], list[tuple[int, _Symbol, int]]]:
        """For each part the words in it that are addresses: offset, symbol, what is added."""
        words: dict[tuple[int, int], list[tuple[int, _Symbol, int]]] = {}
        for section in self._sections:
            if section.kind != _RELOCATIONS or not self._sections[section.about].flags & _IN_MEMORY:
                continue
            for start in range(section.offset, section.offset + section.size, 24):
                offset, about, addend = struct.unpack_from("<QQq", self._elf, start)
                part = self._part(section.about, offset)
                if about & 0xFFFFFFFF != _ADDRESS:
                    part = (section.about, -1)  # an image in which it is reached cannot be made
                words.setdefault(part, []).append((offset, self._symbols[about >> 32], addend))
        return words

    def _part(self, section: int, offset: int) -> tuple[int, int]:
        """The function that a place lies in, or the section."""
        for first, last in self._starts.get(section, ()):
            if first <= offset < last:
                return section, first
        return section, 0

    def _reach(self, parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        found = dict.fromkeys(parts)
        stack = list(parts)
        while stack:
            part = stack.pop()
            if (part[0], -1) in self._words:
                raise ImageError("an address is no whole word")
            for _, symbol, addend in self._words.get(part, ()):
                if symbol.section == _COMMON or symbol.section > len(self._sections) + 1:
                    raise ImageError(f"{symbol.name} has no place")
                if symbol.section != _UNDEFINED:
                    other = self._part(symbol.section, symbol.value + addend)
                    if other not in found:
                        found[other] = None
                        stack.append(other)
        return list(found)

    def _lay_out(self, sections: set[int]) -> tuple[dict[int, int], bytes, int]:
        """Places of the sections, their bytes, and how many of them are never written."""
        places: dict[int, int] = {}
        content = bytearray()
        fixed = 0
        for writable in (False, True):
            for number in sorted(sections):
                section = self._sections[number]
                if bool(section.flags & _WRITABLE) != writable:
                    continue
                content += bytes(-len(content) % max(section.align, 64))
                places[number] = len(content)
                if section.kind == _ZEROS:
                    content += bytes(section.size)
                else:
                    content += self._elf[section.offset : section.offset + section.size]
            if not writable:
                content += bytes(-len(content) % PAGE)
                fixed = len(content)
        return places, bytes(content), fixed


def load(image: Image, unit: Callable[[str], int] | None = None) -> dict[str, int]:
    """Puts an image into memory, where it stays; returns the addresses of its functions.

    Args:
        image: The image.
        unit: Tells where other images' functions are that it calls; `is_unit` knows their names.

    Raises:
        ImageError: A library of this process lacks what the image needs, or the system does not
            let memory be executed.
    """
    size = max(len(image.content), 1)
    memory = mmap.mmap(-1, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory[: len(image.content)] = image.content
    view = np.frombuffer(memory, np.uint8)
    base = view.ctypes.data
    places, values = [image.inner[:, 0]], [image.inner[:, 1] + base]
    for name, found in image.outer.items():
        if is_unit(name) and unit is not None:
            target = unit(name)
        else:
            target = outside("abort" if name in _NEVER_CALLED else name)
        if not target:
            raise ImageError(f"there is no {name} outside")
        places.append(np.array(found, np.int64))
        values.append(np.full(len(found), target, np.int64))
    at, words = np.concatenate(places), np.concatenate(values).astype("<i8")
    view[at[:, None] + np.arange(8)] = words.view(np.uint8).reshape(-1, 8)
    if _libc().mprotect(ctypes.c_void_p(base), ctypes.c_size_t(image.fixed), 5):
        raise ImageError("the system does not let this process execute memory that it wrote")
    _kept.append((memory, view))
    return {name: base + place for name, place in image.functions.items()}


_kept: list[object] = []


def is_unit(name: str) -> bool:
    """Whether a function is one that is compiled apart; see `kernels.numba_jit.Kernel.symbol`."""
    return ":" in name


def _comes_later(name: str) -> bool:
    """Whether there will be a function of this name when the image is loaded."""
    return is_unit(name) or name in _NEVER_CALLED or bool(outside(name))


@functools.cache
def outside(name: str) -> int:
    """The address of a function of the process's libraries, or 0."""
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _libraries() -> list[ctypes.CDLL]:
    found = [_libc()]
    try:
        found.append(ctypes.CDLL("libm.so.6"))
    except OSError:
        return found
    return found

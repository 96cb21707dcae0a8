"""Machine code that is loaded without a compiler: object files cut down to what is called.

LLVM writes object files of the ELF format, in which every address that code uses is to be filled
in: as a word, or on 64-bit ARM by four instructions, each with a quarter of it. An image is what
can be reached from the functions that are wanted, laid out as it will lie in memory, and the places
of these words and instructions; distances within it (`aarch64_relocations`) are written when it is
made. numba's object files also hold what Python calls them by; it depends on numba's own library,
and is not reached.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.loader import aarch64_relocations
from partita_cpu.jit.loader.instruction_cache import forget_instructions

PAGE = mmap.PAGESIZE

FORMAT = 2
"""Of :meth:`Image.pack`. Who keeps images names it in the key, so that no older one is read."""

_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8  # types of sections
_IN_MEMORY, _WRITABLE, _CODE = 2, 1, 4  # flags of sections
_UNDEFINED, _COMMON = 0, 0xFFF2  # sections of symbols
_X86_64, _AARCH64 = 62, 183  # machines
_WORD = 0  # parts of addresses: a whole word, or the first to fourth quarter in an instruction
_QUARTERS = (1, 2, 3, 4)
_PARTS = {
    _X86_64: {1: _WORD},
    _AARCH64: {257: _WORD, 263: 1, 264: 1, 265: 2, 266: 2, 267: 3, 268: 3, 269: 4},
}
"""By machine and type of relocation, what of an address is filled in.

Other types are distances; see `aarch64_relocations`.
"""
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
        inner: Rows of (place that is filled in, part of an address, place that it tells).
        outer: Name outside of it to such places and parts.
    """

    content: bytes
    fixed: int
    functions: dict[str, int]
    inner: Array
    outer: dict[str, list[tuple[int, int]]]

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
        inner = np.frombuffer(data, "<i8", 3 * count, 8 + size).reshape(count, 3)
        content = data[8 + size + 24 * count :]
        outer = {name: [(a, b) for a, b in found] for name, found in head["outer"].items()}
        return cls(content, head["fixed"], head["functions"], inner, outer)


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
        (machine,) = struct.unpack_from("<H", elf, 0x12)
        self._parts = _PARTS.get(machine, {})
        self._distances = aarch64_relocations.KINDS if machine == _AARCH64 else frozenset()
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
        used = [(part, *found) for part in reached for found in self._words.get(part, ())]
        stubs = self._stubs(used)
        sections = {section for section, _ in reached}
        places, content, fixed = self._lay_out(sections, len(stubs))
        inner: list[tuple[int, int, int]] = []
        outer: dict[str, list[tuple[int, int]]] = {}

        def relocate(place: int, what: int, symbol: _Symbol, addend: int) -> None:
            if symbol.section == _UNDEFINED:
                if addend or not is_linked_later(symbol.name):
                    raise ImageError(f"there is no {symbol.name} outside")
                outer.setdefault(symbol.name, []).append((place, what))
            else:
                inner.append((place, what, places[symbol.section] + symbol.value + addend))

        for (section, _), offset, kind, symbol, addend in used:
            place = places[section] + offset
            if kind in self._parts:
                relocate(place, self._parts[kind], symbol, addend)
                continue
            within = _stub_offset(kind, symbol)
            if within is None:
                target = places[symbol.section] + symbol.value + addend
            else:
                target = (
                    places[_STUBS] + len(aarch64_relocations.STUB) * stubs[symbol, addend] + within
                )
            _write_distance(content, kind, place, target)
        for (symbol, addend), number in stubs.items():
            start = places[_STUBS] + len(aarch64_relocations.STUB) * number
            content[start : start + len(aarch64_relocations.STUB)] = aarch64_relocations.STUB
            relocate(start + aarch64_relocations.STUB_WORD, _WORD, symbol, addend)
        functions = {n: places[named[n].section] + named[n].value for n in wanted}
        rows = np.array(sorted(inner), np.int64).reshape(len(inner), 3)
        return Image(bytes(content), fixed, functions, rows, outer)

    def _stubs(self, used: Sequence[tuple[Any, int, int, _Symbol, int]]) -> dict[Any, int]:
        """Numbers of the stubs, by symbol and what is added to it."""
        found: dict[tuple[_Symbol, int], int] = {}
        for _, _, kind, symbol, addend in used:
            if kind not in self._parts and _stub_offset(kind, symbol) is not None:
                found.setdefault((symbol, addend), len(found))
        return found

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

    def _read_words(self) -> dict[tuple[int, int], list[tuple[int, int, _Symbol, int]]]:
        """For each part what is filled in: offset, type, symbol, what is added."""
        words: dict[tuple[int, int], list[tuple[int, int, _Symbol, int]]] = {}
        for section in self._sections:
            if section.kind != _RELOCATIONS or not self._sections[section.about].flags & _IN_MEMORY:
                continue
            for start in range(section.offset, section.offset + section.size, 24):
                offset, about, addend = struct.unpack_from("<QQq", self._elf, start)
                part = self._part(section.about, offset)
                kind = about & 0xFFFFFFFF
                if kind not in self._parts and kind not in self._distances:
                    part = (section.about, -1)  # an image in which it is reached cannot be made
                found = offset, kind, self._symbols[about >> 32], addend
                words.setdefault(part, []).append(found)
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
                raise ImageError("an address is filled in as no address is here")
            others = self._called(*part)
            for _, _, symbol, addend in self._words.get(part, ()):
                if symbol.section == _COMMON or symbol.section > len(self._sections) + 1:
                    raise ImageError(f"{symbol.name} has no place")
                if symbol.section != _UNDEFINED:
                    others.append(self._part(symbol.section, symbol.value + addend))
            for other in others:
                if other not in found:
                    found[other] = None
                    stack.append(other)
        return list(found)

    def _called(self, section: int, start: int) -> list[tuple[int, int]]:
        """Functions of its own section that a function calls without a relocation."""
        ends = [last for first, last in self._starts.get(section, ()) if first == start]
        if not self._distances or not ends:
            return []  # on x86-64 all calls are by whole addresses
        at = self._sections[section].offset
        code = self._elf[at + start : at + ends[0]]
        return [self._part(section, start + place) for place in aarch64_relocations.calls_in(code)]

    def _lay_out(self, sections: set[int], stubs: int) -> tuple[dict[int, int], bytearray, int]:
        """Places of the sections and stubs, their bytes, and how many of them are never written."""
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
                content += bytes(-len(content) % len(aarch64_relocations.STUB))
                places[_STUBS] = len(content)
                content += bytes(stubs * len(aarch64_relocations.STUB))
                content += bytes(-len(content) % PAGE)
                fixed = len(content)
        return places, content, fixed


_STUBS = -1
"""In place of a section's number."""


def _stub_offset(kind: int, symbol: _Symbol) -> int | None:
    try:
        return aarch64_relocations.stub_offset(kind, symbol.section == _UNDEFINED)
    except ValueError as error:
        raise ImageError(f"{error}: {symbol.name}") from error


def _write_distance(content: bytearray, kind: int, place: int, target: int) -> None:
    (word,) = struct.unpack_from("<I", content, place)
    try:
        word = aarch64_relocations.with_distance(word, kind, place, target)
    except ValueError as error:
        raise ImageError(str(error)) from error
    struct.pack_into("<I", content, place, word)


def load(image: Image, unit: Callable[[str], int] | None = None) -> dict[str, int]:
    """Puts an image into memory, where it stays; returns the addresses of its functions.

    Args:
        image: Its ``content`` stays as it is; a copy is loaded.
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
    rows = [image.inner + np.array((0, 0, base))]
    for name, found in image.outer.items():
        if is_unit(name) and unit is not None:
            target = unit(name)
        else:
            target = outside("abort" if name in _NEVER_CALLED else name)
        if not target:
            raise ImageError(f"there is no {name} outside")
        rows.append(np.array([(*place, target) for place in found], np.int64))
    fill_in(view, np.concatenate(rows))
    forget_instructions(base, image.fixed)
    if _libc().mprotect(ctypes.c_void_p(base), ctypes.c_size_t(image.fixed), 5):
        raise ImageError("the system does not let this process execute memory that it wrote")
    # When a process ends, modules are emptied while threads that nobody waits for still run this
    # code: it must not go with a module, but with the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(view))
    return {name: base + place for name, place in image.functions.items()}


def fill_in(view: Array, rows: Array) -> None:
    """Writes addresses; rows are of (place, part, address)."""
    words = rows[rows[:, 1] == _WORD]
    view[words[:, :1] + np.arange(8)] = words[:, 2].astype("<i8").view(np.uint8).reshape(-1, 8)
    for quarter in _QUARTERS:  # bits 5 to 20 of a move of 16 bits
        moves = rows[rows[:, 1] == quarter]
        places = moves[:, :1] + np.arange(4)
        codes = view[places].view("<u4")[:, 0] & ~np.uint32(0xFFFF << 5)
        parts = (moves[:, 2] >> 16 * (quarter - 1) & 0xFFFF).astype("<u4")
        view[places] = (codes | parts << np.uint32(5)).astype("<u4").view(np.uint8).reshape(-1, 4)


def is_unit(name: str) -> bool:
    """Whether a function is one that is compiled apart; see `KernelDefinition.symbol`."""
    return ":" in name


def is_linked_later(name: str) -> bool:
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

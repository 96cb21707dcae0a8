"""Links one object of an x86-64 processor to a shared library, as ``ld`` of binutils does.

PoCL makes an object of each kernel and asks for ``ld``, for ``libgcc`` and for ``libc`` to link
it: for a whole C compiler, which most machines that only run programs lack. What it needs is
little: all of the code is in that one object, made for any address; what it calls of the C library
is looked up when the library is loaded.

This file is a program, which takes a linker's arguments. It imports next to nothing, no paths,
types or data classes, so that it starts as quickly as a linker. What it is not made for it hands to
the ``ld`` of ``PATH``, since other programs may find it in that one's place.

Formats: System V ABI, chapters 4 and 5, and its supplement for AMD64, sections 4.4 and 5.2.
"""

# ruff: noqa: PTH118, PTH123  # paths are imported for longer than this takes for all else

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from struct import Struct

_PAGE = 4096
_X86_64, _OBJECT, _LIBRARY = 62, 1, 3
_HEADER = Struct("<16sHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_RELOCATION = Struct("<QQq")
_SEGMENT = Struct("<IIQQQQQQ")
_TAG = Struct("<QQ")

_CODE_OR_DATA, _SYMBOLS, _RELOCATIONS, _ZEROS, _UNWINDING = 1, 2, 4, 8, 0x70000001
"""Types of sections. Tables of the last one serve exceptions, of which kernels have none."""

_WRITABLE, _ALLOCATED, _EXECUTABLE, _OF_THREADS = 1, 2, 4, 0x400
"""Flags of sections."""

_UNDEFINED, _FIRST_SPECIAL = 0, 0xFF00
"""Numbers of sections that are none."""

_NONE, _ADDRESS, _DISTANCE, _DISTANCE_OF_CALL, _WIDE_DISTANCE = 0, 1, 2, 4, 24
_DISTANCES_OF_ENTRIES = 9, 41, 42
"""Relocations; those of entries are about the place that holds a symbol's address."""

_TO_SYMBOL, _TO_OWN = 6, 8
"""Relocations for the loader: the address of a symbol, and one in the library itself."""

_NEEDED = b"libm.so.6", b"libc.so.6"
_JUMP, _JUMP_BYTES = b"\xff\x25", 8
"""A jump to the address that a place at some distance holds, and what it takes with that."""


class LinkError(Exception):
    """An object is damaged, or has what no kernel has."""


class _Section:
    def __init__(self, kind: int, flags: int, content: bytes, others: tuple[int, int, int]) -> None:
        self.kind, self.flags, self.content = kind, flags, content
        self.link, self.info, self.alignment = others


class _Symbol:
    def __init__(self, name: bytes, binding_and_type: int, at: tuple[int, int, int]) -> None:
        self.name, self.binding_and_type = name, binding_and_type
        self.section, self.value, self.size = at


class _Object:
    """What an object file holds.

    Args:
        data: The file.

    Attributes:
        sections: Its sections.
        symbols: Its symbols.

    Raises:
        LinkError: It is no object of x86-64, or damaged.
        struct.error: The same.
    """

    def __init__(self, data: bytes) -> None:
        ident, kind, machine, _, _, _, at, *_, count, _ = _HEADER.unpack_from(data)
        if (ident[:6], kind, machine) != (b"\x7fELF\x02\x01", _OBJECT, _X86_64):
            raise LinkError("it is not an x86-64 object file")
        places = range(at, at + count * _SECTION.size, _SECTION.size)
        self.sections = [_section(data, place) for place in places]
        tables = [one for one in self.sections if one.kind == _SYMBOLS]
        self.symbols = [symbol for table in tables[:1] for symbol in self._symbols_of(table)]

    def relocations(self, number: int) -> list[tuple[int, int, _Symbol, int]]:
        """Of a section: the place in it, the type, the symbol, and what is added to it.

        Raises:
            LinkError: One of them has no symbol.
        """
        found = []
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.info == number:
                for place, info, addend in _entries(_RELOCATION, section):
                    if info >> 32 >= len(self.symbols):
                        raise LinkError("a relocation has no symbol")
                    found.append((place, info & 0xFFFFFFFF, self.symbols[info >> 32], addend))
        return found

    def _symbols_of(self, table: _Section) -> list[_Symbol]:
        if table.link >= len(self.sections):
            raise LinkError("symbols have no names")
        names = self.sections[table.link].content
        found = []
        for at, kind, other, section, value, size in _entries(_SYMBOL, table):
            name = names[at : max(names.find(b"\0", at), at)]
            is_hidden = other & 3
            found.append(_Symbol(name, kind & 15 if is_hidden else kind, (section, value, size)))
        return found


def _section(data: bytes, place: int) -> _Section:
    fields = _SECTION.unpack_from(data, place)
    _, kind, flags, _, start, size, link, info, alignment, _ = fields
    content = bytes(min(size, len(data) << 10)) if kind == _ZEROS else data[start : start + size]
    if len(content) != size:
        raise LinkError("it ends early")
    if alignment > _PAGE or alignment & (alignment - 1):
        raise LinkError(f"a section is aligned to {alignment} bytes")
    return _Section(kind, flags, content, (link, info, max(alignment, 1)))


def _entries(form: Struct, table: _Section) -> list[tuple[int, ...]]:
    if len(table.content) % form.size:
        raise LinkError("a table ends early")
    return list(form.iter_unpack(table.content))


class _Linker:
    """Lays the sections of an object out, and lets them reach one another.

    Args:
        given: The object.
    """

    def __init__(self, given: _Object) -> None:
        self._given = given
        self._image = bytearray(_HEADER.size + 5 * _SEGMENT.size)
        self._at: dict[int, int] = {}  # by number of a section where it is
        sought = (s for s in given.symbols if s.section == _UNDEFINED and s.name)
        self._sought = {symbol.name: symbol for symbol in sought}
        self._order = list(self._sought)
        self._jumps_at = self._entries_at = 0
        self._own_entries: dict[int, int] = {}  # by address the place that holds it
        self._for_loader: list[tuple[int, int, int]] = []

    def linked(self) -> bytes:
        """The shared library; its file is laid out as its memory.

        Raises:
            LinkError: The object has what no kernel has.
        """
        self._lay_out(0)
        code = self._next_page()
        self._lay_out(_EXECUTABLE)
        self._jumps_at = self._append(bytes(_JUMP_BYTES * len(self._order)), 16)
        data = self._next_page()
        self._lay_out(_WRITABLE)
        self._entries_at = self._append(bytes(8 * len(self._order)), 8)
        for number in self._at:
            self._relocate(number)
        self._write_jumps()
        dynamic, dynamic_bytes = self._describe_to_loader()
        end = len(self._image)
        segments = [
            (1, 4, 0, code),
            (1, 5, code, data - code),
            (1, 6, data, end - data),
            (2, 6, dynamic, dynamic_bytes),
            (0x6474E551, 6, 0, 0),  # a stack that holds no code
        ]
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        sizes = _HEADER.size, _SEGMENT.size, len(segments), _SECTION.size, 0, 0
        head = _HEADER.pack(ident, _LIBRARY, _X86_64, 1, 0, _HEADER.size, 0, 0, *sizes)
        for kind, flags, start, size in segments:
            page = _PAGE if kind == 1 else 8
            head += _SEGMENT.pack(kind, flags, start, start, start, size, size, page)
        self._image[: len(head)] = head
        return bytes(self._image)

    def _append(self, content: bytes, alignment: int) -> int:
        self._image += bytes(-len(self._image) % alignment)
        self._image += content
        return len(self._image) - len(content)

    def _next_page(self) -> int:
        return self._append(b"", _PAGE)

    def _lay_out(self, flags: int) -> None:
        """Appends the sections that are loaded, and writable or executable as the flags say."""
        for number, section in enumerate(self._given.sections):
            if not section.flags & _ALLOCATED or section.kind == _UNWINDING:
                continue
            if section.flags & _OF_THREADS or section.kind not in (_CODE_OR_DATA, _ZEROS):
                raise LinkError(f"a section has type {section.kind:#x}, flags {section.flags:#x}")
            if section.flags & (_WRITABLE | _EXECUTABLE) == flags:
                self._at[number] = self._append(section.content, section.alignment)

    def _relocate(self, number: int) -> None:
        """Writes what a section holds of addresses."""
        start, section = self._at[number], self._given.sections[number]
        for place, kind, symbol, addend in self._given.relocations(number):
            if kind == _NONE:
                continue
            at = start + place
            wide = kind in (_ADDRESS, _WIDE_DISTANCE)
            if place + (8 if wide else 4) > len(section.content):
                raise LinkError("a relocation is behind the end of its section")
            if kind == _ADDRESS and section.flags & _WRITABLE:
                self._leave_to_loader(at, symbol, addend)
                continue
            distance = self._target(kind, symbol) + addend - at
            struct.pack_into("<q" if wide else "<i", self._image, at, distance)

    def _target(self, kind: int, symbol: _Symbol) -> int:
        """What a relocation gives the distance of."""
        if symbol.name in self._sought and symbol.section == _UNDEFINED:
            number = self._order.index(symbol.name)
            if kind == _DISTANCE_OF_CALL:
                return self._jumps_at + number * _JUMP_BYTES
            if kind in _DISTANCES_OF_ENTRIES:
                return self._entries_at + number * 8
        elif kind in (_DISTANCE, _DISTANCE_OF_CALL, _WIDE_DISTANCE):
            return self._address(symbol)
        elif kind in _DISTANCES_OF_ENTRIES:
            return self._own_entry(self._address(symbol))
        raise LinkError(f"a relocation of '{symbol.name.decode(errors='replace')}' is {kind}")

    def _address(self, symbol: _Symbol) -> int:
        if symbol.section >= _FIRST_SPECIAL or symbol.section not in self._at:
            name = symbol.name.decode(errors="replace")
            raise LinkError(f"'{name}' is in no section that is loaded")
        return self._at[symbol.section] + symbol.value

    def _own_entry(self, address: int) -> int:
        """A place that holds an address of the library; behind those of other symbols."""
        if address not in self._own_entries:
            self._own_entries[address] = place = self._append(bytes(8), 8)
            self._for_loader.append((place, _TO_OWN, address))
        return self._own_entries[address]

    def _leave_to_loader(self, at: int, symbol: _Symbol, addend: int) -> None:
        if symbol.name in self._sought and symbol.section == _UNDEFINED:
            number = self._order.index(symbol.name) + 1
            self._for_loader.append((at, number << 32 | _ADDRESS, addend))
        else:
            self._for_loader.append((at, _TO_OWN, self._address(symbol) + addend))

    def _write_jumps(self) -> None:
        """Lets calls of other libraries' functions go by their entries."""
        for number in range(len(self._order)):
            jump, entry = self._jumps_at + number * _JUMP_BYTES, self._entries_at + number * 8
            distance = entry - (jump + len(_JUMP) + 4)
            self._image[jump : jump + 6] = _JUMP + struct.pack("<i", distance)
            self._for_loader.append((entry, number + 1 << 32 | _TO_SYMBOL, 0))

    def _describe_to_loader(self) -> tuple[int, int]:
        """Appends the tables of symbols and relocations; where the list of them is, its bytes."""
        names = bytearray(b"\0")

        def named(name: bytes) -> int:
            names.extend(name + b"\0")
            return len(names) - len(name) - 1

        symbols = [_SYMBOL.pack(0, 0, 0, 0, 0, 0)]
        for name, symbol in self._sought.items():
            binding = symbol.binding_and_type & 0xF0
            symbols.append(_SYMBOL.pack(named(name), binding, 0, _UNDEFINED, 0, 0))
        for symbol in self._given.symbols:
            kind = symbol.binding_and_type
            if kind >> 4 and symbol.section in self._at:
                at = self._address(symbol)
                symbols.append(_SYMBOL.pack(named(symbol.name), kind, 0, 1, at, symbol.size))
        needed = [named(library) for library in _NEEDED] if self._sought else []
        count = len(symbols)
        # One chain of all names: kernels have one or two.
        chain = [int(count > 1), 0, *range(2, count), 0][: count + 1]
        hashed = struct.pack(f"<{count + 3}I", 1, count, *chain)
        relocations = b"".join(_RELOCATION.pack(*one) for one in self._for_loader)
        tags = [(1, name) for name in needed]
        tags += [(4, self._append(hashed, 8)), (5, self._append(bytes(names), 1))]
        tags += [(10, len(names)), (6, self._append(b"".join(symbols), 8)), (11, _SYMBOL.size)]
        if relocations:
            tags += [(7, self._append(relocations, 8)), (8, len(relocations))]
            tags += [(9, _RELOCATION.size)]
        dynamic = b"".join(_TAG.pack(*tag) for tag in (*tags, (0, 0)))
        return self._append(dynamic, 8), len(dynamic)


def shared_library(data: bytes) -> bytes:
    """The shared library of one object.

    Args:
        data: The object file.

    Returns:
        The library's file.

    Raises:
        LinkError: The object is damaged, or has what no kernel has.
    """
    try:
        return _Linker(_Object(data)).linked()
    except struct.error as error:
        raise LinkError(f"it ends early, or a number does not fit ({error})") from error


def _asked(arguments: Sequence[str]) -> tuple[str, str] | None:
    """The object and the library that arguments name; ``None`` if they ask for something else."""
    objects, target, rest = [], "", iter(arguments)
    for argument in rest:
        if argument == "-o":
            target = next(rest, "")
        elif argument == "-m":
            next(rest, "")
        elif not argument.startswith("-"):
            objects.append(argument)
    is_one = "-shared" in arguments and len(objects) == 1 and target
    return (objects[0], target) if is_one else None


def main(arguments: Sequence[str]) -> int:
    """Links what the arguments of a linker name; the exit code is 1 if that cannot be done."""
    asked = _asked(arguments)
    if asked is None:
        for folder in os.get_exec_path():
            system = os.path.join(folder, "ld")
            if os.access(system, os.X_OK):
                os.execv(system, [system, *arguments])  # noqa: S606  # no shell is wanted
        sys.stderr.write("ld: this links one object to a shared library, no more\n")
        return 1
    source, target = asked
    try:
        with open(source, "rb") as file:
            data = file.read()
        library = shared_library(data)
        with open(target, "wb") as file:
            file.write(library)
    except (OSError, LinkError) as error:
        sys.stderr.write(f"ld: '{source}' cannot be linked: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

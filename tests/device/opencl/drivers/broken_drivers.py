"""Drivers that abort, hang or compute wrongly, made without a compiler.

Most are the PoCL of PyPI, through links, with another header: it includes one in front of every
kernel. What ends the process there is clang's own pragma for that. A library whose first function
is an illegal instruction, or an endless loop, needs no more than a page of ELF.
"""

import os
import platform
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from partita_opencl.drivers.installed_drivers import Driver

ABORT = "#pragma clang __debug llvm_fatal_error"
"""Ends the process while a kernel is built: LLVM ERROR, then SIGABRT."""

WRONG = "#define get_global_id(n) (0 * get_global_id(n))"
"""Lets all items compute the first one's results."""

needs_pocl_of_pypi = pytest.mark.skipif(
    find_spec("pocl_binary_distribution") is None, reason="PyPI has no PoCL for this system"
)
"""For tests of drivers that are made of it; where extra ``opencl`` brings it, they run."""

_DATA = "pocl_binary_distribution/.libs"
_INCLUDES = "share/pocl/include"


def broken_pocl(folder: Path, header: str) -> Driver:
    """PoCL with lines in front of every kernel; macros of the kernel's options are known there."""
    site = Path(find_spec("pyopencl").origin).parent.parent
    _link_all(site / "pyopencl/.libs", folder / "pyopencl/.libs")
    _link_all(site / _DATA, folder / _DATA)
    first = folder / _DATA / _INCLUDES / "_kernel.h"
    text = first.read_text()
    first.unlink()
    first.write_text(f"{text}\n{header}\n")
    (library,) = (folder / "pyopencl/.libs").glob("libpocl*")
    return _driver(folder, library)


def hanging_include(folder: Path) -> str:
    """A line of a header that a compiler never gets past: it waits for somebody to write."""
    pipe = folder / "nobody_writes_this.h"
    os.mkfifo(pipe)
    return f'#include "{pipe}"'


def library_that(folder: Path, does: str) -> Driver:
    """A driver that ``"aborts"`` or ``"hangs"`` when it is loaded."""
    codes = {
        "x86_64": {"aborts": b"\x0f\x0b", "hangs": b"\xeb\xfe"},
        "aarch64": {"aborts": b"\x00\x00\x20\xd4", "hangs": b"\x00\x00\x00\x14"},
    }
    library = folder / f"lib{does}.so"
    library.write_bytes(_shared_library(codes[platform.machine()][does]))
    return _driver(folder, library)


def _driver(folder: Path, library: Path) -> Driver:
    file = folder / "broken.icd"
    file.write_text(f"{library}\n")
    return Driver(file.name, str(library), str(file))


def _link_all(source: Path, target: Path) -> None:
    """Folders like those of the source, in which files are links."""
    for file in source.rglob("*"):
        if file.is_file():
            link = target / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)


def _shared_library(code: bytes) -> bytes:
    """An ELF library without symbols whose initialization is this code."""
    machine = {"x86_64": 62, "aarch64": 183}[platform.machine()]
    header, program = 64, 56
    dynamic_at = header + 3 * program
    tags = 8
    tables_at = dynamic_at + 16 * tags
    hash_at, symbols_at, names_at = tables_at, tables_at + 16, tables_at + 40
    code_at = tables_at + 48
    size = code_at + len(code)
    dynamic = [
        (4, hash_at),  # DT_HASH
        (5, names_at),  # DT_STRTAB
        (6, symbols_at),  # DT_SYMTAB
        (10, 1),  # DT_STRSZ
        (11, 24),  # DT_SYMENT
        (12, code_at),  # DT_INIT
        (0, 0),
        (0, 0),
    ]
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    elf = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 3, machine, 1, 0, header, 0, 0, header, program, 3, 64, 0, 0
    )

    def segment(kind, flags, start, length, align):
        return struct.pack("<IIQQQQQQ", kind, flags, start, start, start, length, length, align)

    load, dynamics, stack = 1, 2, 0x6474E551
    table = segment(load, 7, 0, size, 0x1000)
    table += segment(dynamics, 6, dynamic_at, 16 * tags, 8)
    table += segment(stack, 6, 0, 0, 16)
    body = b"".join(struct.pack("<QQ", *entry) for entry in dynamic)
    body += struct.pack("<IIII", 1, 1, 0, 0) + bytes(24) + bytes(8) + code
    return elf + table + body

"""Which instruction sets kernels may use: what the machine has, capped by PARTITA_CPU_ISA.

LLVM ends the whole process when it is asked for an instruction that the target lacks, and a
processor with AMX faults unless the system has granted the use of its tiles. So nothing is ever
compiled for a set that was not found here.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import platform
import sys

from partita.errors import PropertyError
from partita_cpu.native import store

VARIABLE = "PARTITA_CPU_ISA"
"""Environment variable: the most that kernels may use."""

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18
_KEPT = ("processor", "features")


class Isa(enum.IntEnum):
    """Levels of instruction sets; each has all that those before it have."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3

    @property
    def label(self) -> str:
        """The name in properties, profiles and the environment."""
        return self.name.lower()


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}

REQUIRED: dict[Isa, frozenset[str]] = {
    Isa.AVX2: _AVX2,
    Isa.AVX512: _AVX512,
    Isa.AMX: _AVX512 | {"avx512bf16", "amx-tile", "amx-bf16", "amx-int8"},
}
"""Features, as LLVM names them, that kernels of a level are compiled for."""


def isa() -> Isa:
    """The level that kernels may use now.

    Raises:
        PropertyError: PARTITA_CPU_ISA names no level.
    """
    limit = cap()
    return Isa.PORTABLE if limit is Isa.PORTABLE else min(limit, detected())


def cap() -> Isa:
    """The level that PARTITA_CPU_ISA allows; all if it is not set."""
    name = os.environ.get(VARIABLE, "").strip().lower()
    if not name:
        return Isa.AMX
    for level in Isa:
        if level.label == name:
            return level
    levels = ", ".join(level.label for level in Isa)
    raise PropertyError(f"Environment variable {VARIABLE} is '{name}'; choose one of {levels}.")


@functools.cache
def detected() -> Isa:
    """The highest level that this machine has; asks the system for AMX if the processor has it."""
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.maxsize < 2**32:
        return Isa.PORTABLE
    present = host_features()
    found = Isa.PORTABLE
    for level, needed in REQUIRED.items():
        if not needed <= present or (level is Isa.AMX and not _tiles_granted()):
            break
        found = level
    return found


@functools.cache
def host_features() -> frozenset[str]:
    """Features of the processor, by LLVM's names; kept on disk, since LLVM takes long to load."""
    known = store.read(*_KEPT) if store.knows_processor() else None
    if known is not None:
        return frozenset(known.decode().split())
    from llvmlite import binding

    found = frozenset(name for name, there in binding.get_host_cpu_features().items() if there)
    if store.knows_processor():
        store.write(*_KEPT, " ".join(sorted(found)).encode())
    return found


def _tiles_granted() -> bool:
    """Asks Linux for the tile registers, once for all threads of the process."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)

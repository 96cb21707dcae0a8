"""Detection of the instruction set level that kernels may use, capped by PARTITA_CPU_ISA.

LLVM ends the whole process when it is asked for an instruction that the target lacks, and a
processor with AMX faults unless the system has granted the use of its tiles. So nothing is ever run
of a level that was not found here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Mapping

from partita.errors import DeviceUnavailableError, PropertyError, raised_as
from partita_cpu.jit import disk_cache
from partita_cpu.llvm.levels import AARCH64, ANY, CHAINS, EVERY, PORTABLE, X86_64, Level
from partita_cpu.system import this_system

VARIABLE = "PARTITA_CPU_ISA"
"""Environment variable: the most that kernels may use."""

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18
_KEPT = ("processor", "features")
_MACHINES = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


def isa() -> Level:
    """The level that kernels may use now.

    Raises:
        PropertyError: PARTITA_CPU_ISA names no level of this architecture.
    """
    limit = cap()
    if limit is PORTABLE:
        return PORTABLE  # nothing need be known of the machine
    if limit is None:
        return detected()
    chain = CHAINS[architecture()]
    allowed = chain[: chain.index(limit) + 1]
    return [level for level in available() if level in allowed][-1]


def cap() -> Level | None:
    """The level that PARTITA_CPU_ISA names; ``None`` if it is not set."""
    name = os.environ.get(VARIABLE, "").strip().lower()
    if not name:
        return None
    chain = CHAINS.get(architecture(), (PORTABLE,))
    for level in chain:
        if level.name == name:
            return level
    found = f"Environment variable {VARIABLE} is '{name}'"
    if name in EVERY:
        found += f", a level of {EVERY[name].architecture}"
    levels = ", ".join(level.name for level in chain)
    raise PropertyError(f"{found}; choose one of {levels}.")


def detected() -> Level:
    """The last level of the chain that this machine has."""
    return available()[-1]


@functools.cache
def available() -> tuple[Level, ...]:
    """The levels that this machine has, in the order of the chain.

    Their machine code can be loaded on Linux; elsewhere there is the portable level alone.

    Requests AMX of the system if the processor has it.
    """
    chain = CHAINS.get(architecture(), (PORTABLE,))
    return tuple(
        level
        for level in chain
        if not level.native
        or (
            this_system().walks_programs
            and level.features <= host_features()
            and (not level.tiles or tiles_granted())
        )
    )


@functools.cache
def architecture() -> str:
    """The one that this process runs on, if there are levels for it; else `ANY`."""
    if sys.maxsize < 2**32:
        return ANY
    return _MACHINES.get(platform.machine().lower(), ANY)


@functools.cache
def host_features() -> frozenset[str]:
    """Features of the processor, by LLVM's names; kept on disk, since LLVM takes long to load.

    Raises:
        DeviceUnavailableError: LLVM cannot be loaded.
    """
    if architecture() == AARCH64 and this_system().walks_programs:
        return _features_of_linux()
    known = disk_cache.read(*_KEPT) if disk_cache.knows_processor() else None
    if known is not None:
        return frozenset(known.decode().split())
    with raised_as(DeviceUnavailableError, "LLVM, which compiles kernels, cannot be loaded"):
        from llvmlite import binding

    found = frozenset(name for name, there in binding.get_host_cpu_features().items() if there)
    if disk_cache.knows_processor():
        disk_cache.write(*_KEPT, " ".join(sorted(found)).encode())
    return found


_CAPABILITIES = {
    16: {"neon": 1, "fullfp16": 10, "dotprod": 20},
    26: {"i8mm": 13, "bf16": 14},
}
"""Of 64-bit ARM: words of Linux' auxiliary vector, and bits of features by LLVM's names."""


def _features_of_linux() -> frozenset[str]:
    """What Linux reports to processes of 64-bit ARM: what all processors of the machine have.

    LLVM would read ``/proc/cpuinfo``, which is that of another processor under emulation.
    """
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype = ctypes.c_ulong
    return arm_features({kind: int(getauxval(ctypes.c_ulong(kind))) for kind in _CAPABILITIES})


def arm_features(words: Mapping[int, int]) -> frozenset[str]:
    """What words of the auxiliary vector say that a processor has.

    Args:
        words: The words by their kind: 16 (``AT_HWCAP``), 26 (``AT_HWCAP2``).
    """
    return frozenset(
        name
        for kind, bits in _CAPABILITIES.items()
        for name, bit in bits.items()
        if words[kind] >> bit & 1
    )


def tiles_granted() -> bool:
    """Requests the tile registers of Linux, once for all threads of the process."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)

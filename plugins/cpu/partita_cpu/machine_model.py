"""The machine model: instruction sets and cache sizes that kernels and plans are chosen for.

Sizes of blocks, bands and panels are shares of a cache. Each share stands beside the kernel that it
is for, with its reason; here is what they are shares of.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass

from partita.errors import PropertyError
from partita.system.cache_sizes import ASSUMED, CacheSizes, cache_sizes
from partita.system.processor_identity import processor_family
from partita.system.processors import usable_processors
from partita_cpu.jit.isa import isa
from partita_cpu.llvm.levels import Level

VARIABLE = "PARTITA_CPU_CACHES"
"""Environment variable: sizes of the caches, where the system tells wrong ones."""

SET_BYTES = 4096
"""Lines that lie a multiple of this apart share one set of a first-level cache of 64 sets."""

FEWEST_ROWS = 6
"""Rows of a tile that the smallest caches leave: enough sums to wait for none."""

_HALVES_VECTORS = {("AuthenticAMD", 25)}
"""Makers and families of processors of AVX-512 that compute a vector in two halves: Zen 4."""

LINE_BYTES = 64
"""A line of the caches; what is cut by their size ends with one."""


@dataclass(frozen=True)
class MachineModel:
    """What kernels are cut for.

    No result depends on it but by the order of sums, and where bfloat16 is asked for by which
    products gain by it.

    Attributes:
        level: Instruction sets that kernels may use, and how large their tiles are.
        cores: Processors that this process may use.
        caches: What one core has.
        halves_vectors: Whether a vector of 512 bits is computed in two halves. What multiplies
            takes twice as long then, what loads and rounds does not.
    """

    level: Level
    cores: int = 1
    caches: CacheSizes = ASSUMED
    halves_vectors: bool = False

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.level, self.cores, self.caches, self.halves_vectors))

    def __hash__(self) -> int:
        """Made once: plans are kept under machines, and every product asks for its own."""
        return self._hash

    @property
    def tile_rows(self) -> int:
        """Most rows of a tile whose sums are in vectors.

        Rows that lie multiples of 1 KiB apart, as those of 256 channels do, have four sets of the
        first-level cache: each gets a quarter of the rows, as many lines that the processor fetches
        next, and two of weights. Sets of 8 lines (32 KiB) hold 12 rows so, those of 12 lines 14.
        """
        lines = self.caches.l1d // SET_BYTES
        return min(self.level.rows, max(FEWEST_ROWS, 2 * (lines - 2)))

    def l1_bytes(self, share: float) -> int:
        """A share of a core's first-level data cache, in whole lines."""
        return _lines(self.caches.l1d * share)

    def l2_bytes(self, share: float) -> int:
        """A share of a core's second-level cache, in whole lines."""
        return _lines(self.caches.l2 * share)

    def describe_caches(self) -> str:
        """The sizes as a person reads them: ``48 KiB L1d, 2048 KiB L2, 8192 KiB L3 per core``."""
        sizes = zip(("L1d", "L2", "L3"), self.caches, strict=True)
        known = ", ".join(f"{size >> 10} KiB {name}" for name, size in sizes if size)
        return f"{known} per core"


def _lines(size: float) -> int:
    return max(1, round(size / LINE_BYTES)) * LINE_BYTES


def this_machine() -> MachineModel:
    """The machine that this process runs on, as far as the environment lets kernels use it.

    Raises:
        PropertyError: PARTITA_CPU_ISA names no level, or PARTITA_CPU_CACHES no sizes.
    """
    caches = _sizes_of_user() or _sizes_of_system()
    return MachineModel(isa(), usable_processors(), caches, _halves_vectors())


@functools.cache
def _halves_vectors() -> bool:
    return processor_family() in _HALVES_VECTORS


@functools.cache
def _sizes_of_system() -> CacheSizes:
    return cache_sizes()


_SIZES = re.compile(r"(\d+)([KM])/(\d+)([KM])(?:/(\d+)([KM]))?", re.ASCII)
_UNITS = {"K": 1 << 10, "M": 1 << 20}
_LARGEST = 1 << 40


def _sizes_of_user() -> CacheSizes | None:
    """What PARTITA_CPU_CACHES says; ``None`` if it is not set."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    found = _SIZES.fullmatch(text.upper())
    if found:
        numbers = zip(found.groups("0")[::2], found.groups("K")[1::2], strict=True)
        sizes = CacheSizes(*(int(number) * _UNITS[unit] for number, unit in numbers))
        if min(sizes[:2]) and max(sizes) <= _LARGEST:
            return sizes
    raise PropertyError(
        f"Environment variable {VARIABLE} is '{text}'; write what a core has of each level, like "
        "32K/1M, or 32K/256K/8M with a third one."
    )

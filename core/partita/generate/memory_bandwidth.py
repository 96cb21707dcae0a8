"""How fast the processors of this machine read their memory together, measured in a short loop."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from partita.system.processors import usable_processors

_BYTES = 256 * 1024 * 1024
"""Far more than caches hold."""

_PARTS_PER_THREAD = 4
_TRIES = 5


@dataclass(frozen=True, slots=True)
class MemoryBandwidth:
    """What was measured.

    Attributes:
        bytes_per_second: The best of the tries.
        threads: How many read at the same time: as many as there are usable processors.
    """

    bytes_per_second: float
    threads: int


def measure() -> MemoryBandwidth:
    """Reads 256 MB several times, by numpy's vectorised search for the largest of float32 numbers.

    Takes a fraction of a second, and that much memory meanwhile.
    """
    threads = usable_processors()
    memory = np.zeros(_BYTES // 4, np.float32)
    memory[:] = 1  # pages that were never written to are one page of zeros
    parts = np.array_split(memory, threads * _PARTS_PER_THREAD)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_TRIES):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - start)
    return MemoryBandwidth(_BYTES / min(seconds), threads)

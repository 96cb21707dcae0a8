"""How fast a processor multiplies pairs of bfloat16 beside float32, measured once and kept on disk.

A vector of pairs holds twice as many numbers as one of float32. Zen 4 and Zen 5 multiply as many
vectors of either a cycle, so that bfloat16 takes half the time. Processors that are meant to
multiply bfloat16 by AMX have one unit for pairs and two for float32 (Sapphire Rapids, Emerald
Rapids), and take a vector of pairs every other cycle: where a virtual machine hides AMX, bfloat16
takes twice the time of float32. No flag of the processor tells, and a list of models would know
neither the next one nor what a virtual machine calls itself.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import time

from partita_cpu.jit import disk_cache
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.llvm.levels import X86_64, Level
from partita_cpu.llvm.module import RATES
from partita_cpu.llvm.multiply_loops import FLOATS, PAIRS, SUMS

ENOUGH = 1.4
"""Times as many products a second as in float32, from which on bfloat16 pays.

Processors have 0.5, 1 or 2. As many are too few: factors have to be rounded before.
"""

_ROUNDS = 2000
"""Of a loop: some ten microseconds, which a call of it hardly adds to."""

_TURNS = 32
"""Of both loops; the least of each counts, which other programs seldom spoil."""

_KEPT = "pair_rate"

_log = logging.getLogger(__name__)


def multiplies_pairs(level: Level) -> bool:
    """Whether products of bfloat16 take less time than those of float32, where memory does not.

    BFDOT of 64-bit ARM is not measured: Arm's guides give it as many a cycle as float32 (Neoverse
    V1, N2, V2).

    Args:
        level: The kernels' instruction sets.
    """
    if not level.dots_bfloat16 or level.tiles or level.architecture != X86_64:
        return level.dots_bfloat16
    return pair_rate(level) >= ENOUGH


@functools.cache
def pair_rate(level: Level) -> float:
    """Products a second of bfloat16 by vectors, in parts of those of float32.

    Measured in a millisecond where it was never before, and kept for later processes.

    Args:
        level: One with products of bfloat16 by vectors, which this machine has.
    """
    key = f"{level.name} {SUMS} {_ROUNDS} {_TURNS}"
    known = disk_cache.read(_KEPT, key)
    if known is not None:
        return float(known)
    rate = measured_rate(level)
    _log.info("%s: %.2f times as many products of bfloat16 as of float32", level.name, rate)
    disk_cache.write(_KEPT, key, f"{rate:.3f}".encode())
    return rate


def measured_rate(level: Level) -> float:
    """The same, measured now.

    Args:
        level: As for :func:`pair_rate`.
    """
    known = addresses(level, RATES)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    loops = {name: call(known[name]) for name in (FLOATS, PAIRS)}
    sums = (ctypes.c_float * (SUMS * level.lanes))()
    least = dict.fromkeys(loops, float("inf"))
    for _ in range(_TURNS):
        for name, loop in loops.items():
            start = time.perf_counter_ns()
            loop(ctypes.addressof(sums), _ROUNDS)
            least[name] = min(least[name], time.perf_counter_ns() - start)
    return 2 * least[FLOATS] / least[PAIRS]

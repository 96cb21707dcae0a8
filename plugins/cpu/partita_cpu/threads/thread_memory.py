"""Memory that threads write to and read again within a step: where it was in the steps before.

A line that another core wrote to last has to be fetched from there before it is written to, and a
thread puts down hundreds of lines in a step. So room for a thread is rounded up, and steps with as
much of it share one block of memory, in which each finds its part in its own caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Builder, Operand
from partita.lowering.shapes.symbolic_size import Number

LEAST = 64 << 10
"""Bytes of room at least, so that most steps have the same."""


def room_of(nbytes: Number, threads: int) -> Number:
    """Bytes from one thread's memory to the next one's: a power of two, `LEAST` or more.

    Args:
        nbytes: What a thread needs. As much it is if it stands for other sizes: steps share no
            memory then.
        threads: How many have memory; one has just what it needs.
    """
    if threads == 1 or type(nbytes) is not int or not nbytes:
        return nbytes
    return max(LEAST, 1 << (nbytes - 1).bit_length())


def thread_memory(
    b: Builder, threads: int, room: Number, dtype: Any = np.uint8, second: bool = False
) -> Operand:
    """Memory of all threads of a step; that of one thread alone is placed by liveness.

    Args:
        b: Records the step.
        threads: How many have memory.
        room: Elements of each.
        dtype: Of an element.
        second: Whether the step asks for as much twice.
    """
    if threads == 1:
        return b.empty((room,), dtype)
    return b.scratch(threads * room, dtype, second)

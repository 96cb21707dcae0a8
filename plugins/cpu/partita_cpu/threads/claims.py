"""Work stealing: threads claim pieces of a step, so that a slower thread computes fewer.

Processors are not alike: of two threads of one core the one beside a busy neighbour has half the
speed, and in a virtual machine the neighbour may be another guest's. With one equal share for each
thread the slowest decides how long a step takes. So a thread takes pieces from the front of its own
share, a part of what is left at a time, and when nothing is left, from the end of the share of
which least has been taken. What is in a piece does not depend on who takes it.

A share's word counts the pieces taken from both ends, so that one atomic operation takes some. It
has a cache line of its own: nobody but its owner writes there while there is work for all. The
thread pool clears the words before a step; see `cleared` in :class:`partita.lowering.program.Step`.
"""

from __future__ import annotations

from typing import Any

from partita_cpu.jit.intrinsics.atomics import load, replace, store
from partita_cpu.jit.loop_kernel import loop

LINE = 8
"""Words from one share's to the next one's."""

PART = 3
"""Of what is left of a share one in so many is taken at a time.

The last pieces are small then, and few are under way when nothing is left to be taken.
"""

_LINE_BYTES = 8 * LINE
_END = 31
"""Pieces taken from the end are counted from this bit on."""

_FRONT = (1 << _END) - 1
ALL_TAKEN = 1 << 62
"""A share of which nothing is left."""


@loop(inline=True)
def claim(word: int, pieces: int, least: int, from_end: bool) -> Any:
    """Takes pieces of a share: the first and behind the last one, which are equal if none is left.

    Args:
        word: Address of the share's word.
        pieces: How many the share has.
        least: How many are worth taking.
        from_end: Whether the share is another thread's.
    """
    while True:
        taken = load(word)
        first, behind = taken & _FRONT, taken >> _END
        left = pieces - first - behind
        if taken >= ALL_TAKEN or left <= 0:
            store(word, ALL_TAKEN)
            return 0, 0
        count = min(max(left // PART, least), left)
        if from_end:
            if replace(word, taken, taken + (count << _END)):
                return pieces - behind - count, pieces - behind
        elif replace(word, taken, taken + count):
            return first, first + count


@loop(inline=True)
def least_taken(words: int, shares: int) -> Any:
    """The share of which fewest pieces are taken, or -1 if nothing is left of any.

    Args:
        words: Address of the first share's word.
        shares: How many there are.
    """
    found, fewest = -1, ALL_TAKEN
    for share in range(shares):
        taken = load(words + _LINE_BYTES * share)
        count = (taken & _FRONT) + (taken >> _END)
        if taken < ALL_TAKEN and count < fewest:
            found, fewest = share, count
    return found


@loop(inline=True)
def word_of(words: int, share: int) -> Any:
    """Where the word of a share is."""
    return words + _LINE_BYTES * share

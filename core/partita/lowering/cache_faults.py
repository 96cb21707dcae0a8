"""Errors about the lengths of key and value caches, in the same words on all devices.

Lengths are only known when a program runs. Kernels write what does not fit as five integers and go
on without it; the engine reads these after the run, and raises.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class CacheFaultKind(enum.IntEnum):
    """What does not fit; 0 is none of them."""

    TOTAL = 1
    """``total_sequence_length``: the keys of the longest row, those of this run included."""

    LENGTH = 2
    """``seqlens_k``: the keys of a row, less one."""

    POSITION = 3
    """A token's place in its sequence, which the tables of a rotation are read at."""


class CacheFault(NamedTuple):
    """A number that does not fit.

    Attributes:
        kind: A :class:`CacheFaultKind`.
        row: Of the batch; 0 for the total length.
        found: The number.
        least: What it may be at least; for the total length, also how many tokens are new.
        most: What it may be at most.
    """

    kind: int
    row: int
    found: int
    least: int
    most: int

    def describe(self) -> str:
        """The fault as a part of a sentence, without a full stop."""
        if self.kind == CacheFaultKind.TOTAL:
            return (
                f"total_sequence_length is {self.found}; with {self.least} new tokens it may be "
                f"{self.least} to {self.most}, which is what the cache (past, and the bias if "
                "there is one) has room for. Give a cache with more room, or fewer tokens"
            )
        if self.kind == CacheFaultKind.LENGTH:
            return (
                f"seqlens_k of row {self.row} is {self.found}; it may be {self.least} to "
                f"{self.most}"
            )
        return (
            f"a token of row {self.row} is at position {self.found}; the tables of cosines and "
            f"sines have positions {self.least} to {self.most}"
        )

"""The Core that cases run on."""

from __future__ import annotations

import functools

import partita

from . import guard


@functools.cache
def guarded_core():
    """One Core for all cases of a process; device CPU's memory lies at guard pages."""
    guard.guard_device()
    return partita.Core()

"""Drivers do not survive a fork: their threads and locks stay with the parent.

A child that calls one waits for ever. So what would, says so instead; processes that are started
afresh (``multiprocessing``'s "spawn" and "forkserver") are not concerned. What a driver registered
for the end of the process may fail in a child: it should end by :func:`os._exit`, as those of
``multiprocessing`` do.
"""

from __future__ import annotations

import os

from partita.errors import DeviceUnavailableError


class _State:
    """Whether this process asked a driver for something, and whether one it was forked from did."""

    asked = False
    lost = False


def note_drivers() -> None:
    """Is called before a driver is."""
    _State.asked = True


def refuse_after_fork(error: type[Exception] = DeviceUnavailableError) -> None:
    """Raises an error in a process whose parent had called a driver before the fork.

    Args:
        error: What to raise.

    Raises:
        DeviceUnavailableError: It is such a process; or whatever `error` is.
    """
    if _State.lost:
        raise error(
            "OPENCL cannot be used in this process: it was forked from one that had used OpenCL, "
            "and drivers do not survive that. Start it by multiprocessing's 'spawn' or "
            "'forkserver', or fork before anything asks for OPENCL devices."
        )


def _after_fork() -> None:
    _State.lost = _State.asked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

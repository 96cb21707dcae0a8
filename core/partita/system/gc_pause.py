"""Makes garbage collections rare while a model is read or compiled."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_RARELY = 500_000
"""Objects made before cycles are looked for meanwhile: some hundred megabytes at most."""

_lock = InterruptSafeLock()

_holding: list[tuple[int, object]] = []
"""Who holds collections off: the thread, and an object of its own."""


class _Held:
    """How often collections came before they were held off."""

    before = 0


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Cycles are seldom looked for meanwhile: many objects are made, and nearly all of them stay.

    Each search goes through everything that the process has, which for a small model takes longer
    than to compile it. Several threads may do this at once; the last one puts back what was set.
    Collections still come, since a plugin's compiler that never returns must not end them.
    """
    threshold, *others = gc.get_threshold()
    hold = threading.get_ident(), object()
    try:
        with _lock:
            if not _holding:
                _Held.before = threshold
                if 0 < threshold < _RARELY:
                    gc.set_threshold(_RARELY, *others)
            _holding.append(hold)
        yield
    finally:
        with _lock:
            if hold in _holding:
                _holding.remove(hold)
            _put_back()


def _put_back() -> None:
    """Lets collections come as they did, if nobody holds them off."""
    often, *others = gc.get_threshold()
    if not _holding and often == _RARELY:
        gc.set_threshold(_Held.before, *others)


def _after_fork() -> None:
    """Forgets threads that the child has not."""
    own = threading.get_ident()
    _holding[:] = [hold for hold in _holding if hold[0] == own]
    _put_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Makes garbage collections rare while a model is read or compiled."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_RARELY = 500_000
"""Objects made before cycles are looked for meanwhile: some hundred megabytes at most."""

_lock = InterruptSafeLock()


class _Held:
    """How many hold collections off, and how often they came before."""

    count = 0
    before = 0


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Cycles are seldom looked for meanwhile: many objects are made, and nearly all of them stay.

    Each search goes through everything that the process has, which for a small model takes longer
    than to compile it. Several threads may do this at once; the last one puts back what was set.
    Collections still come, since a plugin's compiler that never returns must not end them.
    """
    threshold, *others = gc.get_threshold()
    with _lock:
        if not _Held.count:
            _Held.before = threshold
            if 0 < threshold < _RARELY:
                gc.set_threshold(_RARELY, *others)
        _Held.count += 1
    try:
        yield
    finally:
        with _lock:
            _Held.count -= 1
            if not _Held.count and gc.get_threshold()[0] == _RARELY:
                gc.set_threshold(_Held.before, *others)

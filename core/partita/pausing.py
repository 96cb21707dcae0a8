"""Holds garbage collections off while a model is read or compiled."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()


class _Held:
    """How many hold collections off, and whether they went on before."""

    count = 0
    before = False


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No cycles are looked for meanwhile: many objects are made, and nearly all of them stay.

    Each search goes through everything that the process has, which for a small model takes longer
    than to compile it. Several threads may do this at once; the last one lets collections go on.
    """
    with _lock:
        if not _Held.count:
            _Held.before = gc.isenabled()
            gc.disable()
        _Held.count += 1
    try:
        yield
    finally:
        with _lock:
            _Held.count -= 1
            if not _Held.count and _Held.before:
                gc.enable()

"""State of the process that must be unchanged after whatever is done with a device."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from partita_conformance.judging.requirements import require
from partita_conformance.suites.resources.process_state import (
    ARITHMETIC,
    arithmetic,
    state,
    unusual_state,
)

_FILES = Path("/proc/self/fd")
_FEW = 8
_AT_EXIT = "functions called at exit"
"""Of which modules that are imported meanwhile may bring some."""


def _counts() -> dict[str, int]:
    files = len(list(_FILES.iterdir())) if _FILES.exists() else 0
    return {
        "open files": files,
        "threads": threading.active_count(),
        _AT_EXIT: atexit._ncallbacks(),  # nothing else counts them
    }


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Fails if what is done inside changes what the process shares, prints, or leaves anything.

    Raises:
        ConformanceError: It does.
    """
    out, unseen = io.StringIO(), list[str]()
    hooks = sys.unraisablehook, threading.excepthook
    with contextlib.redirect_stdout(out), unusual_state():
        sys.unraisablehook = lambda lost: unseen.append(repr(lost.exc_value))
        threading.excepthook = lambda lost: unseen.append(repr(lost.exc_value))
        try:
            before, counts = state(), _counts()
            yield
            after = state()
        finally:
            sys.unraisablehook, threading.excepthook = hooks
        changed = [w for w, value in before.items() if after[w] != value and w != _AT_EXIT]
        require(not changed, f"Compiling and running changed {', '.join(changed)}.")
        for what, count in counts.items():
            for _ in range(20):
                growth = _counts()[what] - count
                if growth < _FEW:
                    break
                gc.collect()
                time.sleep(0.02)
            require(growth < _FEW, f"There are {growth} more {what} than before.")
    now = arithmetic()
    switched = [what for what, value in ARITHMETIC.items() if now[what] != value]
    require(not switched, f"Compiling and running changed {', '.join(switched)}.")
    require(not out.getvalue(), f"Compiling and running prints {out.getvalue()[:80]!r}.")
    require(not unseen, f"Errors that nobody sees: {unseen[:1]}.")

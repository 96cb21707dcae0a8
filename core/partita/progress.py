"""Progress bars on stderr, for people who wait at a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

if TYPE_CHECKING:
    from rich.progress import Progress

Advance = Callable[[float], None]
"""Tells a progress bar how much is done of its total."""

_lock = InterruptSafeLock()
_shown: Progress | None = None


@contextlib.contextmanager
def progress(description: str, total: float | None) -> Iterator[Advance]:
    """A progress bar while the block runs, if stderr is a terminal.

    A bar that is begun while another one is shown becomes a line below it.

    Args:
        description: What is going on.
        total: When it is done; ``None`` if that is not known.
    """
    if sys.stderr is None or not sys.stderr.isatty():  # None in a process without a console
        yield lambda done: None
        return
    with contextlib.ExitStack() as stack:
        bar = _bar(stack)
        task = bar.add_task(description, total=total)
        stack.callback(bar.remove_task, task)
        bar.refresh()
        yield lambda done: bar.update(task, completed=done)


def _bar(stack: contextlib.ExitStack) -> Progress:
    """The bar that is shown, or a new one that is shown as long as the stack is open."""
    global _shown
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with _lock:
        if _shown is not None:
            return _shown
        bar = _shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=4,  # drawing takes time from what is measured
        )
    stack.callback(_hide)
    stack.enter_context(bar)
    return bar


def _hide() -> None:
    global _shown
    _shown = None

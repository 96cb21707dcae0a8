"""Things that a process has one of, whichever of its threads asks for it first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from partita.system.threads.fork_order import forks_wait
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

F = TypeVar("F", bound=Callable[..., Any])


def made_once(function: F) -> F:
    """Has a function called once for the same arguments; what it returns is kept.

    As ``functools.cache``, whose function several threads may call at the same time, each of which
    then has a thing of its own. Here the others wait.

    Example:
        >>> queue = made_once(lambda name: [name])
        >>> queue("a") is queue("a")
        True
    """
    made: dict[tuple[Any, ...], Any] = {}
    lock = InterruptSafeLock()

    @functools.wraps(function)
    @forks_wait
    def make(*args: Any) -> Any:
        if args not in made:
            with lock:
                if args not in made:
                    made[args] = function(*args)
        return made[args]

    return make  # type: ignore[return-value]  # it takes and returns the same
